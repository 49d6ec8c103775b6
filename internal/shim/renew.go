package shim

import (
	"context"
	"errors"
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
	s.saving.Lock()
	defer s.saving.Unlock()
	next, err := PhaseRunning, s.applyRenewal(ctx, req.Identity)
	if errors.Is(err, errFull) && req.Identity == nil {
		// The sandbox would lose its memory; it is renewed when there is room.
		next, err = PhaseFull, nil
	}
	if err != nil {
		s.fail(fmt.Errorf("renew: %w", err))
		return err
	}
	if !s.setPhase(next, nil) {
		st, _ := s.snapshot()
		return errNotReady(st)
	}
	return nil
}

func (s *shim) applyRenewal(ctx context.Context, identity *guestapi.Activation) error {
	ctx, cancel := s.unlessFull(ctx)
	defer cancel()
	if err := s.machine.Resume(ctx); err != nil {
		return err
	}
	if err := s.connect(ctx, linkTimeout); err != nil {
		return orFull(ctx, err)
	}
	return orFull(ctx, s.renewGuest(ctx, identity))
}

// renewGuest is the first message to a guest that stood still.
func (s *shim) renewGuest(ctx context.Context, identity *guestapi.Activation) error {
	in := guestapi.Renewal{Time: time.Now(), Entropy: entropy(), Identity: identity}
	if err := s.link.Control(ctx, guestapi.PathRenew, in, nil); err != nil {
		return fmt.Errorf("guest agent: %w", err)
	}
	return nil
}
