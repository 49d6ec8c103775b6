package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

const sandboxColumns = `seq, id, version, name, status, reason, image, image_id, labels, user, env, resources,
	unenforced, region, arch, runner_id, runner_epoch, machine_id, coalesce(idempotency_key, ''), args_digest,
	created_at, updated_at, started_at, create_deadline, deleted_at,
	persistent, spot, forked_from, snapshot_id, operation, operation_target, policy, timeout_at, idle_timeout_at,
	last_activity_at, spot_evicted_at, reclaim_due, idle_asked_at, retry_at, due_at`

func scanSandbox(row rowScanner) (s store.Sandbox, seq int64, err error) {
	columns := []any{&seq, &s.ID, &s.Version, &s.Name, &s.Status, &s.Reason, &s.Image, &s.ImageID, jsonColumn{&s.Labels}, &s.User,
		jsonColumn{&s.Env}, jsonColumn{&s.Resources}, jsonColumn{&s.Unenforced}, &s.Region, &s.Arch, &s.Runner, &s.RunnerEpoch,
		&s.Machine, &s.IdempotencyKey, &s.ArgsDigest,
		timeColumn{&s.CreatedAt}, timeColumn{&s.UpdatedAt}, timePointer{&s.StartedAt}, timeColumn{&s.CreateDeadline}, timeColumn{&s.DeletedAt},
		&s.Persistent, &s.Spot, &s.ForkedFrom, &s.Snapshot, &s.Operation, &s.OperationTarget, jsonColumn{&s.Lifecycle.LifecyclePolicy},
		timePointer{&s.Lifecycle.TimeoutAt}, timePointer{&s.Lifecycle.IdleTimeoutAt}, timePointer{&s.Lifecycle.LastActivityAt},
		timePointer{&s.SpotEvictedAt}, &s.ReclaimDue, timeColumn{&s.IdleAskedAt}, timeColumn{&s.RetryAt}, timeColumn{&s.DueAt}}
	if err := row.Scan(columns...); err != nil {
		return store.Sandbox{}, 0, err
	}
	s.State = s.Status.State()
	return s, seq, nil
}

func (t *txn) oneSandbox(ctx context.Context, where string, args ...any) (store.Sandbox, error) {
	s, _, err := scanSandbox(t.tx.QueryRowContext(ctx, "SELECT "+sandboxColumns+" FROM sandboxes "+where, args...))
	return s, one("sandbox", err)
}

func (t *txn) Sandbox(ctx context.Context, id skerry.SandboxID) (store.Sandbox, error) {
	return t.oneSandbox(ctx, "WHERE id = ?", id)
}

func (t *txn) SandboxByName(ctx context.Context, name string) (store.Sandbox, error) {
	return t.oneSandbox(ctx, "WHERE name = ? ORDER BY deleted_at IS NULL DESC, deleted_at DESC, seq DESC LIMIT 1", name)
}

func (t *txn) SandboxByKey(ctx context.Context, key string) (store.Sandbox, error) {
	return t.oneSandbox(ctx, "WHERE idempotency_key = ? AND deleted_at IS NULL", key)
}

func (t *txn) NextCreateDeadline(ctx context.Context, statuses []skerry.Status) (store.Sandbox, error) {
	marks, args := list(statuses)
	return t.oneSandbox(ctx, "WHERE status IN ("+marks+") AND started_at IS NULL ORDER BY create_deadline LIMIT 1", args...)
}

func (t *txn) NextDue(ctx context.Context) (store.Sandbox, error) {
	return t.oneSandbox(ctx, "WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1")
}

func (t *txn) OldestDeleted(ctx context.Context) (time.Time, error) {
	var at int64
	err := t.tx.QueryRowContext(ctx, "SELECT deleted_at FROM sandboxes WHERE deleted_at IS NOT NULL ORDER BY deleted_at LIMIT 1").Scan(&at)
	if err != nil {
		return time.Time{}, one("deleted sandboxes", err)
	}
	return fromMicros(at), nil
}

