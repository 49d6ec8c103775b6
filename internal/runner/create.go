package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/shim"
)

// handleJob claims a sandbox and makes it in the background, of its image or of
// what was saved. It returns nil when the job is off the queue for good:
// claimed, or refused; what is claimed is this runner's to settle, also after a
// crash, see adopt. over is called once nothing more is done for the job.
func (r *Runner) handleJob(ctx context.Context, job bus.CreateJob, from *saved, over func()) error {
	start := time.Now()
	s, fault := r.reserve(job, from != nil)
	if s == nil {
		over()
		return fault
	}
	r.step("create.reserved")
	endBusy := r.pool.begin()
	w := work{job: job, from: from}
	if fault == nil {
		fault = r.planWork(ctx, &w)
	}
	ok, err := r.claim(ctx, s, &w)
	if !ok {
		endBusy(plan{}, false)
		close(s.settled)
		r.forget(s)
		over()
		return err
	}
	r.step("create.claimed")
	lifeCtx, cancel := context.WithCancel(r.life)
	r.setCancel(s, cancel)
	r.work.Go(func() {
		defer over()
		r.settle(lifeCtx, s, w, fault, start)
		made := s.err == nil && from == nil
		if made {
			r.zygotes.keep(w.plan)
		}
		endBusy(w.plan, made && !job.Persistent)
	})
	return nil
}

// work is a sandbox to be made: of a machine of the pool, by a plan, or from a
// saved memory.
type work struct {
	job    bus.CreateJob
	pooled *pooled // or nil
	plan   plan
	from   *saved // or nil
}

// planWork looks up what the machine needs.
func (r *Runner) planWork(ctx context.Context, w *work) (err error) {
	if err := checkDisk(w.job.Resources, diskFreeMiB(r.cfg.Dir)); err != nil {
		return err
	}
	switch {
	case w.from != nil && w.from.fault != nil:
		return w.from.fault
	case w.from != nil && w.from.diskOnly:
		w.plan, err = r.plan(ctx, w.job.Digest, w.job.Resources, restart)
	case w.from != nil:
	case w.job.Persistent:
		w.plan, err = r.plan(ctx, w.job.Digest, w.job.Resources, persistent)
	default:
		w.plan, err = r.plan(ctx, w.job.Digest, w.job.Resources, ephemeral)
	}
	return err
}

// settle makes a claimed sandbox and reports how that went.
func (r *Runner) settle(ctx context.Context, s *sandbox, w work, err error, start time.Time) {
	r.report(ctx, s, skerry.StatusBooting, nil)
	var done made
	if err == nil {
		done, err = r.create(ctx, s, w)
	}
	s.err = err
	close(s.settled)
	log := r.log.With("sandbox_id", s.id, "machine_id", s.machine, "dur_ms", time.Since(start).Milliseconds())
	if err != nil {
		r.cfg.Metrics.createFailed()
		log.Warn("create failed", "err", err)
		r.report(ctx, s, skerry.StatusFailed, func(ev *bus.Event) { ev.Reason = reasonFor("create", err) })
		return
	}
	r.report(ctx, s, skerry.StatusRunning, func(ev *bus.Event) {
		ev.Unenforced, ev.User = done.unenforced, done.user
	})
	r.cfg.Metrics.created(time.Since(start), done.fromPool)
	log.Info("sandbox running", "pool", done.fromPool, "steps", done.steps)
	r.watch(s)
}

// reserve records the sandbox and sets its memory aside. Where no room is left it
// returns errNoRoom, and with mine, for a job that no other runner can do, the
// sandbox all the same, to be failed.
func (r *Runner) reserve(job bus.CreateJob, mine bool) (*sandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.sandboxes[job.SandboxID]; ok {
		if mine || s.machine != "" {
			return nil, nil // the command, or a job that was claimed, came again
		}
		return nil, fmt.Errorf("sandbox %s is here already", job.SandboxID)
	}
	s := &sandbox{id: job.SandboxID, res: job.Resources, memMiB: job.Resources.MemoryMiB, cancel: func() {}, settled: make(chan struct{})}
	err := r.guaranteeLocked(r.reserved+s.memMiB, false)
	if err != nil {
		if !mine {
			return nil, err
		}
		s.memMiB = 0
	}
	r.sandboxes[s.id] = s
	return s, err
}

// replace puts the next life of a sandbox in the place of the last one, with the
// memory that is set aside for it. It fails with errNoRoom if there is none.
func (r *Runner) replace(s, next *sandbox) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sandboxes[s.id] != s {
		return fmt.Errorf("sandbox %s has changed meanwhile", s.id)
	}
	if err := r.guaranteeLocked(r.reserved-s.memMiB+next.memMiB, next.memMiB <= s.memMiB); err != nil {
		return err
	}
	r.sandboxes[s.id] = next
	return nil
}

// forget drops a sandbox of which nothing is left on this host.
func (r *Runner) forget(s *sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sandboxes[s.id] == s {
		delete(r.sandboxes, s.id)
		r.guaranteeLocked(r.reserved-s.memMiB, true)
	}
	s.cancel()
}

func (r *Runner) setCancel(s *sandbox, cancel context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.cancel = cancel
}

