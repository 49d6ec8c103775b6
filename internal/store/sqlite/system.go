package sqlite

import (
	"context"
	"errors"

	"skerry.dev/skerry/internal/store"
)

func (t *txn) Outbox(ctx context.Context, limit int) ([]store.OutboxEntry, error) {
	var found []store.OutboxEntry
	err := t.query(ctx, "outbox", func(row rowScanner) error {
		var e store.OutboxEntry
		err := row.Scan(&e.ID, &e.SandboxID, &e.Runner, &e.Payload)
		found = append(found, e)
		return err
	}, "SELECT id, sandbox_id, runner_id, payload FROM outbox ORDER BY id LIMIT ?", limit)
	return found, err
}

func (t *txn) AddOutbox(ctx context.Context, e store.OutboxEntry) error {
	_, err := t.exec(ctx, "add to outbox", "INSERT INTO outbox (sandbox_id, runner_id, payload) VALUES (?, ?, ?)", e.SandboxID, e.Runner, e.Payload)
	return err
}

func (t *txn) DeleteOutbox(ctx context.Context, id int64) error {
	_, err := t.exec(ctx, "delete from outbox", "DELETE FROM outbox WHERE id = ?", id)
	return err
}

func (t *txn) APIKeyByHash(ctx context.Context, hash []byte) (store.APIKey, error) {
	var k store.APIKey
	var created int64
	err := t.tx.QueryRowContext(ctx, "SELECT id, name, hash, created_at FROM api_keys WHERE hash = ?", hash).Scan(&k.ID, &k.Name, &k.Hash, &created)
	if err != nil {
		return store.APIKey{}, one("API key", err)
	}
	k.CreatedAt = fromMicros(created)
	return k, nil
}

func (t *txn) CountAPIKeys(ctx context.Context) (n int, err error) {
	err = t.tx.QueryRowContext(ctx, "SELECT count(*) FROM api_keys").Scan(&n)
	return n, one("API keys", err)
}

func (t *txn) InsertAPIKey(ctx context.Context, k store.APIKey) error {
	_, err := t.exec(ctx, "insert API key", "INSERT INTO api_keys (id, name, hash, created_at) VALUES (?, ?, ?, ?)", k.ID, k.Name, k.Hash, micros(k.CreatedAt))
	return err
}

func (t *txn) Meta(ctx context.Context, key string) (value string, err error) {
	err = one("setting", t.tx.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", key).Scan(&value))
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	return value, err
}

func (t *txn) SetMeta(ctx context.Context, key, value string) error {
	_, err := t.exec(ctx, "set "+key, "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)
	return err
}