func (t *txn) Sandboxes(ctx context.Context, filter skerry.SandboxFilter) (store.SandboxPage, error) {
	limit, err := store.PageLimit(filter.Limit)
	if err != nil {
		return store.SandboxPage{}, err
	}
	where, args, err := sandboxConditions(filter)
	if err != nil {
		return store.SandboxPage{}, err
	}
	// One row more than asked for tells whether there is another page.
	statement := "SELECT " + sandboxColumns + " FROM sandboxes WHERE " + where + " ORDER BY seq DESC LIMIT ?"
	rows, err := t.tx.QueryContext(ctx, statement, append(args, limit+1)...)
	if err != nil {
		return store.SandboxPage{}, fmt.Errorf("list sandboxes: %w", err)
	}
	defer rows.Close()
	page := store.SandboxPage{Items: []store.Sandbox{}}
	var last int64
	size := 0
	for rows.Next() {
		if len(page.Items) == limit || size > store.MaxPageBytes {
			page.Next = store.FormatCursor(last)
			break
		}
		s, seq, err := scanSandbox(rows)
		if err != nil {
			return store.SandboxPage{}, fmt.Errorf("list sandboxes: %w", err)
		}
		for k, v := range s.Env {
			size += len(k) + len(v)
		}
		page.Items, last = append(page.Items, s), seq
	}
	if err := rows.Err(); err != nil {
		return store.SandboxPage{}, fmt.Errorf("list sandboxes: %w", err)
	}
	return page, nil
}

func sandboxConditions(filter skerry.SandboxFilter) (where string, args []any, err error) {
	conditions := []string{"TRUE"}
	if !filter.Deleted {
		conditions = append(conditions, "deleted_at IS NULL")
	}
	if filter.Cursor != "" {
		seq, err := store.ParseCursor(filter.Cursor)
		if err != nil {
			return "", nil, err
		}
		conditions, args = append(conditions, "seq < ?"), append(args, seq)
	}
	if len(filter.Statuses) > 0 {
		marks, statuses := list(filter.Statuses)
		conditions, args = append(conditions, "status IN ("+marks+")"), append(args, statuses...)
	}
	for k, v := range filter.Labels {
		conditions = append(conditions, "seq IN (SELECT seq FROM sandbox_labels WHERE key = ? AND value = ?)")
		args = append(args, k, v)
	}
	return strings.Join(conditions, " AND "), args, nil
}

// list returns placeholders and arguments for IN (…).
func list[T any](values []T) (marks string, args []any) {
	for _, v := range values {
		args = append(args, v)
	}
	return strings.TrimSuffix(strings.Repeat("?,", len(values)), ","), args
}

func (t *txn) SandboxesOnRunner(ctx context.Context, runner skerry.RunnerID) ([]store.Sandbox, error) {
	var found []store.Sandbox
	err := t.query(ctx, "sandboxes of runner", func(row rowScanner) error {
		s, _, err := scanSandbox(row)
		found = append(found, s)
		return err
	}, "SELECT "+sandboxColumns+" FROM sandboxes WHERE runner_id = ? AND deleted_at IS NULL ORDER BY seq", runner)
	return found, err
}

func (t *txn) SandboxesForkedFrom(ctx context.Context, source skerry.SandboxID, statuses []skerry.Status) ([]store.Sandbox, error) {
	var found []store.Sandbox
	marks, args := list(statuses)
	err := t.query(ctx, "copies of sandbox", func(row rowScanner) error {
		s, _, err := scanSandbox(row)
		found = append(found, s)
		return err
	}, "SELECT "+sandboxColumns+" FROM sandboxes WHERE forked_from = ? AND forked_from <> '' AND status IN ("+marks+") ORDER BY seq", append([]any{source}, args...)...)
	return found, err
}

func (t *txn) CountSandboxesOfSnapshot(ctx context.Context, snapshot skerry.SnapshotID, statuses []skerry.Status) (n int, err error) {
	marks, args := list(statuses)
	err = t.tx.QueryRowContext(ctx, "SELECT count(*) FROM sandboxes WHERE snapshot_id = ? AND snapshot_id <> '' AND status IN ("+marks+")",
		append([]any{snapshot}, args...)...).Scan(&n)
	return n, one("sandboxes of snapshot", err)
}

func (t *txn) CountSandboxesOfImage(ctx context.Context, image skerry.ImageID) (n int, err error) {
	err = t.tx.QueryRowContext(ctx, "SELECT count(*) FROM sandboxes WHERE image_id = ? AND deleted_at IS NULL", image).Scan(&n)
	return n, one("sandboxes of image", err)
}

