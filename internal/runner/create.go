package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/shim"
)

// errNoRoom puts a job back on the queue: this host has not enough memory left.
var errNoRoom = errors.New("no room for the sandbox")

// handleJob claims a sandbox and makes it in the background. It returns nil
// when the job is off the queue for good: claimed, or refused. What is claimed
// is this runner's to settle, also after a crash, see adopt.
func (r *Runner) handleJob(ctx context.Context, job bus.CreateJob) error {
	start := time.Now()
	s, err := r.reserve(job)
	if err != nil {
		return err
	}
	r.step("create.reserved")
	endBusy := r.pool.begin()
	p, planErr := r.plan(ctx, job.Digest, job.Resources)
	m, ok, err := r.claim(ctx, s, p, job.Resources.DiskMiB)
	if !ok {
		endBusy(plan{}, false)
		close(s.settled)
		r.forget(s)
		return err
	}
	r.step("create.claimed")
	lifeCtx, cancel := context.WithCancel(r.life)
	r.setCancel(s, cancel)
	r.work.Go(func() {
		r.settle(lifeCtx, s, job, p, m, planErr, start)
		endBusy(p, s.err == nil)
	})
	return nil
}

// settle makes a claimed sandbox and reports how that went.
func (r *Runner) settle(ctx context.Context, s *sandbox, job bus.CreateJob, p plan, m *pooled, err error, start time.Time) {
	r.report(ctx, s, skerry.StatusBooting, nil)
	var done made
	if err == nil {
		done, err = r.create(ctx, s, m, p, job)
	}
	s.err = err
	close(s.settled)
	log := r.log.With("sandbox_id", s.id, "machine_id", s.machine, "dur_ms", time.Since(start).Milliseconds())
	if err != nil {
		r.cfg.Metrics.createFailed()
		log.Warn("create failed", "err", err)
		r.report(ctx, s, skerry.StatusFailed, func(ev *bus.Event) { ev.Reason = reasonFor(err) })
		return
	}
	r.report(ctx, s, skerry.StatusRunning, func(ev *bus.Event) {
		ev.Unenforced, ev.User = done.unenforced, done.user
	})
	r.cfg.Metrics.created(time.Since(start), done.fromPool)
	log.Info("sandbox running", "pool", done.fromPool, "steps", done.steps)
	r.watch(s)
}

// reserve records the sandbox and sets its memory aside. A host takes at least
// one sandbox, however small it is.
func (r *Runner) reserve(job bus.CreateJob) (*sandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.sandboxes[job.SandboxID]; ok {
		return nil, fmt.Errorf("sandbox %s is here already", job.SandboxID)
	}
	if r.reserved+job.Resources.MemoryMiB > r.cfg.MemoryMiB && len(r.sandboxes) > 0 {
		return nil, errNoRoom
	}
	s := &sandbox{id: job.SandboxID, memMiB: job.Resources.MemoryMiB, cancel: func() {}, settled: make(chan struct{})}
	r.sandboxes[s.id] = s
	r.reserved += s.memMiB
	return s, nil
}

// forget drops a sandbox of which nothing is left on this host.
func (r *Runner) forget(s *sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sandboxes[s.id] == s {
		delete(r.sandboxes, s.id)
		r.reserved -= s.memMiB
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
func (r *Runner) claim(ctx context.Context, s *sandbox, p plan, diskMiB int64) (m *pooled, ok bool, err error) {
	if diskMiB == p.scratchMiB { // machines of the pool have the template's disk
		m = r.pool.take(p.key)
	}
	id := skerry.NewMachineID()
	if m != nil {
		id = m.id
	}
	reply, err := r.cfg.Bus.Claim(ctx, bus.ClaimRequest{SandboxID: s.id, RunnerID: r.cfg.ID, MachineID: id, Epoch: r.epoch})
	if err == nil && !reply.OK {
		r.log.Info("claim refused", "sandbox_id", s.id, "reason", reply.Reason)
	}
	if err != nil || !reply.OK {
		r.pool.giveBack(m)
		return nil, false, err
	}
	r.mu.Lock()
	s.machine = id
	r.mu.Unlock()
	return m, true, nil
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
func (r *Runner) create(ctx context.Context, s *sandbox, m *pooled, p plan, job bus.CreateJob) (made, error) {
	var u undo
	u.add("machine", func(ctx context.Context) error { return r.clearMachine(ctx, s.machine, true) })
	done, err := r.createSteps(ctx, s, m, p, job)
	if err != nil {
		if uerr := u.run(ctx); uerr != nil {
			r.log.Error("undo create", "sandbox_id", s.id, "machine_id", s.machine, "err", uerr)
		}
		return done, err
	}
	u.release()
	return done, nil
}

func (r *Runner) createSteps(ctx context.Context, s *sandbox, m *pooled, p plan, job bus.CreateJob) (made, error) {
	done := made{fromPool: m != nil}
	release, err := r.startToken(ctx)
	if err != nil {
		return done, err
	}
	defer release()
	if m == nil {
		if err := r.makeMachineDir(s.machine); err != nil {
			return done, err
		}
	}
	r.step("create.directory")
	if m != nil {
		s.proc = m.proc
	} else if s.proc, err = r.startMachine(ctx, s.machine, p, job.Resources.DiskMiB, false); err != nil {
		return done, err
	}
	r.step("create.started")
	rep, err := s.proc.Client.Activate(ctx, shim.ActivateRequest{SandboxID: s.id, Activation: activation(s.id, job)})
	if err != nil {
		return done, err
	}
	r.step("create.activated")
	done.user, done.steps = rep.Activated.User, rep.StepMicros
	for k, v := range rep.Activated.StepMicros {
		done.steps["guest_"+k] = v
	}
	st, err := shim.LastStatus(r.machineDir(s.machine))
	if err != nil {
		return done, err
	}
	done.unenforced, err = r.cfg.Cgroups.place(s.machine, st.MachinePID, job.Resources)
	return done, err
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

// reasonFor is what a user reads: the message of an error of ours, or the whole
// chain.
func reasonFor(err error) string {
	if errors.Is(err, context.Canceled) {
		return "the create was cancelled"
	}
	return err.Error()
}
