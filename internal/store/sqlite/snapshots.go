package sqlite

import (
	"context"
	"fmt"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

const snapshotColumns = `id, version, name, status, error, source_id, image, image_id, user, resources, persistent, runner_id, arch,
	memory_bytes, disk_bytes, pause_millis, created_at, updated_at`

func scanSnapshot(row rowScanner) (s store.Snapshot, err error) {
	err = row.Scan(&s.ID, &s.Version, &s.Name, &s.Status, &s.Error, &s.Source, &s.Image, &s.ImageID, &s.User, jsonColumn{&s.Resources},
		&s.Persistent, &s.Runner, &s.Arch, &s.MemoryBytes, &s.DiskBytes, &s.PauseMillis, timeColumn{&s.CreatedAt}, timeColumn{&s.UpdatedAt})
	return s, err
}

func (t *txn) oneSnapshot(ctx context.Context, where string, args ...any) (store.Snapshot, error) {
	s, err := scanSnapshot(t.tx.QueryRowContext(ctx, "SELECT "+snapshotColumns+" FROM snapshots "+where, args...))
	if err != nil {
		return store.Snapshot{}, one("snapshot", err)
	}
	return s, nil
}

func (t *txn) Snapshot(ctx context.Context, id skerry.SnapshotID) (store.Snapshot, error) {
	return t.oneSnapshot(ctx, "WHERE id = ?", id)
}

func (t *txn) SnapshotByName(ctx context.Context, name string) (store.Snapshot, error) {
	return t.oneSnapshot(ctx, "WHERE name = ?", name)
}

func (t *txn) Snapshots(ctx context.Context) ([]store.Snapshot, error) {
	found := []store.Snapshot{}
	err := t.query(ctx, "snapshots", func(row rowScanner) error {
		s, err := scanSnapshot(row)
		found = append(found, s)
		return err
	}, "SELECT "+snapshotColumns+" FROM snapshots ORDER BY seq DESC")
	return found, err
}

func (t *txn) CountSnapshotsOfImage(ctx context.Context, image skerry.ImageID) (n int, err error) {
	err = t.tx.QueryRowContext(ctx, "SELECT count(*) FROM snapshots WHERE image_id = ?", image).Scan(&n)
	return n, one("snapshots of image", err)
}

func (t *txn) InsertSnapshot(ctx context.Context, s store.Snapshot) error {
	if err := t.takeName(ctx, s.Name, string(s.ID)); err != nil {
		return err
	}
	_, err := t.exec(ctx, "insert snapshot", `INSERT INTO snapshots (id, version, name, status, error, source_id, image, image_id, user,
		resources, persistent, runner_id, arch, memory_bytes, disk_bytes, pause_millis, created_at, updated_at)
		VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		s.ID, s.Name, s.Status, s.Error, s.Source, s.Image, s.ImageID, s.User,
		text(s.Resources), s.Persistent, s.Runner, s.Arch, s.MemoryBytes, s.DiskBytes, s.PauseMillis, micros(s.CreatedAt), micros(s.UpdatedAt))
	return err
}

func (t *txn) UpdateSnapshot(ctx context.Context, s store.Snapshot) error {
	n, err := t.exec(ctx, "update snapshot", `UPDATE snapshots SET version = version + 1, status = ?, error = ?,
		memory_bytes = ?, disk_bytes = ?, pause_millis = ?, updated_at = ? WHERE id = ? AND version = ?`,
		s.Status, s.Error, s.MemoryBytes, s.DiskBytes, s.PauseMillis, micros(s.UpdatedAt), s.ID, s.Version)
	if err == nil && n == 0 {
		return fmt.Errorf("update snapshot %s: %w", s.ID, store.ErrStale)
	}
	return err
}

func (t *txn) DeleteSnapshot(ctx context.Context, id skerry.SnapshotID) error {
	return t.deleteNamed(ctx, "snapshots", string(id))
}
