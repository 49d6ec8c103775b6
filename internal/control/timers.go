package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

// timerRetry is the pause after an error of the store.
const timerRetry = time.Second

// lastWrite bounds what is written at the end of Run.
const lastWrite = 5 * time.Second

// runTimers does what is due and sleeps until the next is. What is due when
// follows from the store alone, so a restart neither forgets nor repeats any.
func (c *Control) runTimers(ctx context.Context) error {
	for ctx.Err() == nil {
		next, err := c.fireTimers(ctx)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			c.logger.Error("timers", "err", err)
			next = c.now().Add(timerRetry)
		}
		c.timers.sleep(ctx, next)
	}
	// What is not written yet is not lost with an orderly end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
	defer cancel()
	if _, err := c.writeActivityUntil(ctx, c.now()); err != nil {
		c.logger.Error("timers", "err", err)
	}
	return nil
}

// fireTimers returns when it is to be called again at the latest.
func (c *Control) fireTimers(ctx context.Context) (next time.Time, err error) {
	next = c.now().Add(maxSleep)
	for _, fire := range []func(context.Context) (time.Time, error){
		c.writeActivity, c.fireCreateDeadlines, c.fireDue, c.expireImages, c.prune, c.pruneEvents, c.giveUpRunners} {
		at, err := fire(ctx)
		if err != nil {
			return time.Time{}, err
		}
		if !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	return next, nil
}

// fireCreateDeadlines deletes the sandboxes that do not run by their deadline,
// and returns the next deadline, or zero.
func (c *Control) fireCreateDeadlines(ctx context.Context) (next time.Time, err error) {
	for {
		var s store.Sandbox
		err := c.update(ctx, func(t *txn) (err error) {
			if s, err = t.NextCreateDeadline(ctx, creation[:len(creation)-1]); err != nil {
				return err
			}
			if s.CreateDeadline.After(t.now) {
				return nil
			}
			s.Reason = fmt.Sprintf("was %s, not running, at its create deadline", s.Status)
			return c.deleteSandbox(ctx, t, &s)
		})
		switch {
		case errors.Is(err, store.ErrNotFound):
			return time.Time{}, nil
		case err != nil:
			return time.Time{}, fmt.Errorf("create deadline: %w", err)
		case s.Status != skerry.StatusDeleting && s.Status != skerry.StatusDeleted:
			return s.CreateDeadline, nil
		}
	}
}

// prune forgets sandboxes that were deleted long ago, and returns when the next
// is to be forgotten, or zero.
func (c *Control) prune(ctx context.Context) (next time.Time, err error) {
	err = c.update(ctx, func(t *txn) error {
		if _, err := t.PruneSandboxes(ctx, t.now.Add(-c.cfg.Retention)); err != nil {
			return err
		}
		oldest, err := t.OldestDeleted(ctx)
		switch {
		case errors.Is(err, store.ErrNotFound):
			next = time.Time{}
			return nil
		case err != nil:
			return err
		}
		next = oldest.Add(c.cfg.Retention)
		return nil
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("forget deleted sandboxes: %w", err)
	}
	return next, nil
}

// giveUpRunners takes runners that were silent for Config.LostAfter for gone,
// with all they had, and returns when the next one is due, or zero. The time is
// taken from this process's own clock and start: that the control plane was
// down, or the machine suspended, is no silence of a runner.
func (c *Control) giveUpRunners(ctx context.Context) (next time.Time, err error) {
	for id, silent := range c.runners.silences(c.clock.Now()) {
		left := c.cfg.LostAfter - silent
		if left > 0 {
			if at := c.now().Add(left); next.IsZero() || at.Before(next) {
				next = at
			}
			continue
		}
		if err := c.giveUpRunner(ctx, id); err != nil {
			return time.Time{}, fmt.Errorf("give up runner %s: %w", id, err)
		}
		c.runners.forget(id)
		c.logger.Warn("runner is gone", "runner_id", id, "silent_ms", silent.Milliseconds())
	}
	return next, nil
}

func (c *Control) giveUpRunner(ctx context.Context, id skerry.RunnerID) error {
	why := fmt.Sprintf("its runner was silent for %v", c.cfg.LostAfter)
	return c.update(ctx, func(t *txn) error {
		runner, err := t.Runner(ctx, id)
		if err != nil {
			return err
		}
		runner.Gone = true
		if err := t.PutRunner(ctx, runner); err != nil {
			return err
		}
		sandboxes, err := t.SandboxesOnRunner(ctx, id)
		if err != nil {
			return err
		}
		for _, s := range sandboxes {
			// Read again: a copy may have failed with its source.
			if s, err = t.Sandbox(ctx, s.ID); err != nil {
				return err
			}
			switch {
			case s.Status == skerry.StatusDeleting:
				err = c.end(ctx, t, &s, skerry.StatusDeleted)
			case waitsForRunner(s) && s.ForkedFrom != "":
				err = t.fail(ctx, &s, skerry.StatusFailed, forkFailure(s.ForkedFrom, why))
			case s.Status.CanBecome(skerry.StatusLost, s.Persistent):
				err = t.fail(ctx, &s, skerry.StatusLost, why)
			}
			if err != nil {
				return err
			}
		}
		if err := failUnfinishedSnapshots(ctx, t, id, why); err != nil {
			return err
		}
		return failUnfinishedImages(ctx, t, id, why)
	})
}
