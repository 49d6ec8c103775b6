package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/shim"
)

// start gives a stopped or paused sandbox a new machine: a paused one goes on
// with its memory. If that does not work the sandbox is what it was, or, once
// the memory no longer belongs to the disk, stopped.
func (r *Runner) start(ctx context.Context, c bus.Command) error {
	if c.Job == nil || !c.MachineID.Valid() {
		r.log.Error("malformed start", "sandbox_id", c.SandboxID)
		return nil
	}
	return r.inTurn(ctx, c, func(ctx context.Context, s *sandbox) error {
		if r.live(s, c.MachineID) {
			r.report(ctx, s, skerry.StatusRunning, nil)
			return nil
		}
		switch {
		case s.kept == "":
			return nil // is running in another machine: the command is late
		case s.machine == c.MachineID:
			r.reportKept(ctx, s) // this start was taken back: the command has come again
			return nil
		}
		err := r.startAgain(ctx, s, c)
		if err := r.clearMachine(ctx, s.machine, false); err != nil { // its logs
			r.log.Warn("remove logs of the last machine", "machine_id", s.machine, "err", err)
		}
		return err
	})
}

// startAgain replaces s, which has no machine, by its next life.
func (r *Runner) startAgain(ctx context.Context, s *sandbox, c bus.Command) error {
	next := &sandbox{id: s.id, machine: c.MachineID, res: c.Job.Resources, memMiB: c.Job.Resources.MemoryMiB, rec: s.rec,
		cancel: func() {}, settled: make(chan struct{})}
	if err := r.replace(s, next); err != nil {
		return r.startFailed(ctx, s, c.MachineID, err)
	}
	started, err := r.startKept(ctx, s.kept, next, c)
	next.err = err
	close(next.settled)
	if err != nil {
		return r.startFailed(ctx, next, c.MachineID, err)
	}
	r.report(ctx, next, skerry.StatusRunning, func(ev *bus.Event) { ev.Unenforced, ev.Reason = started.unenforced, started.reason })
	r.watch(next)
	return nil
}

// started is what is said of a sandbox that was started.
type started struct {
	unenforced []string
	reason     string // why it did not go on with its memory, or ""
}

// startKept makes the machine and lets it become the sandbox.
func (r *Runner) startKept(ctx context.Context, kept skerry.Status, s *sandbox, c bus.Command) (done started, err error) {
	release, err := r.startToken(ctx)
	if err != nil {
		return done, err
	}
	defer release()
	if err := r.emptyMachineDir(ctx, s.machine); err != nil {
		return done, err
	}
	r.step("start.directory")
	fromMemory := kept == skerry.StatusPaused
	if fromMemory {
		err = r.startPaused(ctx, s)
		if c.Boot && (errors.Is(err, errUnfit) || errors.Is(err, errDamaged)) {
			r.log.Warn("saved memory is dropped, the sandbox boots", "sandbox_id", s.id, "err", err)
			fromMemory, done.reason = false, fmt.Sprintf("its saved memory was dropped and it was started from its disk: %v", err)
			err = r.emptyMachineDir(ctx, s.machine)
		}
	}
	if err == nil && !fromMemory {
		err = r.startStopped(ctx, s, c.Job)
	}
	if err != nil {
		return done, err
	}
	r.step("start.started")
	// From here on the disk may change, so that the saved memory, if there
	// was one, is of no use any more.
	if err := r.setRecord(s, skerry.StatusRunning, s.machine, ""); err != nil {
		return done, err
	}
	r.step("start.recorded")
	if err := r.becomeAgain(ctx, s, c.Job, fromMemory); err != nil {
		return done, err
	}
	r.step("start.activated")
	if err := r.dropMemory(s.id); err != nil {
		return done, err
	}
	done.unenforced, err = r.enforce(s)
	return done, err
}

// emptyMachineDir makes the directory of a machine, without what an earlier try
// has left of it.
func (r *Runner) emptyMachineDir(ctx context.Context, id skerry.MachineID) error {
	if err := r.clearMachine(ctx, id, false); err != nil {
		return err
	}
	return r.makeMachineDir(id)
}

// startPaused restores the saved memory. Errors: errUnfit, errDamaged when it
// will never be of use here; all others may pass.
func (r *Runner) startPaused(ctx context.Context, s *sandbox) error {
	sv, err := openSaved(r.memoryDir(s.id))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", errDamaged, err)
	}
	if err == nil {
		s.proc, err = r.startSaved(ctx, s, sv)
	}
	if err == nil {
		err = awaitReady(ctx, s.proc)
	}
	if err != nil {
		return fmt.Errorf("restore memory: %w", err)
	}
	return nil
}

// startStopped starts a machine on the sandbox's disk.
func (r *Runner) startStopped(ctx context.Context, s *sandbox, job *bus.CreateJob) error {
	p, err := r.plan(ctx, job.Digest, job.Resources, restart)
	if err != nil {
		return err
	}
	s.proc, err = r.startMachine(ctx, s.machine, p, diskPlan{path: r.scratchPath(s), kept: true}, loaded)
	if err != nil {
		return err
	}
	return awaitReady(ctx, s.proc)
}

// becomeAgain lets the machine become the sandbox that it was.
func (r *Runner) becomeAgain(ctx context.Context, s *sandbox, job *bus.CreateJob, fromMemory bool) error {
	if fromMemory {
		return s.proc.Client.Renew(ctx, shim.RenewRequest{SandboxID: s.id, MemoryMiB: s.res.MemoryMiB, MemoryLimitMiB: memoryLimitMiB(s.res)})
	}
	_, err := s.proc.Client.Activate(ctx, shim.ActivateRequest{SandboxID: s.id, Activation: activation(s.id, *job), MemoryLimitMiB: memoryLimitMiB(job.Resources)})
	return err
}

// startFailed takes a start back. The sandbox is what its record says, or
// stopped if the record says that it ran.
func (r *Runner) startFailed(ctx context.Context, s *sandbox, machine skerry.MachineID, cause error) error {
	if ctx.Err() != nil {
		// This process ends, or the sandbox is being deleted. The command
		// comes again unless it is of no use any more.
		ctx = context.WithoutCancel(ctx)
	}
	status := s.rec.Status
	if status != skerry.StatusPaused {
		status = skerry.StatusStopped
	}
	if err := r.clearMachine(ctx, machine, true); err != nil {
		r.log.Error("undo start", "sandbox_id", s.id, "machine_id", machine, "err", err)
	}
	reason := "it could not be started: " + reasonFor(skerry.Start, cause)
	r.noteRecord(s, status, machine, reason)
	next := keptSandbox(s.rec)
	if err := r.replace(s, next); err != nil {
		return err
	}
	r.log.Warn("start failed", "sandbox_id", s.id, "machine_id", machine, "err", cause)
	r.reportKept(ctx, next)
	return nil
}
