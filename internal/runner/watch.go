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
		r.mu.Lock()
		s.failed = reason
		r.mu.Unlock()
		r.log.Warn("sandbox failed", "sandbox_id", s.id, "machine_id", s.machine, "reason", reason)
		if err := r.clearMachine(ctx, s.machine, true); err != nil {
			r.log.Error("clear failed machine", "sandbox_id", s.id, "machine_id", s.machine, "err", err)
		}
		r.report(ctx, s, skerry.StatusFailed, func(ev *bus.Event) { ev.Reason = reason })
	})
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
