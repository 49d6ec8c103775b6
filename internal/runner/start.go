package runner

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

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
		if s.kept == "" {
			return nil // is running in another machine: the command is late
		}
		defer r.dropLogs(ctx, s.machine, c.MachineID)
		next := &sandbox{id: s.id, machine: c.MachineID, res: c.Job.Resources, memMiB: c.Job.Resources.MemoryMiB, rec: s.rec,
			cancel: func() {}, settled: make(chan struct{})}
		if err := r.replace(s, next); err != nil {
			return r.startFailed(ctx, s, c.MachineID, err)
		}
		unenforced, err := r.startKept(ctx, s.kept, next, c)
		next.err = err
		close(next.settled)
		if err != nil {
			return r.startFailed(ctx, next, c.MachineID, err)
		}
		r.report(ctx, next, skerry.StatusRunning, func(ev *bus.Event) { ev.Unenforced = unenforced })
		r.watch(next)
		return nil
	})
}

// dropLogs removes what is left of a sandbox's last machine. However the start of
// the next one ends, the record then names that, and nobody else knows of the last.
func (r *Runner) dropLogs(ctx context.Context, last, next skerry.MachineID) {
	if last == next {
		return // the start came again
	}
	if err := r.clearMachine(context.WithoutCancel(ctx), last, false); err != nil {
		r.log.Warn("remove logs of the last machine", "machine_id", last, "err", err)
	}
}

// startKept makes the machine and lets it become the sandbox.
func (r *Runner) startKept(ctx context.Context, kept skerry.Status, s *sandbox, c bus.Command) (unenforced []string, err error) {
	release, err := r.startToken(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := r.clearMachine(ctx, s.machine, false); err != nil { // of an earlier try
		return nil, err
	}
	if err := r.makeMachineDir(s.machine); err != nil {
		return nil, err
	}
	r.step("start.directory")
	var sv *saved
	if kept == skerry.StatusPaused {
		if sv, err = r.startPaused(ctx, s, c.Boot); err != nil {
			return nil, err
		}
	}
	if sv == nil {
		if err := r.startStopped(ctx, s, c.Job); err != nil {
			return nil, err
		}
	}
	r.step("start.started")
	// From here on the disk may change, so that the saved memory, if there
	// was one, is of no use any more.
	if err := r.setRecord(s, skerry.StatusRunning, s.machine, ""); err != nil {
		return nil, err
	}
	r.step("start.recorded")
	if err := r.becomeAgain(ctx, s, c.Job, sv != nil); err != nil {
		return nil, err
	}
	r.step("start.activated")
	if err := r.dropMemory(s.id); err != nil {
		return nil, err
	}
	return r.enforce(s)
}

// startPaused restores the saved memory. It returns nil where the memory does
// not fit this host and the sandbox may be booted instead.
func (r *Runner) startPaused(ctx context.Context, s *sandbox, mayBoot bool) (*saved, error) {
	sv, err := openSaved(filepath.Join(r.sandboxDir(s.id), memoryDir))
	if err == nil {
		s.proc, err = r.startSaved(ctx, s, sv)
	}
	if err == nil {
		err = awaitReady(ctx, s.proc)
	}
	if errors.Is(err, errUnfit) && mayBoot {
		r.log.Warn("saved memory is dropped, the sandbox boots", "sandbox_id", s.id, "err", err)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("restore memory: %w", err)
	}
	return sv, nil
}

// startStopped starts a machine on the sandbox's disk.
func (r *Runner) startStopped(ctx context.Context, s *sandbox, job *bus.CreateJob) error {
	p, err := r.plan(ctx, job.Digest, job.Resources, restart)
	if err != nil {
		return err
	}
	s.proc, err = r.startMachine(ctx, s.machine, p, diskPlan{path: r.scratchPath(s), kept: true}, false)
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
	reason := "it could not be started: " + reasonFor(cause)
	if err := r.setRecord(s, status, machine, reason); err != nil {
		return errors.Join(cause, err)
	}
	next := keptSandbox(s.rec)
	if err := r.replace(s, next); err != nil {
		return err
	}
	r.log.Warn("start failed", "sandbox_id", s.id, "machine_id", machine, "err", cause)
	r.reportKept(ctx, next)
	return nil
}
