package control

import (
	"context"
	"fmt"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// CreateSnapshot saves memory and disk of a running sandbox, which runs on. It
// returns the snapshot, which is pending. Errors: CodeInvalid, CodeNotFound,
// CodeConflict for a sandbox that does not run or has another operation under
// way, and for a name in use, CodeGone.
func (c *Control) CreateSnapshot(ctx context.Context, idOrName, name string) (skerry.Snapshot, error) {
	if err := skerry.ValidateSnapshotName(name); err != nil {
		return skerry.Snapshot{}, err
	}
	var snapshot store.Snapshot
	_, err := c.operate(ctx, idOrName, skerry.CreateSnapshot, func(t *txn, s *store.Sandbox) error {
		if err := t.freeName(ctx, name); err != nil {
			return err
		}
		snapshot = store.Snapshot{
			Snapshot: skerry.Snapshot{ID: skerry.NewSnapshotID(), Name: name, Status: skerry.ImagePending, Source: s.ID,
				Image: s.Image, ImageID: s.ImageID, User: s.User, Resources: s.Resources, Persistent: s.Persistent, Runner: s.Runner,
				CreatedAt: t.now, UpdatedAt: t.now},
			Version: 1, Arch: s.Arch,
		}
		if err := t.InsertSnapshot(ctx, snapshot); err != nil {
			return err
		}
		t.snapshots = append(t.snapshots, snapshot.Snapshot)
		if err := t.logSnapshot(ctx, snapshot.Snapshot, string(snapshot.Status)); err != nil {
			return err
		}
		return t.beginCopy(ctx, s, skerry.CreateSnapshot, string(snapshot.ID))
	})
	if err != nil {
		return skerry.Snapshot{}, err
	}
	return snapshot.Snapshot, nil
}

// findSnapshot finds a snapshot by id or name.
func findSnapshot(ctx context.Context, r store.Reader, idOrName string) (s store.Snapshot, err error) {
	if id := skerry.SnapshotID(idOrName); id.Valid() {
		s, err = r.Snapshot(ctx, id)
	} else {
		s, err = r.SnapshotByName(ctx, idOrName)
	}
	if isNotFound(err) {
		return s, skerry.Errorf(skerry.CodeNotFound, "no snapshot %q; `skerry snapshot list` shows the snapshots there are", idOrName)
	}
	return s, err
}

// Snapshot finds a snapshot by id or name. Errors: CodeNotFound.
func (c *Control) Snapshot(ctx context.Context, idOrName string) (skerry.Snapshot, error) {
	var s store.Snapshot
	err := c.store.View(ctx, func(r store.Reader) (err error) {
		s, err = findSnapshot(ctx, r, idOrName)
		return err
	})
	if err != nil {
		return skerry.Snapshot{}, fmt.Errorf("get snapshot: %w", err)
	}
	return s.Snapshot, nil
}

// ListSnapshots returns all snapshots, newest first.
func (c *Control) ListSnapshots(ctx context.Context) ([]skerry.Snapshot, error) {
	var rows []store.Snapshot
	err := c.store.View(ctx, func(r store.Reader) (err error) {
		rows, err = r.Snapshots(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	snapshots := make([]skerry.Snapshot, 0, len(rows))
	for _, s := range rows {
		snapshots = append(snapshots, s.Snapshot)
	}
	return snapshots, nil
}

// WaitSnapshot returns the snapshot once it is ready or failed, or the time is
// over. One that is deleted meanwhile is returned as failed. Errors:
// CodeNotFound, CodeUnavailable at Close.
func (c *Control) WaitSnapshot(ctx context.Context, idOrName string, timeout time.Duration) (skerry.Snapshot, error) {
	done := func(s skerry.Snapshot) bool { return settled(s.Status) }
	s, err := c.Snapshot(ctx, idOrName)
	if err != nil || done(s) || timeout <= 0 {
		return s, err
	}
	return waitFor(ctx, c, c.snapshots, s.ID, timeout, c.Snapshot, done)
}

// DeleteSnapshot forgets a snapshot and has its runner remove it. Sandboxes that
// were restored from it are left alone. Errors: CodeNotFound, CodeConflict while
// a sandbox is being restored from it.
func (c *Control) DeleteSnapshot(ctx context.Context, idOrName string) error {
	err := c.update(ctx, func(t *txn) error {
		s, err := findSnapshot(ctx, t, idOrName)
		if err != nil {
			return err
		}
		return t.deleteSnapshot(ctx, s)
	})
	if err != nil {
		return fmt.Errorf("delete snapshot: %w", err)
	}
	return nil
}

func (t *txn) deleteSnapshot(ctx context.Context, s store.Snapshot) error {
	n, err := t.CountSandboxesOfSnapshot(ctx, s.ID, creation[:len(creation)-1])
	switch {
	case err != nil:
		return err
	case n > 0:
		return skerry.Errorf(skerry.CodeConflict, "snapshot %s is in use: %d sandboxes are being restored from it", s.Name, n)
	}
	if err := t.DeleteSnapshot(ctx, s.ID); err != nil {
		return err
	}
	s.Status, s.Error = skerry.ImageFailed, "deleted"
	t.snapshots = append(t.snapshots, s.Snapshot)
	if err := t.logSnapshot(ctx, s.Snapshot, statusDeleted); err != nil {
		return err
	}
	if err := t.imageUnused(ctx, s.ImageID); err != nil {
		return err
	}
	return t.command(ctx, s.Runner, bus.Command{Kind: bus.CommandDeleteSnapshot, SnapshotID: s.ID})
}

// snapshotEvent applies what a runner says of a snapshot. It is told to remove
// those that were deleted.
func (c *Control) snapshotEvent(ctx context.Context, t *txn, runner skerry.RunnerID, r bus.SnapshotReport) error {
	s, err := t.Snapshot(ctx, r.SnapshotID)
	switch {
	case isNotFound(err) && !r.Deleted && r.SnapshotID.Valid():
		return t.command(ctx, runner, bus.Command{Kind: bus.CommandDeleteSnapshot, SnapshotID: r.SnapshotID})
	case err != nil:
		return ignoreNotFound(err)
	case s.Runner != runner:
		return nil // this one did not make it
	case r.Deleted:
		return t.missingSnapshot(ctx, s)
	case settled(s.Status):
		return nil
	}
	switch r.Status {
	case skerry.ImageBuilding:
		if s.Status == skerry.ImageBuilding {
			return nil
		}
		s.Status = skerry.ImageBuilding
		return t.putSnapshot(ctx, s)
	case skerry.ImageReady:
		s.Status, s.MemoryBytes, s.DiskBytes, s.PauseMillis = skerry.ImageReady, r.MemoryBytes, r.DiskBytes, r.PauseMillis
		err = t.putSnapshot(ctx, s)
	case skerry.ImageFailed:
		err = t.failSnapshot(ctx, s, r.Error)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	return t.productSettled(ctx, s.Source, string(s.ID))
}

// putSnapshot writes a snapshot whose status changed.
func (t *txn) putSnapshot(ctx context.Context, s store.Snapshot) error {
	s.UpdatedAt = t.now
	t.snapshots = append(t.snapshots, s.Snapshot)
	if err := t.logSnapshot(ctx, s.Snapshot, string(s.Status)); err != nil {
		return err
	}
	return t.UpdateSnapshot(ctx, s)
}

func (t *txn) failSnapshot(ctx context.Context, s store.Snapshot, why string) error {
	s.Status, s.Error = skerry.ImageFailed, why
	return t.putSnapshot(ctx, s)
}

// missingSnapshot settles a snapshot that its runner does not have. One under
// way is made again as long as its source still has it for its operation.
func (t *txn) missingSnapshot(ctx context.Context, s store.Snapshot) error {
	switch s.Status {
	case skerry.ImageFailed:
		return nil
	case skerry.ImageReady:
		return t.failSnapshot(ctx, s, "its files are gone from its runner")
	}
	source, err := t.Sandbox(ctx, s.Source)
	if err = ignoreNotFound(err); err != nil {
		return err
	}
	if source.Operation == skerry.CreateSnapshot && source.OperationTarget == string(s.ID) {
		return nil // whose operation is settled with the source
	}
	return t.failSnapshot(ctx, s, "was interrupted")
}

// reportedSnapshots compares the snapshots of a runner with those it was told to
// make.
func (c *Control) reportedSnapshots(ctx context.Context, t *txn, r bus.RunnerReport) error {
	listed := map[skerry.SnapshotID]bool{}
	for _, report := range r.Snapshots {
		listed[report.SnapshotID] = !report.Deleted
		if err := c.snapshotEvent(ctx, t, r.Runner.ID, report); err != nil {
			return err
		}
	}
	return t.eachSnapshot(ctx, r.Runner.ID, func(s store.Snapshot) error {
		if listed[s.ID] {
			return nil
		}
		return t.missingSnapshot(ctx, s)
	})
}

// failUnfinishedSnapshots fails those that a runner can no longer make.
func failUnfinishedSnapshots(ctx context.Context, t *txn, runner skerry.RunnerID, why string) error {
	return t.eachSnapshot(ctx, runner, func(s store.Snapshot) error {
		if settled(s.Status) {
			return nil
		}
		return t.failSnapshot(ctx, s, why)
	})
}

// eachSnapshot calls fn for each snapshot of a runner.
func (t *txn) eachSnapshot(ctx context.Context, runner skerry.RunnerID, fn func(store.Snapshot) error) error {
	snapshots, err := t.Snapshots(ctx)
	if err != nil {
		return err
	}
	for _, s := range snapshots {
		if s.Runner != runner {
			continue
		}
		if err := fn(s); err != nil {
			return fmt.Errorf("snapshot %s: %w", s.ID, err)
		}
	}
	return nil
}
