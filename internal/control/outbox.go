package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

const (
	// outboxBatch is how many entries are published before that is recorded.
	outboxBatch = 64
	// outboxFirstRetry and outboxLastRetry bound the pause after an error.
	outboxFirstRetry = 50 * time.Millisecond
	outboxLastRetry  = 5 * time.Second
)

func (c *Control) wakeOutbox() {
	select {
	case c.outbox <- struct{}{}:
	default:
	}
}

// runOutbox publishes what is in the outbox whenever it is woken.
func (c *Control) runOutbox(ctx context.Context) error {
	retry := outboxFirstRetry
	for {
		more, err := c.flushOutbox(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			c.logger.Error("outbox not published, trying again", "err", err, "pause_ms", retry.Milliseconds())
			timer, stop := c.clock.After(retry)
			select {
			case <-timer:
			case <-ctx.Done():
			}
			stop()
			retry = min(2*retry, outboxLastRetry)
			continue
		}
		retry = outboxFirstRetry
		if more {
			continue
		}
		select {
		case <-c.outbox:
		case <-ctx.Done():
			return nil
		}
	}
}

// published is an entry that the bus has, or that is of no use any more.
type published struct {
	entry store.OutboxEntry
	// fault is why the sandbox of the entry can never be published, or nil.
	fault error
}

// flushOutbox publishes one batch, in order, and records it.
func (c *Control) flushOutbox(ctx context.Context) (more bool, err error) {
	var entries []store.OutboxEntry
	err = c.store.View(ctx, func(r store.Reader) (err error) {
		entries, err = r.Outbox(ctx, outboxBatch)
		return err
	})
	if err != nil || len(entries) == 0 {
		return false, err
	}
	var done []published
	var publishErr error
	for _, entry := range entries {
		fault, err := c.publish(ctx, entry)
		if err != nil {
			publishErr = fmt.Errorf("publish outbox entry %d: %w", entry.ID, err)
			break
		}
		done = append(done, published{entry, fault})
	}
	err = c.updateLazily(ctx, func(t *txn) error {
		for _, p := range done {
			if err := recordPublished(ctx, t, p); err != nil {
				return fmt.Errorf("record outbox entry %d: %w", p.entry.ID, err)
			}
		}
		return nil
	})
	return true, errors.Join(publishErr, err)
}

func (c *Control) publish(ctx context.Context, entry store.OutboxEntry) (fault, err error) {
	if entry.SandboxID != "" {
		return c.publishJob(ctx, entry.SandboxID)
	}
	var cmd bus.Command
	if err := json.Unmarshal(entry.Payload, &cmd); err != nil {
		return nil, err
	}
	return nil, c.bus.PublishCommand(ctx, entry.Runner, "outbox-"+strconv.FormatInt(entry.ID, 10), cmd)
}

// publishJob publishes the create of a sandbox that still waits for a runner.
func (c *Control) publishJob(ctx context.Context, id skerry.SandboxID) (fault, err error) {
	var s store.Sandbox
	var image store.Image
	err = c.store.View(ctx, func(r store.Reader) (err error) {
		if s, err = r.Sandbox(ctx, id); err != nil || !waitsForRunner(s) {
			return err
		}
		image, err = r.Image(ctx, s.ImageID)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return errors.New("its image is gone"), nil // or the sandbox is, which is no fault of it
	}
	if err != nil {
		return nil, err
	}
	if !waitsForRunner(s) {
		return nil, nil // deleted or claimed
	}
	job := jobOf(s, image)
	if s.Runner == "" {
		err = c.bus.PublishJob(ctx, job)
	} else { // only that runner has what it is restored from
		err = c.bus.PublishCommand(ctx, s.Runner, "", bus.Command{Kind: bus.CommandCreateSandbox, SandboxID: s.ID, Job: &job})
	}
	if errors.Is(err, bus.ErrTooLarge) {
		return err, nil
	}
	return nil, err
}

func waitsForRunner(s store.Sandbox) bool {
	return s.Status == skerry.StatusQueued || s.Status == skerry.StatusPending
}

func recordPublished(ctx context.Context, t *txn, p published) error {
	if err := t.DeleteOutbox(ctx, p.entry.ID); err != nil {
		return err
	}
	if p.entry.SandboxID == "" {
		return nil
	}
	s, err := t.Sandbox(ctx, p.entry.SandboxID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return err
	case p.fault != nil && waitsForRunner(s):
		return t.fail(ctx, &s, skerry.StatusFailed, "cannot be placed: "+p.fault.Error())
	case p.fault == nil && s.Status == skerry.StatusQueued:
		return t.move(ctx, &s, skerry.StatusPending)
	default:
		return nil // deleted or claimed meanwhile
	}
}

// recover prepares the work that an earlier run left. The outbox holds what it
// did not publish. What it did publish is published once more, since a power
// failure may have taken it from the message store; there it replaces itself.
// Commands of operations are given again when the runners report, for which they
// are asked.
func (c *Control) recover(ctx context.Context) error {
	if err := c.recoverRunners(ctx); err != nil {
		return err
	}
	filter := skerry.SandboxFilter{Statuses: []skerry.Status{skerry.StatusPending, skerry.StatusDeleting}}
	for {
		var page store.SandboxPage
		err := c.update(ctx, func(t *txn) (err error) {
			if page, err = t.Sandboxes(ctx, filter); err != nil {
				return err
			}
			for _, s := range page.Items {
				switch {
				case s.Status == skerry.StatusDeleting:
					err = t.deleteMachine(ctx, s.Runner, s.ID, s.Machine)
				case s.ForkedFrom == "": // the copies of a fork are part of its command
					err = t.queueJob(ctx, s.ID)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil || page.Next == "" {
			return err
		}
		filter.Cursor = page.Next
	}
}
