package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

func newSnapshot(name string) store.Snapshot {
	return store.Snapshot{
		Snapshot: skerry.Snapshot{ID: skerry.NewSnapshotID(), Name: name, Status: skerry.ImagePending, Source: "sbx_a", Image: "debian", ImageID: "img_a",
			User: "root", Resources: skerry.Resources{CPU: 0.5, MemoryMiB: 1024}, Persistent: true, Runner: "run_a", CreatedAt: epoch, UpdatedAt: epoch},
		Version: 1, Arch: "amd64",
	}
}

// testSandboxOrigins: copies and restores are found by what they are made of.
func testSandboxOrigins(t *testing.T, db Database) {
	s := db(t)
	a, b, c, plain := newSandbox("a"), newSandbox("b"), newSandbox("c"), newSandbox("plain")
	a.ForkedFrom, b.ForkedFrom, c.ForkedFrom = "sbx_1", "sbx_1", "sbx_2"
	b.Status, b.State = skerry.StatusRunning, skerry.StatusRunning.State()
	a.Snapshot, b.Snapshot = "snap_1", "snap_1"
	insert(t, s, a, b, c, plain)
	view(t, s, func(ctx context.Context, r store.Reader) error {
		queued := []skerry.Status{skerry.StatusQueued, skerry.StatusPending}
		found, err := r.SandboxesForkedFrom(ctx, "sbx_1", queued)
		wantSame(t, "copies", found, []store.Sandbox{a})
		none, noneErr := r.SandboxesForkedFrom(ctx, "", queued)
		wantSame(t, "copies of nothing", none, []store.Sandbox(nil))
		n, countErr := r.CountSandboxesOfSnapshot(ctx, "snap_1", queued)
		wantSame(t, "restores", n, 1)
		n, nothingErr := r.CountSandboxesOfSnapshot(ctx, "", queued)
		wantSame(t, "restores of nothing", n, 0)
		return errors.Join(err, noneErr, countErr, nothingErr)
	})
}

func testNextDue(t *testing.T, db Database) {
	s := db(t)
	view(t, s, func(ctx context.Context, r store.Reader) error {
		_, err := r.NextDue(ctx)
		wantErr(t, "nothing due", err, store.ErrNotFound)
		return nil
	})
	a, b, never := newSandbox("a"), newSandbox("b"), newSandbox("never")
	a.DueAt, b.DueAt = epoch.Add(time.Minute), epoch.Add(time.Second)
	insert(t, s, a, b, never)
	want := func(want store.Sandbox) {
		t.Helper()
		view(t, s, func(ctx context.Context, r store.Reader) error {
			got, err := r.NextDue(ctx)
			wantSame(t, "next due", got, want)
			return err
		})
	}
	want(b)
	b.DueAt = time.Time{}
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.UpdateSandbox(ctx, b) })
	want(a)
}

// testCaptures: the columns of images that captures and uploads have.
func testCaptures(t *testing.T, db Database) {
	s := db(t)
	expires := epoch.Add(time.Hour)
	i := newImage("a")
	i.Anonymous, i.IdleExpirySeconds, i.SourceSandbox = true, 60, "sbx_a"
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.InsertImage(ctx, i) })
	get := func() {
		t.Helper()
		view(t, s, func(ctx context.Context, r store.Reader) error {
			got, err := r.Image(ctx, i.ID)
			wantSame(t, "image", got, i)
			return err
		})
	}
	get()
	i.ExpiresAt, i.IdleExpirySeconds = &expires, 90
	i.Push = &skerry.PushProgress{Reference: "r", Status: skerry.ImageBuilding, Error: "e", Digest: "d", DoneBytes: 1, TotalBytes: 2}
	i.PushCommand = []byte("\x00command")
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.UpdateImage(ctx, i) })
	i.Version++
	get()
	i.ExpiresAt, i.Push, i.PushCommand = nil, nil, nil
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.UpdateImage(ctx, i) })
	i.Version++
	get()
}

