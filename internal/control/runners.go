package control

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// runnerIDPattern keeps identifiers of runners usable in subjects of the bus.
var runnerIDPattern = regexp.MustCompile(`^run_[A-Za-z0-9_-]{1,64}$`)

func validRunnerID(id skerry.RunnerID) bool { return runnerIDPattern.MatchString(string(id)) }

// presence remembers when runners were heard of, on this process's clock.
type presence struct {
	mu   sync.Mutex
	seen map[skerry.RunnerID]time.Time // with their monotonic reading; guarded by mu
}

func newPresence() *presence { return &presence{seen: map[skerry.RunnerID]time.Time{}} }

func (p *presence) saw(id skerry.RunnerID, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[id] = at
}

func (p *presence) forget(id skerry.RunnerID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.seen, id)
}

// online reports whether a runner was heard of lately. One that this process has
// not heard of yet, but that was not given up, gets the benefit of the doubt:
// the process has just started.
func (p *presence) online(r store.Runner, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.seen[r.ID]
	if !ok {
		return !r.Gone
	}
	return now.Sub(at) < offlineAfter
}

// silences returns for how long each runner was not heard of.
func (p *presence) silences(now time.Time) map[skerry.RunnerID]time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	silences := make(map[skerry.RunnerID]time.Duration, len(p.seen))
	for id, at := range p.seen {
		silences[id] = now.Sub(at)
	}
	return silences
}

// Runners returns all runners that ever reported, with what they last said.
func (c *Control) Runners(ctx context.Context) ([]skerry.Runner, error) {
	var rows []store.Runner
	err := c.store.View(ctx, func(r store.Reader) (err error) {
		rows, err = r.Runners(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list runners: %w", err)
	}
	now := c.clock.Now()
	runners := make([]skerry.Runner, 0, len(rows))
	for _, row := range rows {
		row.Online = c.runners.online(row, now)
		runners = append(runners, row.Runner)
	}
	return runners, nil
}

// heartbeat records that a runner lives. One that was given up is asked for a
// report, so that what it still has can be removed.
func (c *Control) heartbeat(ctx context.Context, h bus.Heartbeat) error {
	if !validRunnerID(h.Runner.ID) {
		return fmt.Errorf("heartbeat of runner with malformed id %q", h.Runner.ID)
	}
	var current bool
	err := c.updateLazily(ctx, func(t *txn) (err error) {
		var wasGone bool
		wasGone, current, err = c.recordHeartbeat(ctx, t, h)
		if err == nil && wasGone && current {
			return t.command(ctx, h.Runner.ID, bus.Command{Kind: bus.CommandReport})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("heartbeat of %s: %w", h.Runner.ID, err)
	}
	if current {
		c.sawRunner(h)
	}
	return nil
}

func (c *Control) sawRunner(h bus.Heartbeat) {
	c.runners.saw(h.Runner.ID, c.clock.Now())
	c.timers.by(c.now().Add(c.cfg.LostAfter))
}

// recordHeartbeat writes the row of a runner. A message of an earlier start of
// the runner than is known changes nothing: current is false.
func (c *Control) recordHeartbeat(ctx context.Context, t *txn, h bus.Heartbeat) (wasGone, current bool, err error) {
	row, err := t.Runner(ctx, h.Runner.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return false, false, err
	}
	if h.Epoch < row.Epoch {
		return false, false, nil
	}
	wasGone = row.Gone
	row = store.Runner{Runner: h.Runner, Region: h.Region, Epoch: h.Epoch}
	row.LastSeen, row.Online = t.now, false // online is not for the store to say
	return wasGone, true, t.PutRunner(ctx, row)
}

// recoverRunners gives runners that are known time to be heard of, and asks
// them for a report.
func (c *Control) recoverRunners(ctx context.Context) error {
	return c.update(ctx, func(t *txn) error {
		runners, err := t.Runners(ctx)
		if err != nil {
			return err
		}
		for _, r := range runners {
			if r.Gone {
				continue
			}
			c.runners.saw(r.ID, c.clock.Now())
			if err := t.command(ctx, r.ID, bus.Command{Kind: bus.CommandReport}); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkRunner refuses when no runner of the region is online.
func (c *Control) checkRunner(ctx context.Context, r store.Reader) error {
	runners, err := r.Runners(ctx)
	if err != nil {
		return err
	}
	now := c.clock.Now()
	if !slices.ContainsFunc(runners, func(r store.Runner) bool { return r.Region == c.cfg.Region && c.runners.online(r, now) }) {
		return c.noRunner()
	}
	return nil
}

func (c *Control) noRunner() error {
	return skerry.Errorf(skerry.CodeUnavailable, "no runner is online in region %s", c.cfg.Region)
}

// chooseRunner returns a runner of the region to make an image: one that is
// online if there is one, else one that may come back.
func (c *Control) chooseRunner(ctx context.Context, r store.Reader) (skerry.RunnerID, error) {
	runners, err := r.Runners(ctx)
	if err != nil {
		return "", err
	}
	runners = slices.DeleteFunc(runners, func(r store.Runner) bool { return r.Gone || r.Region != c.cfg.Region })
	if len(runners) == 0 {
		return "", c.noRunner()
	}
	now := c.clock.Now()
	if i := slices.IndexFunc(runners, func(r store.Runner) bool { return c.runners.online(r, now) }); i >= 0 {
		return runners[i].ID, nil
	}
	return runners[0].ID, nil
}
