package runner

import (
	"context"
	"errors"
	"fmt"
	"os"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/shim"
)

// shutdownGraceMillis is between TERM and KILL of a sandbox's processes.
const shutdownGraceMillis = 5000

// inTurn runs an operation on a persistent sandbox when nothing else works on
// it. A sandbox that is not here, or never became one, has no operations; the
// control plane hears of that by other ways.
func (r *Runner) inTurn(ctx context.Context, c bus.Command, run func(context.Context, *sandbox) error) error {
	ctx, release, err := r.turns.take(ctx, c.SandboxID)
	if err != nil {
		return err
	}
	defer release()
	s := r.current(c.SandboxID)
	if s == nil {
		r.log.Warn("operation on an unknown sandbox", "kind", c.Kind, "sandbox_id", c.SandboxID)
		return nil
	}
	select {
	case <-s.settled:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err = run(ctx, s)
	if err != nil && ctx.Err() == nil {
		r.log.Error("operation", "kind", c.Kind, "sandbox_id", c.SandboxID, "err", err)
	}
	return err
}

// live reports whether s runs in the machine a command is for.
func (r *Runner) live(s *sandbox, machine skerry.MachineID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.kept == "" && s.machine == machine && s.failed == "" && s.err == nil && s.proc != nil
}

// stop ends the machine of a persistent sandbox and keeps its disk.
func (r *Runner) stop(ctx context.Context, c bus.Command) error {
	return r.inTurn(ctx, c, func(ctx context.Context, s *sandbox) error {
		if s.kept == skerry.StatusStopped {
			r.reportKept(ctx, s)
			return nil
		}
		if !r.live(s, c.MachineID) || s.rec == nil {
			return nil
		}
		r.endWatch(s)
		rep, err := s.proc.Client.Shutdown(ctx, shim.ShutdownRequest{GraceMillis: shutdownGraceMillis})
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx) // the shim goes on with it; the next try finds it done
			}
			rep.Reason = fmt.Sprintf("its machine was gone before it was shut down: %v", err)
		}
		r.step("stop.shut_down")
		r.noteRecord(s, skerry.StatusStopped, s.machine, rep.Reason)
		return r.keep(ctx, s)
	})
}

// pause saves the memory of a persistent sandbox and ends its machine.
func (r *Runner) pause(ctx context.Context, c bus.Command) error {
	return r.inTurn(ctx, c, func(ctx context.Context, s *sandbox) error {
		if s.kept == skerry.StatusPaused {
			r.reportKept(ctx, s)
			return nil
		}
		if !r.live(s, c.MachineID) || s.rec == nil {
			return nil
		}
		r.endWatch(s)
		err := r.saveMemory(ctx, s)
		if err == nil {
			r.step("pause.saved")
			err = r.setRecord(s, skerry.StatusPaused, s.machine, "")
		}
		if err != nil {
			return r.unpause(ctx, s, err)
		}
		return r.keep(ctx, s)
	})
}

// saveMemory saves the memory of a sandbox beside its disk, which is flushed so
// that the two still belong together after a power failure.
func (r *Runner) saveMemory(ctx context.Context, s *sandbox) error {
	dir := r.memoryDir(s.id)
	tmp := dir + ".new"
	if err := errors.Join(r.dropMemory(s.id), os.RemoveAll(tmp)); err != nil {
		return err
	}
	sv, err := r.save(ctx, s, tmp, shim.SaveRequest{Final: true})
	if err == nil {
		err = sv.write()
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	if err := errors.Join(os.Rename(tmp, dir), syncFiles(r.sandboxDir(s.id))); err != nil {
		return errors.Join(err, r.dropMemory(s.id))
	}
	return nil
}

// unpause lets a sandbox run on that could not be paused.
func (r *Runner) unpause(ctx context.Context, s *sandbox, cause error) error {
	ctx = context.WithoutCancel(ctx)
	st, err := s.proc.Client.Status(ctx)
	if err == nil && st.Phase == shim.PhaseSaved {
		if err = s.proc.Client.Resume(ctx); err == nil {
			st.Phase = shim.PhaseRunning
		}
	}
	if err != nil || !st.Phase.Live() {
		r.noteRecord(s, skerry.StatusStopped, s.machine, "its machine ended while it was being paused: "+reasonFor(skerry.Pause, errors.Join(cause, err)))
		return r.keep(ctx, s)
	}
	if err := r.dropMemory(s.id); err != nil {
		r.log.Error("drop saved memory", "sandbox_id", s.id, "err", err)
	}
	r.watch(s)
	r.report(ctx, s, skerry.StatusRunning, func(ev *bus.Event) { ev.Reason = "it could not be paused: " + reasonFor(skerry.Pause, cause) })
	return nil
}

// keep ends the machine of a persistent sandbox, which is then what its record
// says: stopped or paused.
func (r *Runner) keep(ctx context.Context, s *sandbox) error {
	r.step("keep.recorded")
	next := keptSandbox(s.rec)
	if err := r.replace(s, next); err != nil {
		return err
	}
	s.cancel()
	if err := r.clearMachine(ctx, s.machine, true); err != nil {
		r.log.Error("clear machine", "sandbox_id", s.id, "machine_id", s.machine, "err", err)
	}
	if next.kept == skerry.StatusStopped {
		if err := r.dropMemory(s.id); err != nil {
			r.log.Error("drop saved memory", "sandbox_id", s.id, "err", err)
		}
	}
	r.reportKept(ctx, next)
	r.log.Info("sandbox kept", "sandbox_id", s.id, "status", next.kept, "reason", s.rec.Reason)
	return nil
}

// keptSandbox is a sandbox without a machine.
func keptSandbox(rec *record) *sandbox {
	s := &sandbox{id: rec.SandboxID, machine: rec.MachineID, rec: rec, kept: rec.Status,
		cancel: func() {}, settled: make(chan struct{})}
	close(s.settled)
	return s
}

func (r *Runner) reportKept(ctx context.Context, s *sandbox) {
	r.report(ctx, s, s.kept, func(ev *bus.Event) { ev.Reason = s.rec.Reason })
}

// dropMemory removes the saved memory of a sandbox.
func (r *Runner) dropMemory(id skerry.SandboxID) error {
	dir := r.memoryDir(id)
	r.memories.drop(dir)
	return os.RemoveAll(dir)
}

// endWatch stops to take the end of the machine for a failure.
func (r *Runner) endWatch(s *sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.cancel()
}
