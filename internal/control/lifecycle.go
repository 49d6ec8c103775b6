package control

import (
	"context"
	"fmt"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

const (
	// answerWithin is how long an answer to the question whether a sandbox
	// is in use counts. Without one it is asked again.
	answerWithin = 30 * time.Second
	// actionRetry is the pause before a timer's action that did not work is
	// begun again.
	actionRetry = time.Minute
)

// enter gives s a status and sets what follows from it. Time starts to count
// each time the sandbox starts to run.
func enter(s *store.Sandbox, status skerry.Status, now time.Time) {
	before := s.Status
	s.Status, s.State = status, status.State()
	switch {
	case status == skerry.StatusRunning && before == skerry.StatusBooting:
		s.StartedAt, s.Lifecycle.LastActivityAt = &now, &now
		s.Lifecycle.TimeoutAt = after(now, s.Lifecycle.TimeoutSeconds)
		s.IdleAskedAt, s.RetryAt = time.Time{}, time.Time{}
	case status == skerry.StatusRunning && before == skerry.StatusPausing: // it could not be paused
		s.RetryAt = now.Add(actionRetry)
	case status == skerry.StatusStopped || status == skerry.StatusPaused:
		s.ReclaimDue, s.IdleAskedAt = false, time.Time{}
		if s.StartedAt == nil {
			s.StartedAt = &now // nobody has seen it run, but it is made
		}
		if s.Lifecycle.OnTimeout != skerry.ActionDelete {
			s.Lifecycle.TimeoutAt = nil // what it would do is done
		}
	case status == skerry.StatusDeleted:
		s.DeletedAt = now
	}
	schedule(s)
}

// after returns the time that many seconds later, or nil for 0.
func after(now time.Time, seconds int) *time.Time {
	if seconds == 0 {
		return nil
	}
	at := now.Add(time.Duration(seconds) * time.Second)
	return &at
}

// schedule derives from the state of s when its idle timeout is, and when the
// timers must look at it next. It is called before each write.
//
// A timer that cannot do its work because an operation is under way is not due:
// the write that ends the operation makes it so.
func schedule(s *store.Sandbox) {
	running := s.Status == skerry.StatusRunning
	s.Lifecycle.IdleTimeoutAt, s.DueAt = nil, time.Time{}
	if running && s.Lifecycle.LastActivityAt != nil {
		s.Lifecycle.IdleTimeoutAt = after(*s.Lifecycle.LastActivityAt, s.Lifecycle.IdleExpirySeconds)
	}
	if s.StartedAt == nil || s.Status == skerry.StatusDeleting || s.Status == skerry.StatusDeleted {
		return // being created, which has a deadline of its own, or over
	}
	if at := s.Lifecycle.TimeoutAt; at != nil && s.Lifecycle.OnTimeout == skerry.ActionDelete {
		dueBy(s, *at)
	}
	if !running || s.Operation != "" {
		return
	}
	if at := s.Lifecycle.TimeoutAt; at != nil && s.Lifecycle.OnTimeout != skerry.ActionDelete {
		dueBy(s, later(*at, s.RetryAt))
	}
	if at := s.Lifecycle.IdleTimeoutAt; at != nil {
		at := later(*at, s.RetryAt)
		if !s.IdleAskedAt.IsZero() {
			at = later(at, s.IdleAskedAt.Add(answerWithin))
		}
		dueBy(s, at)
	}
	if s.ReclaimDue && s.SpotEvictedAt != nil {
		dueBy(s, later(*s.SpotEvictedAt, s.RetryAt))
	}
}

// dueBy has the timers look at s by then at the latest.
func dueBy(s *store.Sandbox, at time.Time) {
	if s.DueAt.IsZero() || at.Before(s.DueAt) {
		s.DueAt = at
	}
}

// active records that s was used at a time, and returns false if it was used
// later.
func active(s *store.Sandbox, at time.Time) bool {
	if last := s.Lifecycle.LastActivityAt; at.IsZero() || last != nil && !at.After(*last) {
		return false
	}
	s.Lifecycle.LastActivityAt = &at
	return true
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// TouchSandbox resets the idle timer: it counts as activity. Errors:
// CodeNotFound, CodeConflict and CodeGone for a sandbox that is being deleted or
// is deleted.
func (c *Control) TouchSandbox(ctx context.Context, idOrName string) (skerry.Lifecycle, error) {
	s, err := c.operate(ctx, idOrName, skerry.Touch, func(t *txn, s *store.Sandbox) error {
		active(s, t.now)
		return t.put(ctx, s)
	})
	return s.Lifecycle, err
}

// UpdateLifecycle changes the timeouts of a sandbox; what the request omits
// stays as it is. A timeout counts from now. The change is no activity. Errors:
// as TouchSandbox, and CodeInvalid.
func (c *Control) UpdateLifecycle(ctx context.Context, idOrName string, req skerry.PolicyRequest) (skerry.Lifecycle, error) {
	s, err := c.operate(ctx, idOrName, skerry.UpdateLifecycle, func(t *txn, s *store.Sandbox) error {
		policy, err := req.Update(s.Lifecycle.LifecyclePolicy, c.cfg.Policy, s.Persistent)
		if err != nil {
			return err
		}
		setPolicy(s, policy, req.TimeoutSeconds != nil, t.now)
		if err := t.put(ctx, s); err != nil {
			return err
		}
		return t.logSandbox(ctx, skerry.EventSandboxLifecycle, s)
	})
	return s.Lifecycle, err
}

// setPolicy changes the policy of s; anchor has its timeout count from now.
func setPolicy(s *store.Sandbox, policy skerry.LifecyclePolicy, anchor bool, now time.Time) {
	atRest := s.Status == skerry.StatusStopped || s.Status == skerry.StatusPaused
	switch {
	case s.StartedAt == nil, atRest && policy.OnTimeout != skerry.ActionDelete:
		s.Lifecycle.TimeoutAt = nil // until it runs
	case anchor, s.Lifecycle.TimeoutAt == nil:
		s.Lifecycle.TimeoutAt = after(now, policy.TimeoutSeconds)
	}
	s.Lifecycle.LifecyclePolicy = policy
	s.IdleAskedAt, s.RetryAt = time.Time{}, time.Time{}
}

// fireDue does what the timers of sandboxes have to do by now, and returns when
// the next one is due, or zero.
func (c *Control) fireDue(ctx context.Context) (next time.Time, err error) {
	for {
		next = time.Time{}
		err := c.update(ctx, func(t *txn) error {
			s, err := t.NextDue(ctx)
			switch {
			case err != nil:
				return err
			case s.DueAt.After(t.now):
				next = s.DueAt
				return nil
			}
			if err := c.fireTimer(ctx, t, &s); err != nil {
				return fmt.Errorf("sandbox %s: %w", s.ID, err)
			}
			return nil
		})
		switch {
		case isNotFound(err):
			return time.Time{}, nil
		case err != nil:
			return time.Time{}, fmt.Errorf("timers of sandboxes: %w", err)
		case !next.IsZero():
			return next, nil
		}
	}
}

// fireTimer does what is due for s. It changes s so that the same is not due
// again at once.
func (c *Control) fireTimer(ctx context.Context, t *txn, s *store.Sandbox) error {
	reached := func(at *time.Time) bool { return at != nil && !at.After(t.now) }
	idle := s.Operation == "" && s.Status == skerry.StatusRunning
	switch {
	case reached(s.Lifecycle.TimeoutAt) && (idle || s.Lifecycle.OnTimeout == skerry.ActionDelete):
		why := fmt.Sprintf("its timeout of %d s has passed", s.Lifecycle.TimeoutSeconds)
		return c.timerAction(ctx, t, s, s.Lifecycle.OnTimeout, why)
	case idle && s.ReclaimDue:
		return c.beginPause(ctx, t, s)
	case idle && reached(s.Lifecycle.IdleTimeoutAt):
		return c.askActivity(ctx, t, s)
	default: // nothing is due any more
		return t.write(ctx, s)
	}
}

// timerAction deletes, stops or pauses a sandbox.
func (c *Control) timerAction(ctx context.Context, t *txn, s *store.Sandbox, action skerry.TimerAction, why string) error {
	c.logger.Info("timer fires", "sandbox_id", s.ID, "action", action, "why", why)
	var err error
	switch action {
	case skerry.ActionStop:
		err = c.beginStop(ctx, t, s)
	case skerry.ActionPause:
		err = c.beginPause(ctx, t, s)
	default:
		s.Reason = why
		err = c.deleteSandbox(ctx, t, s)
	}
	if err != nil {
		return err
	}
	return t.logSandbox(ctx, skerry.EventSandboxLifecycle, s)
}