// claim asks the control plane whether the sandbox is ours to make, for a
// machine of the ready pool if one fits the plan.
func (r *Runner) claim(ctx context.Context, s *sandbox, w *work) (ok bool, err error) {
	// Machines of the pool have the template's disk.
	if w.from == nil && w.job.Resources.DiskLimitMiB() == w.plan.key.ScratchMiB {
		w.pooled = r.pool.take(w.plan.key)
	}
	id := skerry.NewMachineID()
	if w.pooled != nil {
		id = w.pooled.id
	}
	reply, err := r.cfg.Bus.Claim(ctx, bus.ClaimRequest{SandboxID: s.id, RunnerID: r.cfg.ID, MachineID: id, Epoch: r.epoch})
	if err == nil && !reply.OK {
		r.log.Info("claim refused", "sandbox_id", s.id, "reason", reply.Reason)
	}
	if err != nil || !reply.OK {
		r.pool.giveBack(w.pooled)
		return false, err
	}
	r.mu.Lock()
	s.machine = id
	r.mu.Unlock()
	return true, nil
}

// made is what the guest and the host say of a finished create.
type made struct {
	fromPool   bool
	user       string
	unenforced []string
	steps      map[string]int64 // microseconds
}

// create turns a machine, pooled or new, into the sandbox. On an error nothing
// is left but the logs in the machine's directory.
func (r *Runner) create(ctx context.Context, s *sandbox, w work) (made, error) {
	var u undo
	u.add("machine", func(ctx context.Context) error { return r.clearMachine(ctx, s.machine, true) })
	done, err := r.createSteps(ctx, s, w, &u)
	if err != nil {
		if uerr := u.run(ctx); uerr != nil {
			r.log.Error("undo create", "sandbox_id", s.id, "machine_id", s.machine, "err", uerr)
		}
	}
	return done, err
}

func (r *Runner) createSteps(ctx context.Context, s *sandbox, w work, u *undo) (made, error) {
	done := made{fromPool: w.pooled != nil}
	release, err := r.startToken(ctx)
	if err != nil {
		return done, err
	}
	defer release()
	if w.pooled == nil {
		if err := r.makeMachineDir(s.machine); err != nil {
			return done, err
		}
	}
	if w.job.Persistent {
		u.add("record", func(context.Context) error { return os.RemoveAll(r.sandboxDir(s.id)) })
		if s.rec, err = r.beginRecord(s.id, s.machine, w.job); err != nil {
			return done, err
		}
	}
	r.step("create.directory")
	if err := r.startWork(ctx, s, w); err != nil {
		return done, err
	}
	r.step("create.started")
	if err := r.becomeSandbox(ctx, s, w, &done); err != nil {
		return done, err
	}
	r.step("create.activated")
	if s.rec != nil {
		if err := r.setRecord(s, skerry.StatusRunning, s.machine, ""); err != nil {
			return done, err
		}
	}
	done.unenforced, err = r.enforce(s)
	return done, err
}

// startWork starts the machine, unless it was in the pool.
func (r *Runner) startWork(ctx context.Context, s *sandbox, w work) (err error) {
	switch {
	case w.pooled != nil:
		s.proc = w.pooled.proc
	case w.from == nil:
		s.proc, err = r.startMachine(ctx, s.machine, w.plan, diskPlan{path: r.scratchPath(s), mib: w.job.Resources.DiskLimitMiB()}, loaded)
	default:
		if err := r.copySavedDisk(s, w.from); err != nil {
			return err
		}
		if w.from.diskOnly {
			s.proc, err = r.startMachine(ctx, s.machine, w.plan, diskPlan{path: r.scratchPath(s), kept: true}, loaded)
		} else {
			s.proc, err = r.startSaved(ctx, s, w.from)
		}
	}
	return err
}

// becomeSandbox gives the machine its identity; from then on it runs programs.
func (r *Runner) becomeSandbox(ctx context.Context, s *sandbox, w work, done *made) error {
	a := activation(s.id, w.job)
	if w.from != nil && !w.from.diskOnly {
		return s.proc.Client.Renew(ctx, shim.RenewRequest{SandboxID: s.id, MemoryMiB: s.res.MemoryMiB, MemoryLimitMiB: memoryLimitMiB(s.res), Identity: &a})
	}
	rep, err := s.proc.Client.Activate(ctx, shim.ActivateRequest{SandboxID: s.id, Activation: a, MemoryLimitMiB: memoryLimitMiB(s.res)})
	if err != nil {
		return err
	}
	done.user, done.steps = rep.Activated.User, rep.StepMicros
	for k, v := range rep.Activated.StepMicros {
		done.steps["guest_"+k] = v
	}
	return nil
}

// enforce puts the hypervisor under the limits of the sandbox and returns those
// that this host cannot enforce.
func (r *Runner) enforce(s *sandbox) (unenforced []string, err error) {
	st, err := shim.LastStatus(r.machineDir(s.machine))
	if err != nil {
		return nil, err
	}
	return r.cfg.Cgroups.Place(s.machine, st.MachinePID, s.res, s.res.CPULimit(r.cfg.CPUBurst))
}

// startToken bounds how many machines start at once: more than processors only
// makes each of them later.
func (r *Runner) startToken(ctx context.Context) (release func(), err error) {
	select {
	case r.starts <- struct{}{}:
		return func() { <-r.starts }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// reasonFor is why an operation did not work, as a user reads it, in one line: the
// message of an error of ours, or the whole chain.
func reasonFor(operation skerry.Action, err error) string {
	if errors.Is(err, context.Canceled) {
		return fmt.Sprintf("the %s was cancelled", operation)
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ") // of errors.Join
}
