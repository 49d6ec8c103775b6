package main

import (
	"context"

	"github.com/spf13/cobra"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

func sandboxFork(c *cli) *cobra.Command {
	var req skerry.ForkRequest
	var labels []string
	var w waiting
	cmd := &cobra.Command{
		Use:   "fork NAME",
		Short: "Duplicate a persistent sandbox",
		Long: `Duplicate a persistent sandbox, memory and disk, and wait until the copies run. The
sandbox itself runs on. Environment variables are not inherited by new programs
of the copies, as they may hold secrets, unless --inherit-env is given.`,
		Example: `  skerry sandbox fork work --name experiment
  skerry sandbox fork work --count 20 --label run=42 -o json | jq -r '.[].id'`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if cmd.Flags().Changed("count") && req.Count == 0 {
				return skerry.Invalid("--count", "range", "1 to 64", "must be 1 to %d, is 0", skerry.MaxForks)
			}
			var err error
			if req.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			copies, err := cl.ForkSandbox(ctx, args[0], req)
			if err != nil {
				return err
			}
			single := len(copies) == 1
			if !w.no {
				copies, err = c.startedAll(ctx, cl, "forking "+args[0], copies, w)
			}
			return c.printDone(single, copies, err)
		},
	}
	f := cmd.Flags()
	f.IntVar(&req.Count, "count", 0, "how many copies, 1 to 64 (default one for each --name, or 1)")
	f.StringArrayVar(&req.Names, "name", nil, "name of a copy; one for each copy, or none")
	f.StringArrayVarP(&labels, "label", "l", nil, "label of all copies, key=value")
	f.BoolVar(&req.InheritEnv, "inherit-env", false, "programs in the copies get the sandbox's environment variables")
	w.flags(f, operationTimeout)
	return cmd
}

// startedAll waits until all of the sandboxes run.
func (c *cli) startedAll(ctx context.Context, cl *client.Client, doing string, sandboxes []skerry.Sandbox, w waiting) ([]skerry.Sandbox, error) {
	defer c.say(doing)()
	return eachOf(c, sandboxes, func(sb skerry.Sandbox) (skerry.Sandbox, error) { return started(ctx, cl, sb, w.limit()) })
}
