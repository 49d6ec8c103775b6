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
		reason := r.awaitFailure(ctx, s.proc)
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

// awaitFailure blocks until the machine is over and says why.
func (r *Runner) awaitFailure(ctx context.Context, proc *shim.Process) string {
	for {
		st, err := proc.Client.WaitChange(ctx, shim.PhaseRunning)
		switch {
		case ctx.Err() != nil:
			return ""
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
