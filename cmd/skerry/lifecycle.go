package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

// lifecycle is the timeouts of a sandbox, with its id.
type lifecycle struct {
	ID skerry.SandboxID `json:"id"`
	skerry.Lifecycle
}

const lifecycleHeader = "ID\tTIMEOUT\tIDLE TIMEOUT\tLAST ACTIVITY"

func lifecycleRow(l lifecycle) []string {
	activity := "-"
	if l.LastActivityAt != nil {
		activity = formatAge(time.Since(*l.LastActivityAt)) + " ago"
	}
	return []string{string(l.ID), formatTimeout(l.Lifecycle), formatIdleTimeout(l.Lifecycle), activity}
}

func sandboxPolicy(c *cli) *cobra.Command {
	var p policy
	cmd := &cobra.Command{
		Use: "policy NAME…", Short: "Show or change the timeouts of sandboxes",
		Long: "Show the timeouts of sandboxes, or change what is given. A timeout counts from now and cannot be cleared. No change counts as activity.",
		Example: `  skerry sandbox policy work
  skerry sandbox policy work --timeout-seconds 3600 --idle-expiry-seconds 0
  skerry sandbox policy work --idle-expiry-seconds 1800 --on-idle-timeout stop`,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: c.completeSomeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := p.request(cmd.Flags())
			if err != nil {
				return err
			}
			return c.lifecycles(cmd.Context(), args, func(ctx context.Context, cl *client.Client, id string) (skerry.Lifecycle, error) {
				if req == nil {
					return cl.Lifecycle(ctx, id)
				}
				return cl.UpdateLifecycle(ctx, id, *req)
			})
		},
	}
	p.flags(cmd)
	return cmd
}

func sandboxTouch(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "touch NAME…", Short: "Reset the idle timer of sandboxes",
		Long: "Reset the idle timer of sandboxes, for work that does not count as activity. The timeout goes on.",
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: c.completeSomeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.lifecycles(cmd.Context(), args, func(ctx context.Context, cl *client.Client, id string) (skerry.Lifecycle, error) {
				return cl.TouchSandbox(ctx, id)
			})
		},
	}
}

// lifecycles prints what do returns of each sandbox.
func (c *cli) lifecycles(ctx context.Context, names []string, do func(context.Context, *client.Client, string) (skerry.Lifecycle, error)) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	list, err := eachOf(c, names, func(name string) (lifecycle, error) {
		id, err := sandboxID(ctx, cl, name)
		if err != nil {
			return lifecycle{}, err
		}
		l, err := do(ctx, cl, string(id))
		return lifecycle{id, l}, err
	})
	if len(list) > 0 {
		if printErr := print(c, len(names) == 1, list, lifecycleHeader, lifecycleRow); err == nil {
			err = printErr
		}
	}
	return err
}

func formatTimeout(l skerry.Lifecycle) string {
	return formatTimer(l.TimeoutSeconds, l.OnTimeout, l.TimeoutAt)
}

func formatIdleTimeout(l skerry.Lifecycle) string {
	return formatTimer(l.IdleExpirySeconds, l.OnIdleTimeout, l.IdleTimeoutAt)
}

// formatTimer writes what a timer does, and when; while it does not run, after
// how long.
func formatTimer(seconds int, action skerry.TimerAction, at *time.Time) string {
	switch {
	case seconds == 0:
		return "-"
	case at == nil:
		return fmt.Sprintf("%s after %s", action, formatAge(time.Duration(seconds)*time.Second))
	}
	return fmt.Sprintf("%s in %s", action, formatAge(max(0, time.Until(*at))))
}
