package control

import (
	"context"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

// ReclaimSandbox takes the capacity of a spot sandbox back, at once: an
// ephemeral one is deleted, a persistent one paused, as soon as it runs and no
// other operation is under way if it does not now; one that is stopped or paused
// stays so. Errors: CodeNotFound, CodeConflict for a sandbox that is not spot,
// or is being deleted, CodeGone for a deleted one.
func (c *Control) ReclaimSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return c.operate(ctx, idOrName, skerry.Reclaim, func(t *txn, s *store.Sandbox) error {
		if !s.Spot {
			return skerry.Errorf(skerry.CodeConflict, "reclaim: sandbox %s is not a spot sandbox", s.ID)
		}
		s.SpotEvictedAt = &t.now
		if !s.Persistent {
			s.Reason = "its capacity was reclaimed"
			return c.deleteSandbox(ctx, t, s)
		}
		switch s.Status {
		case skerry.StatusStopped, skerry.StatusPaused, skerry.StatusFailed, skerry.StatusLost:
			return t.put(ctx, s) // has no capacity
		}
		s.ReclaimDue = true
		if skerry.Pause.Check(s.Sandbox) != nil {
			return t.put(ctx, s)
		}
		return c.beginPause(ctx, t, s)
	})
}
