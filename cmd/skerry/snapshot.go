package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"skerry.dev/skerry"
)

func snapshotCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "snapshot", Short: "Work with memory snapshots"}
	cmd.AddCommand(snapshotList(c), snapshotGet(c), snapshotDelete(c), snapshotRestore(c))
	return cmd
}

func sandboxSnapshot(c *cli) *cobra.Command {
	var name string
	var w waiting
	cmd := &cobra.Command{
		Use:   "snapshot NAME --name SNAPSHOT",
		Short: "Save memory and disk of a running sandbox",
		Long: `Save memory and disk of a running sandbox under a name. The sandbox runs on. New
sandboxes are restored from it with "skerry snapshot restore".`,
		Example: `  skerry sandbox snapshot work --name warm
  skerry snapshot restore warm --label team=research`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			snap, err := cl.CreateSnapshot(cmd.Context(), args[0], name)
			if err == nil && !w.no {
				clear := c.say("saving " + args[0])
				snap, err = cl.WaitSnapshot(cmd.Context(), string(snap.ID), w.limit())
				clear()
			}
			if err != nil {
				return err
			}
			return print(c, true, []skerry.Snapshot{snap}, snapshotHeader, snapshotRow)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the snapshot (required)")
	cmd.MarkFlagRequired("name")
	w.flags(cmd.Flags(), operationTimeout)
	return cmd
}

func snapshotList(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List snapshots", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			snapshots, err := cl.Snapshots(cmd.Context())
			if err != nil {
				return err
			}
			return print(c, false, snapshots, snapshotHeader, snapshotRow)
		},
	}
}

func snapshotGet(c *cli) *cobra.Command {
	var wait bool
	timeout := seconds(0)
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show a snapshot, by name or id", Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeSnapshots,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			snap, err := cl.Snapshot(cmd.Context(), args[0])
			if err == nil && wait {
				snap, err = cl.WaitSnapshot(cmd.Context(), string(snap.ID), time.Duration(timeout))
			}
			if err != nil {
				return err
			}
			return print(c, true, []skerry.Snapshot{snap}, snapshotHeader, snapshotRow)
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is ready")
	cmd.Flags().Var(&timeout, "timeout", "how long to wait; 0 is without limit")
	return cmd
}

func snapshotDelete(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME…", Aliases: []string{"rm"}, Short: "Delete snapshots; sandboxes restored from them stay",
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: c.completeSnapshots,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			_, err = eachOf(c, args, func(name string) (struct{}, error) { return struct{}{}, cl.DeleteSnapshot(cmd.Context(), name) })
			return err
		},
	}
}

func snapshotRestore(c *cli) *cobra.Command {
	var req skerry.RestoreRequest
	var p policy
	var labels, env []string
	var persistent bool
	var w waiting
	cmd := &cobra.Command{
		Use:   "restore SNAPSHOT",
		Short: "Create a sandbox that goes on where a snapshot was taken",
		Long: `Create a sandbox from a snapshot, with the CPU, memory and disk of its source, and
wait until it runs. Labels and environment variables are not inherited.`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeSnapshots,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			var err error
			if req.Policy, err = p.request(cmd.Flags()); err != nil {
				return err
			}
			if req.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			if req.Env, err = parseEnv(env); err != nil {
				return err
			}
			if cmd.Flags().Changed("persistent") {
				req.Persistent = &persistent
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			sb, err := cl.RestoreSnapshot(ctx, args[0], req)
			if err != nil {
				return err
			}
			sandboxes := []skerry.Sandbox{sb}
			if !w.no {
				sandboxes, err = c.startedAll(ctx, cl, "restoring "+args[0], sandboxes, w)
			}
			return c.printDone(true, sandboxes, err)
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Name, "name", "", "name of the sandbox; default a generated one")
	f.StringArrayVarP(&labels, "label", "l", nil, "label, key=value")
	f.StringArrayVarP(&env, "env", "e", nil, "environment variable of new programs, KEY=value, or KEY to pass on ours")
	f.BoolVar(&persistent, "persistent", false, "keep the disk over stop and start (default as the source)")
	f.BoolVar(&req.Spot, "spot", false, "capacity that the operator can reclaim")
	f.StringVar(&req.IdempotencyKey, "idempotency-key", "", "a restore that is repeated with the same key returns the same sandbox")
	p.flags(cmd)
	w.flags(f, operationTimeout)
	return cmd
}

const snapshotHeader = "ID\tNAME\tSTATUS\tSOURCE\tMEMORY\tDISK\tSIZE\tAGE"

// snapshotRow has the sizes of the machine, and of what is stored.
func snapshotRow(s skerry.Snapshot) []string {
	size := "-"
	if s.Status == skerry.ImageReady {
		size = fmt.Sprintf("%s + %s", formatBytes(s.MemoryBytes), formatBytes(s.DiskBytes))
	}
	return []string{string(s.ID), s.Name, withReason(string(s.Status), s.Error), string(s.Source),
		formatMiB(s.Resources.MemoryMiB), formatMiB(s.Resources.DiskMiB), size, formatAge(time.Since(s.CreatedAt))}
}
