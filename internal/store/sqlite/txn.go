package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"skerry.dev/skerry/internal/store"
)

// txn implements store.Tx, one file per noun.
type txn struct {
	tx *sql.Tx

	lasting  bool  // is on the disk when it is committed
	eventIDs int64 // see Store; raised by what is lasting
	again    bool  // ids ran out in what is not
}

var _ store.Tx = (*txn)(nil)

// rowScanner is a *sql.Row or *sql.Rows.
type rowScanner interface{ Scan(dest ...any) error }

// one turns "no rows" into store.ErrNotFound.
func one(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrNoRows):
		return store.ErrNotFound
	default:
		return fmt.Errorf("read %s: %w", what, err)
	}
}

// exec runs a statement and returns the number of rows it changed. A clash
// with a unique index is store.ErrExists.
func (t *txn) exec(ctx context.Context, what, statement string, args ...any) (int64, error) {
	result, err := t.tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, writeError(what, err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return n, nil
}

// writeError tells a clash with a unique index by SQLite's extended result
// code (https://sqlite.org/rescode.html).
func writeError(what string, err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) && (e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY) {
		return fmt.Errorf("%s: %w: %w", what, store.ErrExists, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// query calls scan for each row.
func (t *txn) query(ctx context.Context, what string, scan func(rowScanner) error, statement string, args ...any) error {
	rows, err := t.tx.QueryContext(ctx, statement, args...)
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return fmt.Errorf("read %s: %w", what, err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	return nil
}

func micros(t time.Time) int64 { return t.UnixMicro() }

func fromMicros(us int64) time.Time { return time.UnixMicro(us).UTC() }

// nullMicros stores the zero time as NULL.
func nullMicros(t time.Time) sql.NullInt64 {
	return sql.NullInt64{Int64: t.UnixMicro(), Valid: !t.IsZero()}
}

// pointerMicros stores nil as NULL.
func pointerMicros(t *time.Time) sql.NullInt64 {
	if t == nil {
		return sql.NullInt64{}
	}
	return nullMicros(*t)
}

// timeColumn reads a time; NULL is the zero time.
type timeColumn struct{ t *time.Time }

func (c timeColumn) Scan(src any) error {
	switch us := src.(type) {
	case nil:
		*c.t = time.Time{}
	case int64:
		*c.t = fromMicros(us)
	default:
		return fmt.Errorf("column holds %T, want microseconds", src)
	}
	return nil
}

// timePointer reads a time; NULL is nil.
type timePointer struct{ t **time.Time }

func (c timePointer) Scan(src any) error {
	if src == nil {
		*c.t = nil
		return nil
	}
	*c.t = new(time.Time)
	return timeColumn{*c.t}.Scan(src)
}

// jsonColumn reads and writes a column of JSON text.
type jsonColumn struct{ v any }

func (c jsonColumn) Scan(src any) error {
	text, ok := src.(string)
	if !ok {
		return fmt.Errorf("column holds %T, want JSON text", src)
	}
	return json.Unmarshal([]byte(text), c.v)
}

// text encodes v, whose types (strings, numbers, lists and maps of them) can
// always be encoded.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("sqlite: encode column: " + err.Error())
	}
	return string(b)
}
