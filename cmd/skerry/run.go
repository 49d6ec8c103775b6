package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

// creation is the part of run and sandbox create that says what to create.
type creation struct {
	image, name  string
	labels       []string
	size         size
	startTimeout time.Duration
	pull         bool
}

func (cr *creation) flags(f *pflag.FlagSet) {
	f.StringVar(&cr.image, "image", "", "registered image, by name or id; default the default image")
	f.StringVar(&cr.name, "name", "", "name of the sandbox; default a generated one")
	f.StringArrayVarP(&cr.labels, "label", "l", nil, "label, key=value")
	cr.size.flags(f)
	f.DurationVar(&cr.startTimeout, "start-timeout", 2*time.Minute, "how long to wait for the start")
	f.BoolVar(&cr.pull, "pull", false, "pull the image first, if it is not there")
}

// request is the create that the flags ask for.
func (cr *creation) request() (client.CreateSandbox, error) {
	labels, err := parseLabels(cr.labels)
	req := client.CreateSandbox{Image: cr.image, Name: cr.name, Labels: labels, Resources: cr.size.request(), Mode: skerry.Mode(cr.size.mode)}
	return req, err
}

func runCommand(c *cli) *cobra.Command {
	var r oneRun
	cmd := &cobra.Command{
		Use:   "run [flags] [--] CMD [ARG…]",
		Short: "Run a program in a Linux machine of its own",
		Long: `Create a sandbox, run a program in it, delete the sandbox.

The program gets its arguments unchanged, and standard input if that is a pipe or
a file. Standard output and standard error stay apart. skerry exits with the
program's code; see "skerry help exit-codes". The sandbox is deleted when the
program ends, also on errors and on Ctrl-C; a second Ctrl-C does not wait for
the deletion. Without CMD the image's entrypoint and command run.`,
		Example: `  skerry run -- uname -a
  echo 'print(6 * 7)' | skerry run -- python3 -
  skerry run --cpu 2 --memory 4GiB -e DEBUG=1 -- make test
  skerry run -t -- bash
  skerry run --image alpine:3.20 --pull --timeout 30s -- sh -c 'exit 3'`,
		Annotations: map[string]string{annotationProgram: "run"},
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := r.creation.request()
			if err != nil {
				return err
			}
			return r.do(cmd.Context(), c, req, args)
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows CMD is CMD's
	r.program.flags(cmd.Flags())
	r.creation.flags(cmd.Flags())
	cmd.Flags().BoolVar(&r.keep, "keep", false, "keep the sandbox, and say its name on stderr")
	return cmd
}

type oneRun struct {
	program  program
	creation creation
	keep     bool
}

// deleteTimeout bounds the deletion at the end of a run.
const deleteTimeout = 15 * time.Second

func (r *oneRun) do(ctx context.Context, c *cli, req client.CreateSandbox, argv []string) (err error) {
	cl, err := c.client()
	if err != nil {
		return err
	}
	if req.Env, err = parseEnv(r.program.env); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := interrupts(
		func(os.Signal) { cancel(errInterrupted) },
		func(os.Signal) { c.leave() })
	defer stop()
	defer func() {
		if errors.Is(context.Cause(ctx), errInterrupted) {
			err = exitError{exitInterrupted}
		}
	}()
	if r.creation.pull {
		if err := ensureImage(ctx, c, cl, req.Image); err != nil {
			return err
		}
	}
	if req.Name == "" {
		// A name of ours lets us delete what a lost answer has created.
		req.Name = "run-" + skerry.RandomToken(16)
		if r.creation.startTimeout > 0 {
			req.CreateTimeoutSeconds = max(1, int(r.creation.startTimeout.Seconds()))
		}
	}
	sb, err := r.create(ctx, c, cl, req)
	if err != nil {
		return err
	}
	defer func() { err = r.cleanUp(ctx, c, cl, sb, err) }()
	if sb, err = started(ctx, cl, sb, r.creation.startTimeout); err != nil {
		return err
	}
	if len(argv) == 0 {
		if argv, err = imageCommandLine(ctx, cl, sb); err != nil {
			return err
		}
	}
	return r.program.run(ctx, c, cl.Toolbox(sb.ID), argv, nil)
}

// create creates the sandbox. An interrupt does not break the request off: its
// answer tells what to delete.
func (r *oneRun) create(ctx context.Context, c *cli, cl *client.Client, req client.CreateSandbox) (skerry.Sandbox, error) {
	sb, err := cl.CreateSandbox(context.WithoutCancel(ctx), req)
	var answered *client.Error
	if err != nil && !errors.As(err, &answered) && skerry.CodeOf(err) != skerry.CodeUnavailable {
		// The answer was lost, so there may be a sandbox.
		return sb, r.cleanUp(ctx, c, cl, skerry.Sandbox{ID: skerry.SandboxID(req.Name), Name: req.Name}, err)
	}
	return sb, err
}

// cleanUp deletes the sandbox, whatever has become of ctx, and returns err, or
// the error of the deletion if there is no other.
func (r *oneRun) cleanUp(ctx context.Context, c *cli, cl *client.Client, sb skerry.Sandbox, err error) error {
	if r.keep {
		fmt.Fprintf(c.stderr, "skerry: kept sandbox %s (%s)\n", sb.Name, sb.ID)
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	_, deleteErr := cl.DeleteSandbox(ctx, string(sb.ID))
	switch code := skerry.CodeOf(deleteErr); {
	case deleteErr == nil, code == skerry.CodeNotFound, code == skerry.CodeGone:
		return err
	case err == nil:
		return fmt.Errorf("delete sandbox %s: %w", sb.ID, deleteErr)
	}
	fmt.Fprintf(c.stderr, "skerry: delete sandbox %s: %s\n", sb.ID, oneLine(deleteErr.Error()))
	return err
}

// started waits until a sandbox runs.
func started(ctx context.Context, cl *client.Client, sb skerry.Sandbox, timeout time.Duration) (skerry.Sandbox, error) {
	if sb.Status == skerry.StatusRunning {
		return sb, nil
	}
	return cl.WaitSandbox(ctx, string(sb.ID), timeout, skerry.StatusRunning)
}

// imageCommandLine is what the image says to run.
func imageCommandLine(ctx context.Context, cl *client.Client, sb skerry.Sandbox) ([]string, error) {
	img, err := cl.Image(ctx, string(sb.ImageID))
	if err != nil {
		return nil, err
	}
	argv := slices.Concat(img.Config.Entrypoint, img.Config.Cmd)
	if len(argv) == 0 {
		return nil, usageError{errors.New("CMD is missing, and the image names none")}
	}
	return argv, nil
}

// leave ends the process at once.
func (c *cli) leave() {
	fmt.Fprintln(c.stderr, "skerry: left without waiting")
	os.Exit(exitInterrupted)
}
