package control

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// txn is a transaction and what follows from it once it is committed.
type txn struct {
	store.Tx
	now time.Time

	sandboxes []skerry.Sandbox // each step of each change
	images    []skerry.Image
	snapshots []skerry.Snapshot
	logged    bool      // events were added to the log
	outbox    bool      // entries were added
	alarm     time.Time // the timers must look again by then, or zero
}

// update runs fn in a transaction and then does what follows from it.
func (c *Control) update(ctx context.Context, fn func(*txn) error) error {
	return c.commit(ctx, c.store.Update, fn)
}

// updateLazily is update for what need not survive a power failure, as it is
// found out again: that a job was published, by publishing it again; what a
// runner says, by its next report.
func (c *Control) updateLazily(ctx context.Context, fn func(*txn) error) error {
	return c.commit(ctx, c.store.UpdateLazily, fn)
}

func (c *Control) commit(ctx context.Context, run func(context.Context, func(store.Tx) error) error, fn func(*txn) error) error {
	var t *txn
	err := run(ctx, func(tx store.Tx) error {
		t = &txn{Tx: tx, now: c.now()}
		return fn(t)
	})
	if err != nil {
		return err
	}
	if t.outbox {
		c.wakeOutbox()
	}
	if !t.alarm.IsZero() {
		c.timers.by(t.alarm)
	}
	for _, s := range t.sandboxes {
		c.logger.Info("sandbox changed", "sandbox_id", s.ID, "status", s.Status, "runner_id", s.Runner, "machine_id", s.Machine, "reason", s.Reason)
		c.sandboxes.publish(s.ID, s)
	}
	for _, i := range t.images {
		c.images.publish(i.ID, i)
	}
	for _, s := range t.snapshots {
		c.snapshots.publish(s.ID, s)
	}
	if t.logged {
		c.log.tell()
	}
	return nil
}

// creation is the way of a sandbox from its create until it runs.
var creation = []skerry.Status{skerry.StatusQueued, skerry.StatusPending, skerry.StatusAssigned, skerry.StatusBooting, skerry.StatusRunning}

// path returns the changes that lead from one status to another, each of which
// is in the table of transitions, or false if the change is refused. What is
// reported may be several steps ahead of what is recorded: a runner may claim a
// sandbox before the publication of its job is recorded, and a report of a
// running machine tells that it booted.
func path(from, to skerry.Status, persistent bool) ([]skerry.Status, bool) {
	if i, j := slices.Index(creation, from), slices.Index(creation, to); i >= 0 && i < j {
		return creation[i+1 : j+1], true
	}
	if from.CanBecome(to, persistent) {
		return []skerry.Status{to}, true
	}
	// It ran, and none of that was recorded before a power failure.
	booting := creation[:len(creation)-1]
	if i := slices.Index(booting, from); i >= 0 && persistent && (to == skerry.StatusStopped || to == skerry.StatusPaused) {
		return append(slices.Clone(booting[i+1:]), to), true
	}
	if to == skerry.StatusPaused && from.CanBecome(skerry.StatusPausing, persistent) {
		return []skerry.Status{skerry.StatusPausing, skerry.StatusPaused}, true
	}
	if to == skerry.StatusDeleted && from.CanBecome(skerry.StatusDeleting, persistent) {
		return []skerry.Status{skerry.StatusDeleting, skerry.StatusDeleted}, true
	}
	return nil, false
}

// move changes the status of s along a path, which must exist, ends its
// operation if that is over with it, and writes s.
func (t *txn) move(ctx context.Context, s *store.Sandbox, to skerry.Status) error {
	steps, ok := path(s.Status, to, s.Persistent)
	if !ok {
		return fmt.Errorf("sandbox %s cannot become %s, it is %s", s.ID, to, s.Status)
	}
	if err := t.settleOperation(ctx, s, to); err != nil {
		return err
	}
	s.UpdatedAt = t.now
	for _, step := range steps {
		enter(s, step, t.now)
		t.sandboxes = append(t.sandboxes, s.Sandbox)
		if err := t.logSandbox(ctx, skerry.EventSandboxStatus, s); err != nil {
			return err
		}
	}
	return t.write(ctx, s)
}

// put writes a change of s that is none of its status.
func (t *txn) put(ctx context.Context, s *store.Sandbox) error {
	s.UpdatedAt = t.now
	schedule(s)
	t.sandboxes = append(t.sandboxes, s.Sandbox)
	return t.write(ctx, s)
}

// write writes s, with its timers set.
func (t *txn) write(ctx context.Context, s *store.Sandbox) error {
	schedule(s)
	if !s.DueAt.IsZero() {
		t.wakeBy(s.DueAt)
	}
	if err := t.UpdateSandbox(ctx, *s); err != nil {
		return err
	}
	s.Version++
	return nil
}

// fail moves s to failed or lost for a reason.
func (t *txn) fail(ctx context.Context, s *store.Sandbox, to skerry.Status, reason string) error {
	s.Reason = reason
	return t.move(ctx, s, to)
}

// command queues a command for a runner.
func (t *txn) command(ctx context.Context, runner skerry.RunnerID, cmd bus.Command) error {
	payload, err := json.Marshal(cmd)
	if err != nil {
		return fmt.Errorf("encode command: %w", err)
	}
	if len(payload) > bus.MaxMessageBytes {
		return skerry.Errorf(skerry.CodeTooLarge, "the order to the runner is %d bytes, at most %d are allowed", len(payload), bus.MaxMessageBytes)
	}
	t.outbox = true
	return t.AddOutbox(ctx, store.OutboxEntry{Runner: runner, Payload: payload})
}

// deleteMachine queues the removal of all that a runner has of a sandbox.
func (t *txn) deleteMachine(ctx context.Context, runner skerry.RunnerID, sandbox skerry.SandboxID, machine skerry.MachineID) error {
	return t.command(ctx, runner, bus.Command{Kind: bus.CommandDeleteSandbox, SandboxID: sandbox, MachineID: machine})
}

// removeMachine queues the removal of a machine that its sandbox does not have
// any more; the disk of a persistent sandbox stays.
func (t *txn) removeMachine(ctx context.Context, runner skerry.RunnerID, sandbox skerry.SandboxID, machine skerry.MachineID) error {
	return t.command(ctx, runner, bus.Command{Kind: bus.CommandRemoveMachine, SandboxID: sandbox, MachineID: machine})
}

// wakeBy makes the timers look again by t at the latest.
func (t *txn) wakeBy(at time.Time) {
	if t.alarm.IsZero() || at.Before(t.alarm) {
		t.alarm = at
	}
}
