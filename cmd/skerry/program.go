package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

// program is what run and exec have in common: a program in a sandbox, joined
// to the streams of this process.
type program struct {
	env      []string
	cwd      string
	user     string
	timeout  time.Duration
	stdin    bool
	terminal bool
}

func (p *program) flags(f *pflag.FlagSet) {
	f.StringArrayVarP(&p.env, "env", "e", nil, "environment variable, KEY=value, or KEY to pass on ours")
	f.StringVarP(&p.cwd, "workdir", "w", "", "working directory; default the image's")
	f.StringVarP(&p.user, "user", "u", "", "OS user")
	f.DurationVar(&p.timeout, "timeout", 0, "kill the program, and all it started, after this time")
	f.BoolVarP(&p.stdin, "interactive", "i", false, "pass standard input also from a terminal; a pipe or file always is")
	f.BoolVarP(&p.terminal, "tty", "t", false, "run the program on a terminal")
}

// run runs argv and returns how it ended, as an exitError. Signals that arrive
// on interrupts go to the program.
func (p *program) run(ctx context.Context, c *cli, tb *client.Toolbox, argv []string, signals <-chan string) error {
	env, err := parseEnv(p.env)
	if err != nil {
		return err
	}
	o := client.RunOptions{
		Argv: argv, Env: env, Cwd: p.cwd, User: p.user, Timeout: p.timeout,
		Stdin: c.pipedStdin(), Stdout: c.stdout, Stderr: c.stderr, Signals: signals,
	}
	if o.Stdin == nil && (p.stdin || p.terminal) && term.IsTerminal(int(c.stdin.Fd())) {
		o.Stdin = c.stdin
	}
	if p.terminal {
		restore, err := p.attachTerminal(ctx, c, &o)
		if err != nil {
			return err
		}
		defer restore()
	}
	result, err := tb.Run(ctx, o)
	if err != nil {
		return err
	}
	return p.outcome(c, argv, result)
}

// attachTerminal prepares our terminal, if there is one, and the one the program
// gets.
func (p *program) attachTerminal(ctx context.Context, c *cli, o *client.RunOptions) (restore func(), err error) {
	o.Terminal = &skerry.Terminal{Cols: 80, Rows: 24, Term: os.Getenv("TERM")}
	out := int(c.stdout.Fd())
	if cols, rows, err := term.GetSize(out); err == nil && cols > 0 && rows > 0 {
		o.Terminal.Cols, o.Terminal.Rows = cols, rows
	}
	in := int(c.stdin.Fd())
	if !term.IsTerminal(in) {
		return func() {}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	resizes, stopped := watchSize(ctx, out)
	o.Resizes = resizes
	old, err := term.MakeRaw(in)
	if err != nil {
		cancel()
		<-stopped
		return nil, fmt.Errorf("set up the terminal: %w", err)
	}
	return func() {
		cancel()
		<-stopped
		_ = term.Restore(in, old)
	}, nil
}

// outcome turns a result into an exit code, and says on stderr what the code
// cannot.
func (p *program) outcome(c *cli, argv []string, r skerry.ProcessResult) error {
	say := func(format string, args ...any) {
		fmt.Fprintf(c.stderr, "skerry: "+format+"\n", args...)
	}
	switch {
	case r.Reason == skerry.ReasonTimedOut:
		say("%s: killed after %s", argv[0], p.timeout)
		return exitError{exitProgramTimeout}
	case r.Reason == skerry.ReasonFailed:
		say("%s", oneLine(r.Error))
		if r.ExitCode == nil || *r.ExitCode == 0 {
			return exitError{exitCannotExecute}
		}
	case r.ExitCode == nil:
		// Without a code it never counts as a success.
		say("%s: ended without an exit code (%s) %s", argv[0], r.Reason, oneLine(r.Error))
		return exitError{exitOurFault}
	case r.OOMKilled:
		say("%s: killed for want of memory", argv[0])
	}
	if *r.ExitCode == 0 {
		return nil
	}
	return exitError{*r.ExitCode}
}

// parseEnv reads KEY=value; KEY alone is taken from our environment.
func parseEnv(list []string) (map[string]string, error) {
	env := make(map[string]string, len(list))
	for _, item := range list {
		key, value, ok := strings.Cut(item, "=")
		if !ok {
			if value, ok = os.LookupEnv(key); !ok {
				continue
			}
		}
		env[key] = value
	}
	if err := skerry.ValidateEnv("--env", env); err != nil {
		return nil, usageError{err}
	}
	return env, nil
}

// parseLabels reads key=value.
func parseLabels(list []string) (map[string]string, error) {
	labels := make(map[string]string, len(list))
	for _, item := range list {
		key, value, ok := strings.Cut(item, "=")
		if !ok || key == "" {
			return nil, usageError{fmt.Errorf("--label %q is not key=value", item)}
		}
		labels[key] = value
	}
	return labels, nil
}

// interrupts calls first at the first SIGINT, SIGTERM or SIGHUP and second at
// the second one, until stop is called.
func interrupts(first, second func(os.Signal)) (stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for _, call := range []func(os.Signal){first, second} {
			select {
			case s := <-signals:
				call(s)
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
		<-ended
	}
}

var errInterrupted = errors.New("interrupted")
