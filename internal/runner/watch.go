package runner

import (
	"context"
	"fmt"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/shim"
)

// watch follows the shim of a running sandbox in the background and reports
// the end of its machine, or of the shim itself.
func (r *Runner) watch(s *sandbox) {
	ctx, cancel := context.WithCancel(r.life)
	r.setCancel(s, cancel)
	r.work.Go(func() {
		defer cancel()
		reason := r.awaitFailure(ctx, s)
		if ctx.Err() != nil {
			return
		}
		r.machineEnded(r.life, s, reason)
	})
}

// machineEnded settles the end of a machine that nobody asked for. A persistent
// sandbox still has its disk, so it is stopped; another has failed.
func (r *Runner) machineEnded(ctx context.Context, s *sandbox, reason string) {
	ctx, release, err := r.turns.take(ctx, s.id)
	if err != nil {
		return // this process ends; its successor settles it
	}
	defer release()
	if r.current(s.id) != s || s.kept != "" {
		return // was stopped, or deleted, meanwhile
	}
	r.log.Warn("machine ended", "sandbox_id", s.id, "machine_id", s.machine, "reason", reason)
	if s.rec != nil {
		r.noteRecord(s, skerry.StatusStopped, s.machine, reason)
		if err := r.keep(ctx, s); err != nil {
			r.log.Error("keep sandbox", "sandbox_id", s.id, "err", err)
		}
		return
	}
	r.mu.Lock()
	s.failed = reason
	r.mu.Unlock()
	if err := r.clearMachine(ctx, s.machine, true); err != nil {
		r.log.Error("clear failed machine", "sandbox_id", s.id, "machine_id", s.machine, "err", err)
	}
	r.report(ctx, s, skerry.StatusFailed, func(ev *bus.Event) { ev.Reason = reason })
}

// current is the present life of a sandbox, or nil.
func (r *Runner) current(id skerry.SandboxID) *sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sandboxes[id]
}

// awaitFailure blocks until the machine is over and says why. Meanwhile it tells
// when the machine stands still for want of room on this host's disk, and when
// it goes on.
func (r *Runner) awaitFailure(ctx context.Context, s *sandbox) string {
	proc, known := s.proc, shim.PhaseRunning
	if r.isFull(s) {
		known = shim.PhaseFull
	}
	for {
		st, err := proc.Client.WaitChange(ctx, known)
		switch {
		case ctx.Err() != nil:
			return ""
		case err == nil && st.Phase.Live():
			known = st.Phase
			r.noteFull(ctx, s, known == shim.PhaseFull)
			continue
		case err == nil && st.Phase == shim.PhaseFailed:
			return st.Error
		case err == nil && st.Phase == shim.PhaseStopped:
			return "" // in order: a stop that this process's predecessor has begun
		case err == nil:
			return fmt.Sprintf("the shim went back to %q", st.Phase)
		case !proc.Alive():
			return "the shim ended unexpectedly"
		}
		// The shim lives but did not answer: ask again, not in a tight loop.
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// noteFull notes and tells whether a running sandbox stands still because this
// host's disk is full.
func (r *Runner) noteFull(ctx context.Context, s *sandbox, full bool) {
	r.mu.Lock()
	s.full = full
	r.mu.Unlock()
	reason := ""
	if full {
		reason = bus.ReasonFull
		r.cfg.Metrics.stoodStill()
		r.log.Warn("the disk is full, the sandbox stands still", "sandbox_id", s.id, "machine_id", s.machine)
	} else {
		r.log.Info("the disk has room, the sandbox goes on", "sandbox_id", s.id, "machine_id", s.machine)
	}
	r.report(ctx, s, skerry.StatusRunning, func(ev *bus.Event) { ev.Reason = reason })
}

func (r *Runner) isFull(s *sandbox) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.full
}
