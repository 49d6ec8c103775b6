package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// activityDelay is how long activity is kept in memory before it is written.
// What is lost with the process is known to the runner, which is asked before
// an idle timer fires.
const activityDelay = 3 * time.Second

// activity holds when sandboxes were used, as far as it is not written yet.
type activity struct {
	mu    sync.Mutex
	seen  map[skerry.SandboxID]time.Time // guarded by mu
	since time.Time                      // when the first was added; guarded by mu
}

// add returns true for the first.
func (a *activity) add(id skerry.SandboxID, at time.Time) (first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if first = len(a.seen) == 0; first {
		a.since = at
	}
	a.seen[id] = later(a.seen[id], at)
	return first
}

// last returns the zero time when nothing is held of the sandbox.
func (a *activity) last(id skerry.SandboxID) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen[id]
}

// take empties it, if the first was added at t or before; else it returns when
// that was, or zero.
func (a *activity) take(t time.Time) (seen map[skerry.SandboxID]time.Time, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case len(a.seen) == 0:
		return nil, time.Time{}
	case a.since.After(t):
		return nil, a.since
	}
	seen, a.seen = a.seen, map[skerry.SandboxID]time.Time{}
	return seen, time.Time{}
}

// Activity records that a sandbox is used now. It is cheap: it is written a few
// seconds later, once for all.
func (c *Control) Activity(id skerry.SandboxID) {
	now := c.now()
	if c.activity.add(id, now) {
		c.timers.by(now.Add(activityDelay))
	}
}

// writeActivity writes what was added activityDelay ago, with all that came
// since, and returns when it is to be called again, or zero.
func (c *Control) writeActivity(ctx context.Context) (next time.Time, err error) {
	return c.writeActivityUntil(ctx, c.now().Add(-activityDelay))
}

func (c *Control) writeActivityUntil(ctx context.Context, until time.Time) (next time.Time, err error) {
	seen, since := c.activity.take(until)
	if seen == nil {
		if since.IsZero() {
			return time.Time{}, nil
		}
		return since.Add(activityDelay), nil
	}
	err = c.updateLazily(ctx, func(t *txn) error {
		for id, at := range seen {
			s, err := t.Sandbox(ctx, id)
			switch {
			case isNotFound(err):
				continue
			case err != nil:
				return err
			case s.Status == skerry.StatusDeleting || s.Status == skerry.StatusDeleted || !active(&s, at):
				continue
			}
			if err := t.write(ctx, &s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		for id, at := range maps.All(seen) {
			c.activity.add(id, at)
		}
		return time.Time{}, fmt.Errorf("record activity: %w", err)
	}
	return time.Time{}, nil
}

// askActivity asks the runner of s, whose idle timeout has passed as far as is
// known here, whether it is in use.
func (c *Control) askActivity(ctx context.Context, t *txn, s *store.Sandbox) error {
	if active(s, c.activity.last(s.ID)) {
		return t.write(ctx, s) // is due again later
	}
	s.IdleAskedAt = t.now
	runner, err := t.Runner(ctx, s.Runner)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err == nil && c.runners.online(runner, c.clock.Now()) {
		cmd := bus.Command{Kind: bus.CommandActivity, SandboxID: s.ID, MachineID: s.Machine}
		if err := t.command(ctx, s.Runner, cmd); err != nil {
			return err
		}
	}
	return t.write(ctx, s)
}

// activityEvent is a runner's answer, or its own word: it moves the idle timer,
// or fires it if it was asked for lately. An old answer does not count, since
// the sandbox may be in use again.
func (c *Control) activityEvent(ctx context.Context, t *txn, e bus.Event) error {
	s, err := t.Sandbox(ctx, e.SandboxID)
	switch {
	case isNotFound(err):
		return nil
	case err != nil:
		return err
	case s.Runner != e.RunnerID || s.Machine != e.MachineID || s.Status != skerry.StatusRunning:
		return nil
	}
	asked := !s.IdleAskedAt.IsZero() && t.now.Before(s.IdleAskedAt.Add(answerWithin))
	s.IdleAskedAt = time.Time{}
	active(&s, c.activity.last(s.ID))
	if e.Busy {
		active(&s, t.now)
	} else if !e.LastActive.After(t.now) {
		active(&s, e.LastActive.UTC().Truncate(time.Microsecond))
	} else {
		active(&s, t.now) // its clock is ahead
	}
	schedule(&s)
	idle := s.Lifecycle.IdleTimeoutAt
	if !asked || e.Busy || s.Operation != "" || idle == nil || idle.After(t.now) || s.RetryAt.After(t.now) {
		return t.write(ctx, &s)
	}
	why := fmt.Sprintf("it was idle for %d s", s.Lifecycle.IdleExpirySeconds)
	return c.timerAction(ctx, t, &s, s.Lifecycle.OnIdleTimeout, why)
}