func (t *txn) InsertSandbox(ctx context.Context, s store.Sandbox) error {
	result, err := t.tx.ExecContext(ctx, `INSERT INTO sandboxes (id, version, name, status, reason, image, image_id, labels, user, env,
		resources, unenforced, region, arch, runner_id, runner_epoch, machine_id, idempotency_key, args_digest,
		created_at, updated_at, started_at, create_deadline, deleted_at,
		persistent, spot, forked_from, snapshot_id, operation, operation_target, policy, timeout_at, idle_timeout_at,
		last_activity_at, spot_evicted_at, reclaim_due, idle_asked_at, retry_at, due_at)
		VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		s.ID, s.Name, s.Status, s.Reason, s.Image, s.ImageID, text(s.Labels), s.User, text(s.Env),
		text(s.Resources), text(s.Unenforced), s.Region, s.Arch, s.Runner, s.RunnerEpoch, s.Machine,
		sql.NullString{String: s.IdempotencyKey, Valid: s.IdempotencyKey != ""}, s.ArgsDigest,
		micros(s.CreatedAt), micros(s.UpdatedAt), pointerMicros(s.StartedAt), micros(s.CreateDeadline), nullMicros(s.DeletedAt),
		s.Persistent, s.Spot, s.ForkedFrom, s.Snapshot, s.Operation, s.OperationTarget, text(s.Lifecycle.LifecyclePolicy),
		pointerMicros(s.Lifecycle.TimeoutAt), pointerMicros(s.Lifecycle.IdleTimeoutAt), pointerMicros(s.Lifecycle.LastActivityAt),
		pointerMicros(s.SpotEvictedAt), s.ReclaimDue, nullMicros(s.IdleAskedAt), nullMicros(s.RetryAt), nullMicros(s.DueAt))
	if err != nil {
		return writeError("insert sandbox", err)
	}
	seq, err := result.LastInsertId()
	if err != nil {
		return fmt.Errorf("insert sandbox: %w", err)
	}
	if len(s.Labels) == 0 {
		return nil
	}
	var args []any
	for k, v := range s.Labels {
		args = append(args, k, v, seq)
	}
	marks := strings.TrimSuffix(strings.Repeat("(?,?,?),", len(s.Labels)), ",")
	_, err = t.exec(ctx, "insert labels", "INSERT INTO sandbox_labels (key, value, seq) VALUES "+marks, args...)
	return err
}

func (t *txn) UpdateSandbox(ctx context.Context, s store.Sandbox) error {
	n, err := t.exec(ctx, "update sandbox", `UPDATE sandboxes SET version = version + 1, status = ?, reason = ?, user = ?, resources = ?,
		unenforced = ?, runner_id = ?, runner_epoch = ?, machine_id = ?, updated_at = ?, started_at = ?, create_deadline = ?,
		deleted_at = ?, operation = ?, operation_target = ?, policy = ?, timeout_at = ?, idle_timeout_at = ?, last_activity_at = ?,
		spot_evicted_at = ?, reclaim_due = ?, idle_asked_at = ?, retry_at = ?, due_at = ? WHERE id = ? AND version = ?`,
		s.Status, s.Reason, s.User, text(s.Resources), text(s.Unenforced), s.Runner, s.RunnerEpoch, s.Machine,
		micros(s.UpdatedAt), pointerMicros(s.StartedAt), micros(s.CreateDeadline), nullMicros(s.DeletedAt),
		s.Operation, s.OperationTarget, text(s.Lifecycle.LifecyclePolicy), pointerMicros(s.Lifecycle.TimeoutAt),
		pointerMicros(s.Lifecycle.IdleTimeoutAt), pointerMicros(s.Lifecycle.LastActivityAt), pointerMicros(s.SpotEvictedAt),
		s.ReclaimDue, nullMicros(s.IdleAskedAt), nullMicros(s.RetryAt), nullMicros(s.DueAt), s.ID, s.Version)
	if err == nil && n == 0 {
		return fmt.Errorf("update sandbox %s: %w", s.ID, store.ErrStale)
	}
	return err
}

func (t *txn) PruneSandboxes(ctx context.Context, at time.Time) (int, error) {
	n, err := t.exec(ctx, "prune sandboxes", "DELETE FROM sandboxes WHERE deleted_at <= ?", micros(at))
	return int(n), err
}
