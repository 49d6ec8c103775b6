package runner

import (
	"context"
	"time"

	"skerry.dev/skerry/internal/bus"
)

// statsTimeout bounds the question to a guest.
const statsTimeout = 10 * time.Second

// activity tells the control plane whether a sandbox is in use. Of one that
// does not run, or does not answer, it tells nothing: an idle timer must not
// fire on a guess.
func (r *Runner) activity(ctx context.Context, c bus.Command) error {
	s := r.current(c.SandboxID)
	if s == nil || !r.live(s, c.MachineID) {
		return nil
	}
	ask, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	stats, err := s.proc.Client.Stats(ask)
	if err != nil {
		r.log.Warn("ask for activity", "sandbox_id", s.id, "err", err)
		return nil
	}
	now := time.Now()
	ev := bus.Event{Kind: bus.EventActivity, RunnerID: r.cfg.ID, Time: now, SandboxID: s.id, MachineID: s.machine, Busy: stats.Busy}
	if !stats.Busy {
		ev.LastActive = now.Add(-time.Duration(stats.IdleMillis) * time.Millisecond)
	}
	return r.cfg.Bus.PublishEvent(ctx, ev)
}
