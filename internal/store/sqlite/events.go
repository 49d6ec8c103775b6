package sqlite

import (
	"context"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

func (t *txn) Events(ctx context.Context, filter skerry.EventFilter) ([]skerry.Event, error) {
	limit, err := store.PageLimit(filter.Limit)
	if err != nil {
		return nil, err
	}
	where, args := "id > ?", []any{filter.After}
	if filter.ObjectID != "" {
		where, args = "object_id = ? AND id > ?", []any{filter.ObjectID, filter.After}
	}
	found := []skerry.Event{}
	err = t.query(ctx, "events", func(row rowScanner) error {
		var e skerry.Event
		var object string
		err := row.Scan(&e.ID, &e.Type, timeColumn{&e.Time}, &e.ObjectID, &e.Status, &object)
		e.Object = []byte(object)
		found = append(found, e)
		return err
	}, "SELECT id, type, time, object_id, status, object FROM events WHERE "+where+" ORDER BY id LIMIT ?", append(args, limit)...)
	return found, err
}

func (t *txn) LastEventID(ctx context.Context) (id int64, err error) {
	err = t.tx.QueryRowContext(ctx, "SELECT coalesce(max(id), 0) FROM events").Scan(&id)
	return id, one("events", err)
}

func (t *txn) OldestEvent(ctx context.Context) (at time.Time, err error) {
	err = t.tx.QueryRowContext(ctx, "SELECT time FROM events ORDER BY time LIMIT 1").Scan(timeColumn{&at})
	return at, one("events", err)
}

func (t *txn) AddEvent(ctx context.Context, e skerry.Event) error {
	_, err := t.exec(ctx, "add event", "INSERT INTO events (type, time, object_id, status, object) VALUES (?, ?, ?, ?, ?)",
		e.Type, micros(e.Time), e.ObjectID, e.Status, string(e.Object))
	return err
}

func (t *txn) PruneEvents(ctx context.Context, at time.Time, keep int) (int, error) {
	old, err := t.exec(ctx, "prune events", "DELETE FROM events WHERE time <= ?", micros(at))
	if err != nil {
		return 0, err
	}
	many, err := t.exec(ctx, "prune events", "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", keep)
	return int(old + many), err
}
