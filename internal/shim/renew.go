package shim

import (
	"context"
	"fmt"
	"time"

	"skerry.dev/skerry/internal/guestapi"
)

// renew makes the ready machine, which has a user's memory, the sandbox of req:
// it runs, and gets randomness, time and names before the processes in it do.
func (s *shim) renew(ctx context.Context, req RenewRequest) error {
	select {
	case <-s.started:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := s.claim(req.SandboxID, req.MemoryMiB, req.MemoryLimitMiB); err != nil {
		return err
	}
	if err := s.applyRenewal(ctx, req.Identity); err != nil {
		s.fail(fmt.Errorf("renew: %w", err))
		return err
	}
	if !s.setPhase(PhaseRunning, nil) {
		st, _ := s.snapshot()
		return errNotReady(st)
	}
	return nil
}

func (s *shim) applyRenewal(ctx context.Context, identity *guestapi.Activation) error {
	if err := s.machine.Resume(ctx); err != nil {
		return err
	}
	if err := s.connect(ctx, linkTimeout); err != nil {
		return err
	}
	return s.renewGuest(ctx, identity)
}

// renewGuest is the first message to a guest that stood still.
func (s *shim) renewGuest(ctx context.Context, identity *guestapi.Activation) error {
	in := guestapi.Renewal{Time: time.Now(), Entropy: entropy(), Identity: identity}
	if err := s.link.Control(ctx, guestapi.PathRenew, in, nil); err != nil {
		return fmt.Errorf("guest agent: %w", err)
	}
	return nil
}