// testImageExpiry: of the images that expire, those in use are left out.
func testImageExpiry(t *testing.T, db Database) {
	s := db(t)
	at := func(minutes int) *time.Time { t := epoch.Add(time.Duration(minutes) * time.Minute); return &t }
	used, saved, first, second, never := newImage("used"), newImage("saved"), newImage("first"), newImage("second"), newImage("never")
	used.ExpiresAt, saved.ExpiresAt, first.ExpiresAt, second.ExpiresAt = at(1), at(2), at(3), at(4)
	sb, gone, snapshot := newSandbox("sb"), newSandbox("gone"), newSnapshot("n")
	sb.ImageID, gone.ImageID, snapshot.ImageID = used.ID, first.ID, saved.ID
	gone.Status, gone.DeletedAt = skerry.StatusDeleted, epoch
	insert(t, s, sb, gone)
	update(t, s, func(ctx context.Context, tx store.Tx) error {
		return errors.Join(tx.InsertImage(ctx, second), tx.InsertImage(ctx, used), tx.InsertImage(ctx, saved), tx.InsertImage(ctx, first),
			tx.InsertImage(ctx, never), tx.InsertSnapshot(ctx, snapshot))
	})
	steps := []struct {
		want   string
		change func(context.Context, store.Tx) error
	}{
		{"first", func(ctx context.Context, tx store.Tx) error { return tx.DeleteSnapshot(ctx, snapshot.ID) }},
		{"saved", func(ctx context.Context, tx store.Tx) error {
			sb.Status, sb.DeletedAt = skerry.StatusDeleted, epoch
			return tx.UpdateSandbox(ctx, sb)
		}},
		{"used", func(ctx context.Context, tx store.Tx) error {
			return errors.Join(tx.DeleteImage(ctx, used.ID), tx.DeleteImage(ctx, saved.ID), tx.DeleteImage(ctx, first.ID))
		}},
		{"second", func(ctx context.Context, tx store.Tx) error { return tx.DeleteImage(ctx, second.ID) }},
	}
	for _, step := range steps {
		view(t, s, func(ctx context.Context, r store.Reader) error {
			got, err := r.NextImageExpiry(ctx)
			wantSame(t, "next expiry", got.Name, step.want)
			return err
		})
		update(t, s, step.change)
	}
	view(t, s, func(ctx context.Context, r store.Reader) error {
		_, err := r.NextImageExpiry(ctx)
		wantErr(t, "nothing expires", err, store.ErrNotFound)
		return nil
	})
}

func testSnapshots(t *testing.T, db Database) {
	s := db(t)
	a, b := newSnapshot("a"), newSnapshot("b")
	b.ImageID = "img_b"
	update(t, s, func(ctx context.Context, tx store.Tx) error {
		return errors.Join(tx.InsertSnapshot(ctx, a), tx.InsertSnapshot(ctx, b))
	})
	a.Status, a.Error, a.MemoryBytes, a.DiskBytes, a.PauseMillis, a.UpdatedAt = skerry.ImageReady, "e", 1<<40, 2, 3, epoch.Add(time.Minute)
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.UpdateSnapshot(ctx, a) })
	err := tryUpdate(t, s, func(ctx context.Context, tx store.Tx) error { return tx.UpdateSnapshot(ctx, a) })
	wantErr(t, "old version", err, store.ErrStale)
	a.Version++
	view(t, s, func(ctx context.Context, r store.Reader) error {
		got, err := r.Snapshot(ctx, a.ID)
		wantSame(t, "by id", got, a)
		byName, nameErr := r.SnapshotByName(ctx, "b")
		wantSame(t, "by name", byName, b)
		all, listErr := r.Snapshots(ctx)
		wantSame(t, "all", all, []store.Snapshot{b, a})
		n, countErr := r.CountSnapshotsOfImage(ctx, "img_b")
		wantSame(t, "of an image", n, 1)
		_, missing := r.Snapshot(ctx, "snap_none")
		wantErr(t, "unknown id", missing, store.ErrNotFound)
		_, missing = r.SnapshotByName(ctx, "none")
		wantErr(t, "unknown name", missing, store.ErrNotFound)
		return errors.Join(err, nameErr, listErr, countErr)
	})
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.DeleteSnapshot(ctx, a.ID) })
	err = tryUpdate(t, s, func(ctx context.Context, tx store.Tx) error { return tx.DeleteSnapshot(ctx, a.ID) })
	wantErr(t, "delete twice", err, store.ErrNotFound)
	err = tryUpdate(t, s, func(ctx context.Context, tx store.Tx) error { return tx.UpdateSnapshot(ctx, a) })
	wantErr(t, "update a deleted one", err, store.ErrStale)
}

