package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

func sandboxCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "sandbox", Aliases: []string{"sb"}, Short: "Work with sandboxes"}
	cmd.AddCommand(sandboxCreate(c), sandboxList(c), sandboxGet(c), sandboxExec(c), sandboxCopy(c), sandboxWait(c), sandboxDelete(c), sandboxConsole(c))
	return cmd
}

func sandboxCreate(c *cli) *cobra.Command {
	var cr creation
	var env []string
	var user, key string
	var noWait bool
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "Create a sandbox and wait until it runs",
		Example: `  skerry sandbox create
  skerry sandbox create --name work --image python:3.13 --cpu 2 --memory 4GiB --label team=research`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			req, err := cr.request(cmd.Flags())
			if err != nil {
				return err
			}
			if req.Env, err = parseEnv(env); err != nil {
				return err
			}
			req.User, req.IdempotencyKey = user, key
			if noWait {
				req.WaitSeconds = new(int)
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			if cr.pull {
				if err := ensureImage(ctx, c, cl, req.Image); err != nil {
					return err
				}
			}
			sb, err := cl.CreateSandbox(ctx, req)
			if err == nil && !noWait {
				sb, err = started(ctx, cl, sb, cr.startTimeout)
			}
			if sb.ID != "" {
				if err := print(c, true, []skerry.Sandbox{sb}, sandboxHeader, sandboxRow); err != nil {
					return err
				}
			}
			return err
		},
	}
	f := cmd.Flags()
	cr.flags(f)
	f.StringArrayVarP(&env, "env", "e", nil, "environment variable of all programs, KEY=value, or KEY to pass on ours")
	f.StringVarP(&user, "user", "u", "", "default OS user; default the image's")
	f.StringVar(&key, "idempotency-key", "", "a create that is repeated with the same key returns the same sandbox")
	f.BoolVar(&noWait, "no-wait", false, "return at once")
	return cmd
}

func sandboxList(c *cli) *cobra.Command {
	var labels, statuses []string
	var all bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List sandboxes, newest first",
		Example: `  skerry sandbox list --label team=research --status running
  skerry sandbox list -o json | jq -r '.[].id'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter := skerry.SandboxFilter{Deleted: all}
			var err error
			if filter.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			if filter.Statuses, err = parseStatuses(statuses); err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			var list []skerry.Sandbox
			for sb, err := range cl.AllSandboxes(cmd.Context(), filter) {
				if err != nil {
					return err
				}
				list = append(list, sb)
			}
			return print(c, false, list, sandboxHeader, sandboxRow)
		},
	}
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "only with this label, key=value")
	cmd.Flags().StringSliceVar(&statuses, "status", nil, "only with one of these statuses")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also deleted ones")
	completeStatuses(cmd, "status")
	return cmd
}

func sandboxGet(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show a sandbox, by name or id", Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			sb, err := cl.Sandbox(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return print(c, true, []skerry.Sandbox{sb}, sandboxHeader, sandboxRow)
		},
	}
}

func sandboxExec(c *cli) *cobra.Command {
	var p program
	cmd := &cobra.Command{
		Use:   "exec [flags] NAME [--] CMD [ARG…]",
		Short: "Run a program in a sandbox",
		Long: `Run a program in a running sandbox. Arguments, streams and exit codes are as
with skerry run. Ctrl-C goes to the program; a second one kills it.`,
		Example: `  skerry sandbox exec work -- pip install requests
  skerry sandbox exec -t work bash
  tar c . | skerry sandbox exec -w /src work -- tar x`,
		Annotations:       map[string]string{annotationProgram: "exec"},
		ValidArgsFunction: c.completeSandboxes,
		Args:              cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			argv := args[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return usageError{fmt.Errorf("CMD is missing")}
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			id, err := sandboxID(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			return c.exec(cmd.Context(), &p, cl.Toolbox(id), argv)
		},
	}
	cmd.Flags().SetInterspersed(false)
	p.flags(cmd.Flags())
	return cmd
}

// exec runs a program and passes on the first interrupt to it.
func (c *cli) exec(ctx context.Context, p *program, tb *client.Toolbox, argv []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signals := make(chan string, 1)
	stop := interrupts(
		func(s os.Signal) { signals <- signalName(s) },
		func(os.Signal) { cancel() })
	defer stop()
	return p.run(ctx, c, tb, argv, signals)
}

// signalName is the name the toolbox knows a signal by.
func signalName(s os.Signal) string {
	switch s.String() {
	case "terminated":
		return "TERM"
	case "hangup":
		return "HUP"
	}
	return "INT"
}

func sandboxWait(c *cli) *cobra.Command {
	var statuses []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait NAME",
		Short: "Wait until a sandbox has a status",
		Long:  "Wait until a sandbox has one of the statuses. It fails when none can be reached any more (exit code 4) and when the time is over (7).",
		Example: `  skerry sandbox wait work
  skerry sandbox wait work --for deleted --timeout 30s`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			until, err := parseStatuses(statuses)
			if err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			sb, err := cl.WaitSandbox(cmd.Context(), args[0], timeout, until...)
			if err != nil {
				return err
			}
			return print(c, true, []skerry.Sandbox{sb}, sandboxHeader, sandboxRow)
		},
	}
	cmd.Flags().StringSliceVar(&statuses, "for", []string{string(skerry.StatusRunning)}, "statuses to wait for")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long; 0 is without limit")
	completeStatuses(cmd, "for")
	return cmd
}

func sandboxDelete(c *cli) *cobra.Command {
	var noWait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "delete NAME…", Aliases: []string{"rm"}, Short: "Delete sandboxes, in any state", Args: cobra.MinimumNArgs(1), ValidArgsFunction: c.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			for _, name := range args {
				sb, err := cl.DeleteSandbox(cmd.Context(), name)
				if err == nil && !noWait && sb.Status != skerry.StatusDeleted {
					_, err = cl.WaitSandbox(cmd.Context(), string(sb.ID), timeout, skerry.StatusDeleted)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return when the teardown has started")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the end of the teardown")
	return cmd
}

func parseStatuses(names []string) ([]skerry.Status, error) {
	var list []skerry.Status
	for _, name := range names {
		if !skerry.Status(name).Valid() {
			return nil, usageError{fmt.Errorf("%q is not a status; they are %s", name, strings.Join(statusNames(), ", "))}
		}
		list = append(list, skerry.Status(name))
	}
	return list, nil
}

func statusNames() []string {
	var names []string
	for _, s := range skerry.Statuses() {
		names = append(names, string(s))
	}
	return names
}
