package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

// maxEvents bounds the event log, besides Config.EventRetention.
const maxEvents = 100_000

// statusDeleted is the status in the last event of an image or a snapshot,
// which have no such status themselves.
const statusDeleted = "deleted"

// logEvent adds an event to the log, in the transaction of what it tells.
func (t *txn) logEvent(ctx context.Context, kind skerry.EventType, id, status string, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encode event of %s: %w", id, err)
	}
	t.logged = true
	return t.AddEvent(ctx, skerry.Event{Type: kind, Time: t.now, ObjectID: id, Status: status, Object: text})
}

// logSandbox leaves the environment out: it may hold secrets, and up to
// skerry.MaxEnvBytes in each of the events.
func (t *txn) logSandbox(ctx context.Context, kind skerry.EventType, s *store.Sandbox) error {
	object := s.Sandbox
	object.Env = map[string]string{}
	return t.logEvent(ctx, kind, string(s.ID), string(s.Status), object)
}

func (t *txn) logImage(ctx context.Context, i skerry.Image, status string) error {
	return t.logEvent(ctx, skerry.EventImageStatus, string(i.ID), status, i)
}

func (t *txn) logSnapshot(ctx context.Context, s skerry.Snapshot, status string) error {
	return t.logEvent(ctx, skerry.EventSnapshotStatus, string(s.ID), status, s)
}

// Events returns events of the log, oldest first; those older than
// Config.EventRetention are forgotten, as are those whose id is 100000 or more
// below the newest's. The sandboxes in them are without their environment.
// Errors: CodeInvalid.
func (c *Control) Events(ctx context.Context, filter skerry.EventFilter) ([]skerry.Event, error) {
	var events []skerry.Event
	err := c.store.View(ctx, func(r store.Reader) (err error) {
		events, err = r.Events(ctx, filter)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	return events, nil
}

// WaitEvents is Events that waits until there is one, or the time is over; then
// it returns none. Errors: CodeInvalid, CodeUnavailable at Close.
func (c *Control) WaitEvents(ctx context.Context, filter skerry.EventFilter, timeout time.Duration) ([]skerry.Event, error) {
	timer, stop := c.clock.After(timeout)
	defer stop()
	for {
		added := c.log.next() // before the log is read, so that nothing is missed
		events, err := c.Events(ctx, filter)
		if err != nil || len(events) > 0 || timeout <= 0 {
			return events, err
		}
		select {
		case <-added:
		case <-timer:
			return events, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for events: %w", ctx.Err())
		case <-c.closed:
			return nil, errStopping
		}
	}
}

// pruneEvents forgets old events, and returns when the next one is to be
// forgotten, or zero.
func (c *Control) pruneEvents(ctx context.Context) (next time.Time, err error) {
	err = c.updateLazily(ctx, func(t *txn) error {
		if _, err := t.PruneEvents(ctx, t.now.Add(-c.cfg.EventRetention), maxEvents); err != nil {
			return err
		}
		oldest, err := t.OldestEvent(ctx)
		switch {
		case errors.Is(err, store.ErrNotFound):
			next = time.Time{}
			return nil
		case err != nil:
			return err
		}
		next = oldest.Add(c.cfg.EventRetention)
		return nil
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("forget events: %w", err)
	}
	return next, nil
}

// broadcast wakes all who wait for something to happen, in this process.
type broadcast struct {
	mu sync.Mutex
	c  chan struct{} // closed and replaced by tell; guarded by mu
}

func newBroadcast() *broadcast { return &broadcast{c: make(chan struct{})} }

// next returns a channel that is closed when it happens next.
func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.c
}

func (b *broadcast) tell() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.c)
	b.c = make(chan struct{})
}