// testNames: a name belongs to one image or one snapshot, until that is deleted.
func testNames(t *testing.T, db Database) {
	s := db(t)
	i, n := newImage("image"), newSnapshot("snapshot")
	update(t, s, func(ctx context.Context, tx store.Tx) error {
		return errors.Join(tx.InsertImage(ctx, i), tx.InsertSnapshot(ctx, n))
	})
	for _, name := range []string{"image", "snapshot"} {
		err := tryUpdate(t, s, func(ctx context.Context, tx store.Tx) error { return tx.InsertImage(ctx, newImage(name)) })
		wantErr(t, "image named "+name, err, store.ErrExists)
		err = tryUpdate(t, s, func(ctx context.Context, tx store.Tx) error { return tx.InsertSnapshot(ctx, newSnapshot(name)) })
		wantErr(t, "snapshot named "+name, err, store.ErrExists)
	}
	update(t, s, func(ctx context.Context, tx store.Tx) error {
		return errors.Join(tx.DeleteImage(ctx, i.ID), tx.DeleteSnapshot(ctx, n.ID),
			tx.InsertImage(ctx, newImage("snapshot")), tx.InsertSnapshot(ctx, newSnapshot("image")))
	})
}

func testEvents(t *testing.T, db Database) {
	s := db(t)
	view(t, s, func(ctx context.Context, r store.Reader) error {
		_, err := r.OldestEvent(ctx)
		wantErr(t, "no event", err, store.ErrNotFound)
		return nil
	})
	var added []skerry.Event
	for i := range 10 {
		e := skerry.Event{Type: skerry.EventSandboxStatus, Time: epoch.Add(time.Duration(i) * time.Minute), ObjectID: fmt.Sprint("sbx_", i%2), Status: "running", Object: json.RawMessage(`{"a":"é"}`)}
		added = append(added, e)
		update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.AddEvent(ctx, e) })
	}
	read := func(filter skerry.EventFilter) (events []skerry.Event) {
		t.Helper()
		view(t, s, func(ctx context.Context, r store.Reader) (err error) {
			events, err = r.Events(ctx, filter)
			return err
		})
		return events
	}
	all := read(skerry.EventFilter{})
	for i := range all {
		if i > 0 && all[i].ID <= all[i-1].ID {
			t.Errorf("ids %d, %d do not grow", all[i-1].ID, all[i].ID)
		}
		added[i].ID = all[i].ID
	}
	wantSame(t, "all", all, added)
	wantSame(t, "a page", read(skerry.EventFilter{Limit: 3}), added[:3])
	wantSame(t, "after one", read(skerry.EventFilter{After: all[6].ID}), added[7:])
	wantSame(t, "of one object", read(skerry.EventFilter{ObjectID: "sbx_1", After: all[4].ID}), []skerry.Event{added[5], added[7], added[9]})
	wantSame(t, "after the last", read(skerry.EventFilter{After: all[9].ID}), []skerry.Event{})
	prune := func(at time.Time, keep, want int) {
		t.Helper()
		update(t, s, func(ctx context.Context, tx store.Tx) error {
			n, err := tx.PruneEvents(ctx, at, keep)
			wantSame(t, "pruned", n, want)
			return err
		})
	}
	prune(added[2].Time, 100, 3)
	view(t, s, func(ctx context.Context, r store.Reader) error {
		oldest, err := r.OldestEvent(ctx)
		wantSame(t, "oldest", oldest, added[3].Time)
		return err
	})
	prune(epoch.Add(-time.Hour), 4, 3)
	wantSame(t, "left", read(skerry.EventFilter{}), added[6:])
	prune(added[9].Time, 4, 4)
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.AddEvent(ctx, added[0]) })
	if got := read(skerry.EventFilter{}); len(got) != 1 || got[0].ID <= added[9].ID {
		t.Errorf("an id is used again: %+v", got)
	}
}
