package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

// operation is something that is begun with a sandbox and takes its time.
type operation struct {
	name, doing, short, long string
	begin                    func(*client.Client, context.Context, string) (skerry.Sandbox, error)
	wait                     func(ctx context.Context, cl *client.Client, sb skerry.Sandbox, timeout time.Duration) (skerry.Sandbox, error)
}

func operationCommands(c *cli) []*cobra.Command {
	var commands []*cobra.Command
	for _, op := range []operation{
		{"stop", "stopping", "Stop persistent sandboxes: files are kept", "Stop running persistent sandboxes. Programs end, files are kept.",
			(*client.Client).StopSandbox, waitFor(skerry.StatusStopped)},
		{"start", "starting", "Start stopped or paused sandboxes", "Start persistent sandboxes: a stopped one boots with its files, a paused one goes on where it was.",
			(*client.Client).StartSandbox, waitFor(skerry.StatusRunning)},
		{"pause", "pausing", "Pause persistent sandboxes: memory and programs are kept", "Pause running persistent sandboxes. Memory and programs are kept along with the files, and need no memory of the host.",
			(*client.Client).PauseSandbox, waitFor(skerry.StatusPaused)},
		{"resume", "resuming", "Resume paused sandboxes", "Let paused sandboxes go on where they were.",
			(*client.Client).ResumeSandbox, waitFor(skerry.StatusRunning)},
		{"reclaim", "reclaiming", "Take the capacity of spot sandboxes back", "Take the capacity of spot sandboxes back, at once: persistent ones are paused, others deleted.",
			(*client.Client).ReclaimSandbox, reclaimed},
	} {
		commands = append(commands, operationCommand(c, op))
	}
	return commands
}

// waitFor waits for the end of an operation that leads to a status.
func waitFor(end skerry.Status) func(context.Context, *client.Client, skerry.Sandbox, time.Duration) (skerry.Sandbox, error) {
	return func(ctx context.Context, cl *client.Client, sb skerry.Sandbox, timeout time.Duration) (skerry.Sandbox, error) {
		return cl.WaitOperation(ctx, string(sb.ID), timeout, end)
	}
}

// reclaimed waits until a spot sandbox has no capacity any more. A persistent one
// is paused as soon as it can be; one that does not run has none.
func reclaimed(ctx context.Context, cl *client.Client, sb skerry.Sandbox, timeout time.Duration) (skerry.Sandbox, error) {
	if sb.Persistent {
		return cl.WaitSandbox(ctx, string(sb.ID), timeout, skerry.StatusPaused, skerry.StatusStopped, skerry.StatusFailed, skerry.StatusLost)
	}
	return cl.WaitSandbox(ctx, string(sb.ID), timeout, skerry.StatusDeleted)
}

func operationCommand(c *cli, op operation) *cobra.Command {
	var w waiting
	cmd := &cobra.Command{
		Use: op.name + " NAME…", Short: op.short, Long: op.long + " Wait until it is done.",
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: c.completeSomeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			cl, err := c.client()
			if err != nil {
				return err
			}
			// All are begun before the first is waited for.
			sandboxes, err := eachOf(c, args, func(name string) (skerry.Sandbox, error) { return op.begin(cl, ctx, name) })
			if !w.no {
				clear := c.say(op.doing + " " + strings.Join(args, ", "))
				sandboxes, err = thenEachOf(c, err, sandboxes, func(sb skerry.Sandbox) (skerry.Sandbox, error) {
					return op.wait(ctx, cl, sb, w.limit())
				})
				clear()
			}
			return c.printDone(len(args) == 1, sandboxes, err)
		},
	}
	w.flags(cmd.Flags(), operationTimeout)
	return cmd
}

// printDone prints the sandboxes that an operation worked on, if any, and
// returns its error.
func (c *cli) printDone(single bool, sandboxes []skerry.Sandbox, err error) error {
	if len(sandboxes) == 0 && err != nil {
		return err
	}
	if printErr := print(c, single, sandboxes, sandboxHeader, sandboxRow); err == nil {
		err = printErr
	}
	return err
}

// eachOf does something with each of several objects and returns the results.
// What fails for one does not keep it from the others: the first error is
// returned, further ones are printed.
func eachOf[T, R any](c *cli, items []T, do func(T) (R, error)) ([]R, error) {
	return thenEachOf(c, nil, items, do)
}

// thenEachOf is eachOf after something that has failed for other objects, or
// not, with err.
func thenEachOf[T, R any](c *cli, err error, items []T, do func(T) (R, error)) ([]R, error) {
	var results []R
	for _, item := range items {
		result, itemErr := do(item)
		switch {
		case itemErr == nil:
			results = append(results, result)
		case err == nil:
			err = itemErr
		default:
			c.printError(itemErr)
		}
	}
	return results, err
}
