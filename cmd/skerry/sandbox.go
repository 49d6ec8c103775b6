package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

func sandboxCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "sandbox", Aliases: []string{"sb"}, Short: "Work with sandboxes"}
	cmd.AddCommand(sandboxCreate(c), sandboxList(c), sandboxGet(c), sandboxExec(c), sandboxCopy(c), sandboxWait(c), sandboxDelete(c), sandboxConsole(c),
		sandboxFork(c), sandboxCapture(c), sandboxSnapshot(c), sandboxPolicy(c), sandboxTouch(c), sandboxEvents(c))
	cmd.AddCommand(operationCommands(c)...)
	return cmd
}

func sandboxCreate(c *cli) *cobra.Command {
	var cr creation
	var env []string
	var user, key string
	var p policy
	var persistent, spot, noWait bool
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "Create a sandbox and wait until it runs",
		Example: `  skerry sandbox create
  skerry sandbox create --name work --image python:3.13 --cpu 2 --memory 4GiB --label team=research
  skerry sandbox create --persistent --idle-expiry-seconds 3600 --on-idle-timeout stop`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			req, err := cr.request()
			if err != nil {
				return err
			}
			if req.Env, err = parseEnv(env); err != nil {
				return err
			}
			if req.LifecyclePolicy, err = p.request(cmd.Flags()); err != nil {
				return err
			}
			req.User, req.IdempotencyKey, req.Persistent, req.Spot = user, key, persistent, spot
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
	f.BoolVar(&persistent, "persistent", false, "keep the disk when the machine ends: it can be stopped, started, paused and forked")
	f.BoolVar(&spot, "spot", false, "capacity that the operator can reclaim: it is then paused if persistent, else deleted")
	p.flags(cmd)
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
	var names []string
	timeout := seconds(client.DefaultWait)
	cmd := &cobra.Command{
		Use:   "wait NAME",
		Short: "Wait until a sandbox has a status",
		Long: `Wait until a sandbox has one of the statuses or states. It fails when the sandbox is
being deleted, deleted, failed or lost first, or can reach none of them any more
(exit code 4), and when the time is over (7).`,
		Example: `  skerry sandbox wait work
  skerry sandbox wait work --until started --until stopped --timeout 60
  skerry sandbox wait work --until deleted --timeout 0`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			until, err := parseStatuses(names)
			if err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			clear := c.say("waiting for " + args[0])
			sb, err := cl.WaitSandbox(cmd.Context(), args[0], time.Duration(timeout), until...)
			clear()
			if err != nil {
				return err
			}
			return print(c, true, []skerry.Sandbox{sb}, sandboxHeader, sandboxRow)
		},
	}
	cmd.Flags().StringSliceVar(&names, "until", []string{string(skerry.StatusRunning.State())}, "statuses or states to wait for; any of them will do")
	cmd.Flags().Var(&timeout, "timeout", "how long; 0 is without limit")
	completeStatuses(cmd, "until")
	return cmd
}

func sandboxDelete(c *cli) *cobra.Command {
	var w waiting
	cmd := &cobra.Command{
		Use: "delete NAME…", Aliases: []string{"rm"}, Short: "Delete sandboxes, in any state", Args: cobra.MinimumNArgs(1), ValidArgsFunction: c.completeSomeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			cl, err := c.client()
			if err != nil {
				return err
			}
			sandboxes, err := eachOf(c, args, func(name string) (skerry.Sandbox, error) { return cl.DeleteSandbox(ctx, name) })
			if w.no {
				return err
			}
			defer c.say("deleting " + strings.Join(args, ", "))()
			_, err = thenEachOf(c, err, sandboxes, func(sb skerry.Sandbox) (skerry.Sandbox, error) {
				return cl.WaitSandbox(ctx, string(sb.ID), w.limit(), skerry.StatusDeleted)
			})
			return err
		},
	}
	w.flags(cmd.Flags(), client.DefaultWait)
	return cmd
}

// parseStatuses reads names of statuses and states.
func parseStatuses(names []string) ([]skerry.Status, error) {
	var list []skerry.Status
	for _, name := range names {
		statuses := skerry.StatusesNamed(name)
		if statuses == nil {
			return nil, usageError{fmt.Errorf("%q is not a status or state; they are %s", name, strings.Join(statusNames(), ", "))}
		}
		list = append(list, statuses...)
	}
	return list, nil
}

// statusNames lists the names that parseStatuses takes.
func statusNames() []string {
	var names []string
	for _, s := range skerry.Statuses() {
		names = append(names, string(s))
	}
	for _, s := range skerry.Statuses() {
		if state := string(s.State()); !slices.Contains(names, state) {
			names = append(names, state)
		}
	}
	return names
}
