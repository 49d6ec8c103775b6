package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

// following is the part of the two commands that print events.
type following struct {
	filter   skerry.EventFilter
	noFollow bool
}

func (f *following) flags(cmd *cobra.Command) {
	cmd.Flags().Int64Var(&f.filter.After, "after", client.FromNow, "go on after the event with this id; 0 begins with the oldest (default with the next one)")
	cmd.Flags().IntVar(&f.filter.Limit, "limit", 0, "end after so many events")
	cmd.Flags().BoolVar(&f.noFollow, "no-follow", false, "print those that there are, and end")
}

const eventsHelp = `Print what changes, as it changes: a line for each event, JSON where stdout is no
terminal. A lost connection is made again, and nothing is missed or printed
twice. It ends with --limit or --no-follow, or when it is interrupted.`

func eventsCommand(c *cli) *cobra.Command {
	var f following
	cmd := &cobra.Command{
		Use: "events", Short: "Follow what happens to sandboxes, images and snapshots", Long: eventsHelp,
		Example: `  skerry events
  skerry events --after 0 --no-follow -o json | jq -r '[.id, .object_id, .status] | @tsv'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			return c.printEvents(f.events(cmd.Context(), cl))
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&f.filter.ObjectID, "object", "", "only of the sandbox, image or snapshot with this id")
	return cmd
}

func sandboxEvents(c *cli) *cobra.Command {
	var f following
	cmd := &cobra.Command{
		Use: "events NAME", Short: "Follow what happens to a sandbox", Long: eventsHelp,
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			id, err := sandboxID(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			f.filter.ObjectID = string(id)
			return c.printEvents(f.events(cmd.Context(), cl))
		},
	}
	f.flags(cmd)
	return cmd
}

// events yields the events that the flags ask for.
func (f *following) events(ctx context.Context, cl *client.Client) iter.Seq2[skerry.Event, error] {
	all := cl.Events(ctx, f.filter)
	if f.noFollow {
		all = kept(ctx, cl, f.filter)
	}
	if f.filter.Limit <= 0 {
		return all
	}
	return func(yield func(skerry.Event, error) bool) {
		n := 0
		for e, err := range all {
			if n++; !yield(e, err) || n == f.filter.Limit {
				return
			}
		}
	}
}

// kept yields the events that the server has, page by page.
func kept(ctx context.Context, cl *client.Client, filter skerry.EventFilter) iter.Seq2[skerry.Event, error] {
	return func(yield func(skerry.Event, error) bool) {
		filter.After, filter.Limit = max(0, filter.After), skerry.MaxPageSize
		for {
			page, err := cl.ListEvents(ctx, filter)
			if err != nil {
				yield(skerry.Event{}, err)
				return
			}
			for _, e := range page {
				if !yield(e, nil) {
					return
				}
				filter.After = e.ID
			}
			if len(page) < filter.Limit {
				return
			}
		}
	}
}

// printEvents writes each event as soon as it comes.
func (c *cli) printEvents(events iter.Seq2[skerry.Event, error]) error {
	const line = "%-8s  %-19s  %-17s  %-25s  %s\n"
	if c.tables() {
		fmt.Fprintf(c.stdout, line, "ID", "TIME", "TYPE", "OBJECT", "STATUS")
	}
	enc := json.NewEncoder(c.stdout)
	enc.SetEscapeHTML(false)
	for e, err := range events {
		if err != nil {
			return err
		}
		if c.tables() {
			_, err = fmt.Fprintf(c.stdout, line, fmt.Sprint(e.ID), e.Time.Local().Format(time.DateTime), oneLine(string(e.Type)), oneLine(e.ObjectID), oneLine(e.Status))
		} else {
			err = enc.Encode(e)
		}
		if err != nil {
			return fmt.Errorf("print an event: %w", err)
		}
	}
	return nil
}
