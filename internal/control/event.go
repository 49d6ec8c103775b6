package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// event takes a runner's word. Events come at least once, so a repeated one
// must change nothing; an error has the same event come again.
func (c *Control) event(ctx context.Context, e bus.Event) error {
	var handle func(*txn) error
	switch {
	case !validRunnerID(e.RunnerID):
		c.logger.Error("drop event without a valid runner id", "kind", e.Kind)
		return nil
	case e.Kind == bus.EventSandbox:
		handle = func(t *txn) error { return c.sandboxEvent(ctx, t, e) }
	case e.Kind == bus.EventOperation:
		handle = func(t *txn) error { return c.operationEvent(ctx, t, e) }
	case e.Kind == bus.EventActivity:
		handle = func(t *txn) error { return c.activityEvent(ctx, t, e) }
	case e.Kind == bus.EventSnapshot && e.Snapshot != nil:
		handle = func(t *txn) error { return c.snapshotEvent(ctx, t, e.RunnerID, *e.Snapshot) }
	case e.Kind == bus.EventImage && e.Image != nil:
		handle = func(t *txn) error { return c.imageEvent(ctx, t, e.RunnerID, *e.Image) }
	case e.Kind == bus.EventReport && e.Report != nil && e.Report.Runner.ID == e.RunnerID:
		return c.report(ctx, *e.Report)
	default:
		c.logger.Error("drop malformed event", "kind", e.Kind, "runner_id", e.RunnerID)
		return nil
	}
	if err := c.updateLazily(ctx, handle); err != nil {
		return fmt.Errorf("%s event of %s: %w", e.Kind, e.RunnerID, err)
	}
	return nil
}

// sandboxEvent applies a change of a sandbox, unless it is stale, repeated or
// not in the table of transitions.
func (c *Control) sandboxEvent(ctx context.Context, t *txn, e bus.Event) error {
	log := c.logger.With("sandbox_id", e.SandboxID, "machine_id", e.MachineID, "runner_id", e.RunnerID, "reported", e.Status)
	s, err := t.Sandbox(ctx, e.SandboxID)
	if errors.Is(err, store.ErrNotFound) {
		log.Debug("ignore event of an unknown sandbox")
		return nil
	}
	if err != nil {
		return err
	}
	if s.Runner != e.RunnerID || s.Machine != e.MachineID {
		log.Debug("ignore event of another machine")
		return c.strayMachine(ctx, t, s, e)
	}
	applied, err := c.applyStatus(ctx, t, &s, e)
	if err == nil && !applied {
		log.Debug("ignore event", "status", s.Status)
	}
	return err
}

// strayMachine has a machine removed that runs although its persistent sandbox
// was given up when it was started, and has another one since.
func (c *Control) strayMachine(ctx context.Context, t *txn, s store.Sandbox, e bus.Event) error {
	runs := e.Status == skerry.StatusBooting || e.Status == skerry.StatusRunning
	if !runs || !s.Persistent || s.Runner != e.RunnerID || s.Machine == "" || !e.MachineID.Valid() || s.DeletedAt != (time.Time{}) {
		return nil
	}
	return t.removeMachine(ctx, e.RunnerID, e.SandboxID, e.MachineID)
}

// applyStatus applies the status that the runner of s reports; false tells that
// there is nothing to change.
func (c *Control) applyStatus(ctx context.Context, t *txn, s *store.Sandbox, e bus.Event) (bool, error) {
	switch e.Status {
	case skerry.StatusDeleted:
		return c.machineGone(ctx, t, s, "its machine was removed from the host")
	case skerry.StatusRunning:
		told := e.Reason == "" || e.Reason == bus.ReasonFull
		switch {
		case s.Status == skerry.StatusRunning:
			return c.noteFull(ctx, t, s, e.Reason)
		case s.Status == skerry.StatusPausing && told:
			return false, nil // was said before the pause was asked for
		}
	case skerry.StatusBooting:
		if s.Status != skerry.StatusAssigned {
			return false, nil // is known: it was ordered
		}
	case skerry.StatusStopped, skerry.StatusPaused, skerry.StatusFailed, skerry.StatusLost:
	default:
		return false, nil // is not for a runner to say
	}
	if _, ok := path(s.Status, e.Status, s.Persistent); !ok {
		return false, nil
	}
	if e.Status != skerry.StatusBooting {
		s.Reason = e.Reason
	}
	if len(e.Unenforced) > 0 {
		s.Unenforced = e.Unenforced
	}
	if e.User != "" {
		s.User = e.User
	}
	return true, t.move(ctx, s, e.Status)
}

// noteFull records whether a running sandbox stands still because its host's disk
// is full; false tells that this is known.
func (c *Control) noteFull(ctx context.Context, t *txn, s *store.Sandbox, reason string) (bool, error) {
	full := reason == bus.ReasonFull
	if full == (s.Reason == bus.ReasonFull) {
		return false, nil
	}
	s.Reason = ""
	if full {
		s.Reason = reason
	}
	return true, t.put(ctx, s)
}

// machineGone records that nothing of s is left on its runner, whether that was
// asked for or not; false tells that there is nothing to change.
func (c *Control) machineGone(ctx context.Context, t *txn, s *store.Sandbox, why string) (bool, error) {
	switch {
	case s.Status == skerry.StatusDeleting:
		return true, c.end(ctx, t, s, skerry.StatusDeleted)
	case beingMade(*s):
		return true, t.fail(ctx, s, skerry.StatusFailed, "interrupted while it was created: "+why)
	case !s.Status.CanBecome(skerry.StatusLost, s.Persistent):
		return false, nil
	}
	return true, t.fail(ctx, s, skerry.StatusLost, why)
}

// beingMade reports whether a runner has claimed s and has not made it yet.
func beingMade(s store.Sandbox) bool {
	return s.StartedAt == nil && (s.Status == skerry.StatusAssigned || s.Status == skerry.StatusBooting)
}
