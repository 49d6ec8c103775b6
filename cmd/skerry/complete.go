package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"skerry.dev/skerry"
)

// completeTimeout bounds what a shell waits for.
const completeTimeout = 2 * time.Second

// completeSandboxes completes the name of a sandbox, as the first argument.
func (c *cli) completeSandboxes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return c.completeSomeSandboxes(cmd, nil, "")
}

// completeSomeSandboxes completes names of sandboxes that are not there yet.
func (c *cli) completeSomeSandboxes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	cl, err := c.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	page, err := cl.Sandboxes(ctx, skerry.SandboxFilter{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, sb := range page.Items {
		if !slices.Contains(args, sb.Name) {
			names = append(names, sb.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeImages completes names of images.
func (c *cli) completeImages(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	cl, err := c.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	images, err := cl.Images(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, img := range images {
		names = append(names, img.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeSnapshots completes names of snapshots.
func (c *cli) completeSnapshots(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	cl, err := c.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	snapshots, err := cl.Snapshots(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, snap := range snapshots {
		names = append(names, snap.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeTimerActions completes the values of a flag for what a timer does.
func completeTimerActions(cmd *cobra.Command, flag string) {
	cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions([]string{"delete", "stop", "pause"}, cobra.ShellCompDirectiveNoFileComp))
}

// completeStatuses completes the values of a flag for statuses.
func completeStatuses(cmd *cobra.Command, flag string) {
	cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(statusNames(), cobra.ShellCompDirectiveNoFileComp))
}
