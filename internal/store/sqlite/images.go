package sqlite

import (
	"context"
	"fmt"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

const imageColumns = `id, version, name, status, error, source, digest, platform, is_default, bytes, layer_count,
	config, progress, runner_id, command, created_at, updated_at,
	anonymous, idle_expiry_seconds, expires_at, source_sandbox_id, push, push_command`

func scanImage(row rowScanner) (i store.Image, err error) {
	err = row.Scan(&i.ID, &i.Version, &i.Name, &i.Status, &i.Error, &i.Source, &i.Digest, &i.Platform, &i.Default, &i.Bytes, &i.LayerCount,
		jsonColumn{&i.Config}, jsonColumn{&i.Progress}, &i.Runner, &i.Command, timeColumn{&i.CreatedAt}, timeColumn{&i.UpdatedAt},
		&i.Anonymous, &i.IdleExpirySeconds, timePointer{&i.ExpiresAt}, &i.SourceSandbox, jsonColumn{&i.Push}, &i.PushCommand)
	return i, err
}

func (t *txn) oneImage(ctx context.Context, where string, args ...any) (store.Image, error) {
	i, err := scanImage(t.tx.QueryRowContext(ctx, "SELECT "+imageColumns+" FROM images "+where, args...))
	if err != nil {
		return store.Image{}, one("image", err)
	}
	return i, nil
}

func (t *txn) Image(ctx context.Context, id skerry.ImageID) (store.Image, error) {
	return t.oneImage(ctx, "WHERE id = ?", id)
}

func (t *txn) ImageByName(ctx context.Context, name string) (store.Image, error) {
	return t.oneImage(ctx, "WHERE name = ?", name)
}

func (t *txn) DefaultImage(ctx context.Context) (store.Image, error) {
	return t.oneImage(ctx, "WHERE is_default = 1")
}

func (t *txn) Images(ctx context.Context) ([]store.Image, error) {
	found := []store.Image{}
	err := t.query(ctx, "images", func(row rowScanner) error {
		i, err := scanImage(row)
		found = append(found, i)
		return err
	}, "SELECT "+imageColumns+" FROM images ORDER BY seq DESC")
	return found, err
}

// NextImageExpiry implements store.ImageReader.
func (t *txn) NextImageExpiry(ctx context.Context) (store.Image, error) {
	return t.oneImage(ctx, `WHERE expires_at IS NOT NULL
		AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE image_id = images.id AND deleted_at IS NULL)
		AND NOT EXISTS (SELECT 1 FROM snapshots WHERE image_id = images.id)
		ORDER BY expires_at LIMIT 1`)
}

func (t *txn) InsertImage(ctx context.Context, i store.Image) error {
	if err := t.giveUpDefault(ctx, i); err != nil {
		return err
	}
	if err := t.takeName(ctx, i.Name, string(i.ID)); err != nil {
		return err
	}
	_, err := t.exec(ctx, "insert image", `INSERT INTO images (id, version, name, status, error, source, digest, platform, is_default,
		bytes, layer_count, config, progress, runner_id, command, created_at, updated_at,
		anonymous, idle_expiry_seconds, expires_at, source_sandbox_id, push, push_command)
		VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		i.ID, i.Name, i.Status, i.Error, i.Source, i.Digest, i.Platform, i.Default,
		i.Bytes, i.LayerCount, text(i.Config), text(i.Progress), i.Runner, i.Command, micros(i.CreatedAt), micros(i.UpdatedAt),
		i.Anonymous, i.IdleExpirySeconds, pointerMicros(i.ExpiresAt), i.SourceSandbox, text(i.Push), i.PushCommand)
	return err
}

func (t *txn) UpdateImage(ctx context.Context, i store.Image) error {
	if err := t.giveUpDefault(ctx, i); err != nil {
		return err
	}
	n, err := t.exec(ctx, "update image", `UPDATE images SET version = version + 1, status = ?, error = ?, source = ?, digest = ?, platform = ?,
		is_default = ?, bytes = ?, layer_count = ?, config = ?, progress = ?, runner_id = ?, command = ?, updated_at = ?,
		anonymous = ?, idle_expiry_seconds = ?, expires_at = ?, source_sandbox_id = ?, push = ?, push_command = ?
		WHERE id = ? AND version = ?`,
		i.Status, i.Error, i.Source, i.Digest, i.Platform,
		i.Default, i.Bytes, i.LayerCount, text(i.Config), text(i.Progress), i.Runner, i.Command, micros(i.UpdatedAt),
		i.Anonymous, i.IdleExpirySeconds, pointerMicros(i.ExpiresAt), i.SourceSandbox, text(i.Push), i.PushCommand, i.ID, i.Version)
	if err == nil && n == 0 {
		return fmt.Errorf("update image %s: %w", i.ID, store.ErrStale)
	}
	return err
}

// giveUpDefault makes room for a new default image.
func (t *txn) giveUpDefault(ctx context.Context, i store.Image) error {
	if !i.Default {
		return nil
	}
	_, err := t.exec(ctx, "change default image", "UPDATE images SET is_default = 0, version = version + 1 WHERE is_default = 1 AND id <> ?", i.ID)
	return err
}

func (t *txn) DeleteImage(ctx context.Context, id skerry.ImageID) error {
	return t.deleteNamed(ctx, "images", string(id))
}

// takeName gives a name of the name space that images and snapshots share to an
// object.
func (t *txn) takeName(ctx context.Context, name, id string) error {
	_, err := t.exec(ctx, "take name", "INSERT INTO names (name, object_id) VALUES (?, ?)", name, id)
	return err
}

// deleteNamed deletes an object of a table and gives its name free.
func (t *txn) deleteNamed(ctx context.Context, table, id string) error {
	if _, err := t.exec(ctx, "free name", "DELETE FROM names WHERE object_id = ?", id); err != nil {
		return err
	}
	n, err := t.exec(ctx, "delete from "+table, "DELETE FROM "+table+" WHERE id = ?", id)
	if err == nil && n == 0 {
		return store.ErrNotFound
	}
	return err
}
