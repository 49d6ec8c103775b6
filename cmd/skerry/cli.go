package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

// cli is what the commands share.
type cli struct {
	stdin, stdout, stderr *os.File

	apiURL, apiKey string // flags
	output         string // flag: "json", "table" or "" for what fits stdout
}

func newCLI() *cli { return &cli{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr} }

const rootHelp = `Skerry gives every program its own small Linux machine.

The server is found in this order: --api-url and --api-key, the environment
variables SKERRY_API_URL and SKERRY_API_KEY, the file skerry/config.json in the
configuration directory, http://127.0.0.1:3986.

Results are tables on a terminal and JSON elsewhere; -o chooses. Lists are JSON
arrays. Errors are one line on stderr, with the id of the request in the server's
log. See "skerry help exit-codes" and "skerry help environment".`

func newRoot(c *cli) *cobra.Command {
	root := &cobra.Command{
		Use:   "skerry",
		Short: "Small Linux machines of their own for programs",
		Long:  rootHelp,
		Example: `  skerry run -- uname -a
  skerry run --image python:3.13 -- python3 -c 'print(6 * 7)'
  skerry sandbox create --name work && skerry sandbox exec work -- id`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	flags := root.PersistentFlags()
	flags.StringVar(&c.apiURL, "api-url", "", "URL of the server")
	flags.StringVar(&c.apiKey, "api-key", "", "API key; better in the environment, where others do not see it")
	flags.StringVarP(&c.output, "output", "o", "", "json or table")
	root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json", "table"}, cobra.ShellCompDirectiveNoFileComp))
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if c.output != "" && c.output != "json" && c.output != "table" {
			return usageError{fmt.Errorf("-o must be json or table, is %q", c.output)}
		}
		return nil
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(runCommand(c), sandboxCommand(c), imageCommand(c), snapshotCommand(c), eventsCommand(c), runnerCommand(c), configCommand(c), versionCommand(c), environmentTopic(), exitCodesTopic())
	root.AddCommand(serverCommands(c)...)
	markUsageErrors(root)
	return root
}

// markUsageErrors makes errors about the number of arguments usage errors.
func markUsageErrors(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		markUsageErrors(sub)
	}
}

// usageError is a command line that makes no sense.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// execute runs the command line and returns the exit code.
func execute(ctx context.Context, c *cli, args []string) int {
	root := newRoot(c)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return c.exitCode(cmd, err)
}

// client returns a client of the configured server.
func (c *cli) client() (*client.Client, error) {
	conf, err := c.config()
	if err != nil {
		return nil, err
	}
	return client.New(client.Config{URL: conf.APIURL, APIKey: conf.APIKey, UserAgent: "skerry/" + version})
}

// config merges flags, environment and file.
func (c *cli) config() (client.File, error) {
	name, err := client.FilePath()
	if err != nil {
		return client.File{}, err
	}
	conf, err := client.ReadFile(name)
	if err != nil {
		return client.File{}, err
	}
	fileURL := cmp.Or(conf.APIURL, client.DefaultURL)
	conf.APIURL = cmp.Or(c.apiURL, os.Getenv("SKERRY_API_URL"), fileURL)
	key := cmp.Or(c.apiKey, os.Getenv("SKERRY_API_KEY"))
	if key == "" && conf.APIURL == fileURL {
		key = conf.APIKey // the key of one server is not sent to another
	}
	conf.APIKey = key
	return conf, nil
}

// tables reports whether results are printed as tables.
func (c *cli) tables() bool {
	if c.output != "" {
		return c.output == "table"
	}
	return term.IsTerminal(int(c.stdout.Fd()))
}

// pipedStdin returns standard input when it is a pipe, a file or a socket, and
// nil for terminals and other devices (/dev/null), or when there is none.
func (c *cli) pipedStdin() io.Reader {
	info, err := c.stdin.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice != 0 {
		return nil
	}
	return c.stdin
}

// sandboxID returns the id that a sandbox is named by, asking the server only
// for names.
func sandboxID(ctx context.Context, cl *client.Client, idOrName string) (skerry.SandboxID, error) {
	if id := skerry.SandboxID(idOrName); id.Valid() {
		return id, nil
	}
	sb, err := cl.Sandbox(ctx, idOrName)
	return sb.ID, err
}

// exitError is an exit code that needs no message.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit %d", e.code) }

// isExit returns the code of an exitError.
func isExit(err error) (int, bool) {
	var e exitError
	ok := errors.As(err, &e)
	return e.code, ok
}
