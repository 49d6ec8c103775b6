package shim

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
)

// activate makes the ready machine the sandbox of req. Identity, clock and
// randomness are set in the guest before anything of a user can run; if that
// fails the machine is failed, never half a sandbox.
func (s *shim) activate(ctx context.Context, req ActivateRequest) (ActivateReply, error) {
	var reply ActivateReply
	t := newTrace()
	select {
	case <-s.started:
	case <-ctx.Done():
		return reply, ctx.Err()
	}
	if err := s.claim(req.SandboxID, req.Activation.MemoryMiB, req.MemoryLimitMiB); err != nil {
		return reply, err
	}
	t.step("started")
	activated, err := s.applyActivation(ctx, req, t)
	if err != nil {
		s.fail(fmt.Errorf("activate: %w", err))
		return reply, err
	}
	if !s.setPhase(PhaseRunning, nil) {
		st, _ := s.snapshot()
		return reply, errNotReady(st)
	}
	t.step("status")
	return ActivateReply{Activated: activated, StepMicros: t.micros}, nil
}

// claim takes the ready machine for one sandbox; a second claim is refused.
func (s *shim) claim(id skerry.SandboxID, memMiB, limitMiB int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.Phase != PhaseReady {
		return errNotReady(s.status)
	}
	s.status.Phase, s.status.Since = PhaseActivating, time.Now()
	s.status.SandboxID, s.status.MemoryMiB, s.status.MemoryLimitMiB = id, memMiB, limitMiB
	s.publishLocked()
	return nil
}

func (s *shim) applyActivation(ctx context.Context, req ActivateRequest, t *trace) (guestapi.Activated, error) {
	var activated guestapi.Activated
	ctx, cancel := s.unlessFull(ctx) // it has no user yet who would like it to wait
	defer cancel()
	if err := s.machine.Resume(ctx); err != nil {
		return activated, err
	}
	t.step("resume")

	g, gctx := errgroup.WithContext(ctx)
	if mib := wholeBlocks(req.Activation.MemoryMiB); mib != s.spec.Shape.BaseMiB {
		g.Go(func() error { return s.machine.SetMemory(gctx, mib) })
	}
	if err := s.connect(ctx, linkTimeout); err != nil {
		return activated, orFull(ctx, err)
	}
	t.step("connect")
	a := req.Activation
	a.Entropy, a.Time = entropy(), time.Now()
	if err := s.link.Control(ctx, guestapi.PathActivate, a, &activated); err != nil {
		return activated, fmt.Errorf("guest agent: %w", err)
	}
	t.step("agent")
	if err := g.Wait(); err != nil {
		return activated, fmt.Errorf("plug memory: %w", err)
	}
	return activated, nil
}

// trace records how long each step took.
type trace struct {
	last   time.Time
	micros map[string]int64
}

func newTrace() *trace { return &trace{last: time.Now(), micros: map[string]int64{}} }

func (t *trace) step(name string) {
	now := time.Now()
	t.micros[name] = now.Sub(t.last).Microseconds()
	t.last = now
}
