package control

import (
	"context"
	"errors"
	"fmt"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// claim answers a runner's question whether a sandbox is its to make. The
// first that asks gets it, with the machine it names; asking again gives the
// same answer.
func (c *Control) claim(ctx context.Context, r bus.ClaimRequest) (reply bus.ClaimReply, err error) {
	err = c.updateLazily(ctx, func(t *txn) error {
		s, err := t.Sandbox(ctx, r.SandboxID)
		if errors.Is(err, store.ErrNotFound) {
			reply = bus.ClaimReply{Reason: "no such sandbox"}
			return nil
		}
		if err != nil {
			return err
		}
		if reply = answerClaim(s, r); !reply.OK || s.Machine == r.MachineID {
			return nil
		}
		if !s.CreateDeadline.After(t.now) {
			reply = bus.ClaimReply{Reason: "the create deadline has passed"}
			return nil
		}
		s.Runner, s.Machine, s.RunnerEpoch = r.RunnerID, r.MachineID, r.Epoch
		return t.move(ctx, &s, skerry.StatusAssigned)
	})
	if err != nil {
		return bus.ClaimReply{}, fmt.Errorf("claim sandbox %s: %w", r.SandboxID, err)
	}
	return reply, nil
}

// offerAgain settles the create of s that its runner has begun and has nothing
// of, since it was restarted: the sandbox waits for a runner as before, up to its
// create deadline. Not so a copy: what the fork had saved of its source for it is
// gone.
func (t *txn) offerAgain(ctx context.Context, s *store.Sandbox) error {
	if s.ForkedFrom != "" {
		return t.fail(ctx, s, skerry.StatusFailed, forkFailure(s.ForkedFrom, "its runner was restarted while this copy was made"))
	}
	s.Machine, s.RunnerEpoch = "", 0
	if s.Snapshot == "" { // which only that runner has
		s.Runner = ""
	}
	s.Reason = "its runner was restarted while it was created; it is created again"
	if err := t.move(ctx, s, skerry.StatusPending); err != nil {
		return err
	}
	return t.queueJob(ctx, s.ID)
}

// answerClaim decides by the state of the sandbox.
func answerClaim(s store.Sandbox, r bus.ClaimRequest) bus.ClaimReply {
	switch s.Status {
	case skerry.StatusQueued, skerry.StatusPending:
		// Queued: the job was published, only that is not recorded yet.
		if !r.MachineID.Valid() || !validRunnerID(r.RunnerID) {
			return bus.ClaimReply{Reason: "runner or machine id is malformed"}
		}
		if s.Runner != "" && s.Runner != r.RunnerID { // of a copy or a restore
			return bus.ClaimReply{Reason: "is for runner " + string(s.Runner)}
		}
		return bus.ClaimReply{OK: true}
	case skerry.StatusAssigned, skerry.StatusBooting, skerry.StatusRunning:
		if s.Runner == r.RunnerID && s.Machine == r.MachineID {
			return bus.ClaimReply{OK: true}
		}
		return bus.ClaimReply{Reason: "claimed already"}
	default:
		return bus.ClaimReply{Reason: "sandbox is " + string(s.Status)}
	}
}
