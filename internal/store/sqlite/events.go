package sqlite

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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

// Ids of events are reserved in blocks, so that those of events that a power
// failure has undone are not given to others, which who has seen the first would
// never read: an id up to the end of the reservation, which is on the disk, is
// given once at most. Who opens the database begins behind it.
const (
	eventBlock       = 256
	eventReservation = "event_ids_reserved" // the setting
)

// skipEventIDs begins behind all ids that may have been given, and reserves a
// block.
func (t *txn) skipEventIDs(ctx context.Context) error {
	var last int64
	err := t.tx.QueryRowContext(ctx, "SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0), "+
		"coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?), 0))", eventReservation).Scan(&last)
	if err != nil {
		return fmt.Errorf("ids of events: %w", err)
	}
	// The table is SQLite's own for AUTOINCREMENT, which takes the next one from
	// there. It has a row only after a first insert.
	if _, err := t.exec(ctx, "ids of events", "DELETE FROM sqlite_sequence WHERE name = 'events'"); err != nil {
		return err
	}
	if _, err := t.exec(ctx, "ids of events", "INSERT INTO sqlite_sequence (name, seq) VALUES ('events', ?)", last); err != nil {
		return err
	}
	return t.reserveEventIDs(ctx, last)
}

// reserveEventIDs reserves the block behind an id.
func (t *txn) reserveEventIDs(ctx context.Context, last int64) error {
	t.eventIDs = last + eventBlock
	return t.SetMeta(ctx, eventReservation, strconv.FormatInt(t.eventIDs, 10))
}

var errNoEventIDs = errors.New("the reserved ids of events are used up")

func (t *txn) AddEvent(ctx context.Context, e skerry.Event) error {
	result, err := t.tx.ExecContext(ctx, "INSERT INTO events (type, time, object_id, status, object) VALUES (?, ?, ?, ?, ?)",
		e.Type, micros(e.Time), e.ObjectID, e.Status, string(e.Object))
	if err != nil {
		return writeError("add event", err)
	}
	id, err := result.LastInsertId()
	switch {
	case err != nil:
		return fmt.Errorf("add event: %w", err)
	case t.lasting && id > t.eventIDs-eventBlock/2: // so that others seldom run out
		return t.reserveEventIDs(ctx, id)
	case id > t.eventIDs:
		t.again = true
		return errNoEventIDs
	}
	return nil
}

func (t *txn) PruneEvents(ctx context.Context, at time.Time, keep int) (int, error) {
	old, err := t.exec(ctx, "prune events", "DELETE FROM events WHERE time <= ?", micros(at))
	if err != nil {
		return 0, err
	}
	many, err := t.exec(ctx, "prune events", "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", keep)
	return int(old + many), err
}
