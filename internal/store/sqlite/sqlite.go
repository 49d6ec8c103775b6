// Package sqlite is the embedded store: one SQLite file in WAL mode, written
// by one connection.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"skerry.dev/skerry/internal/store"
)

// applicationID marks the file as ours ("skry"); see SQLite's PRAGMA
// application_id.
const applicationID = 0x736b7279

// readers is how many transactions can read at once.
const readers = 4

// Store is a store.Store in a SQLite file.
type Store struct {
	writer *sql.DB // one connection: SQLite has one writer at a time anyway
	reader *sql.DB

	eventIDs int64 // reserved up to here; used by who has the writer's connection
}

var _ store.Store = (*Store)(nil)

// Open opens the database file at path, makes it when there is none, and
// brings its schema up to date. A file that is damaged, not ours or of a newer
// version is refused and left as it is.
func Open(ctx context.Context, path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	// SQLite gives its -wal and -shm files the mode of the main file.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	f.Close()
	s := &Store{}
	if err := s.open(ctx, path); err != nil {
		s.Close()
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	return s, nil
}

func (s *Store) open(ctx context.Context, path string) error {
	// Looked at first, since setting the journal mode writes to the file.
	probe, err := connect(path, "deferred", 1, "query_only(1)")
	if err != nil {
		return err
	}
	err = check(ctx, probe)
	probe.Close()
	if err != nil {
		return explain(err)
	}
	// secure_delete wipes rows that held a registry login.
	if s.writer, err = connect(path, "immediate", 1, "journal_mode(WAL)", "foreign_keys(1)", "secure_delete(1)"); err != nil {
		return err
	}
	if err := migrate(ctx, s.writer, migrations); err != nil {
		return explain(err)
	}
	if err := s.Update(ctx, func(tx store.Tx) error { return tx.(*txn).skipEventIDs(ctx) }); err != nil {
		return explain(err)
	}
	s.reader, err = connect(path, "deferred", readers, "query_only(1)")
	return err
}

func connect(path, lock string, conns int, pragmas ...string) (*sql.DB, error) {
	query := url.Values{"_txlock": {lock}, "_pragma": append([]string{"busy_timeout(5000)"}, pragmas...)}
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: query.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

// check refuses a file that is not ours or damaged.
func check(ctx context.Context, db *sql.DB) error {
	var tables, id int64
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return err
	}
	if err := db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return err
	}
	if tables > 0 && id != applicationID {
		return errors.New("is a database of another program")
	}
	var result string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&result); err != nil {
		return err
	}
	if result != "ok" {
		return fmt.Errorf("%w: %s", errDamaged, result)
	}
	return nil
}

var errDamaged = errors.New("the database is damaged; restore it from a copy, or move it away to start with an empty one")

func explain(err error) error {
	if c := code(err); c == sqlite3.SQLITE_CORRUPT || c == sqlite3.SQLITE_NOTADB {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return err
}

// code returns the primary result code of SQLite, 0 for other errors.
func code(err error) int {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code() & 0xff
}

// Close implements store.Store.
func (s *Store) Close() error {
	var errs []error
	for _, db := range []*sql.DB{s.reader, s.writer} { // the last one checkpoints the WAL
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// View implements store.Store.
func (s *Store) View(ctx context.Context, fn func(store.Reader) error) error {
	tx, err := s.reader.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin read: %w", err)
	}
	defer tx.Rollback() // nothing was written
	return fn(&txn{tx: tx})
}

// Update implements store.Store. The transaction takes SQLite's write lock at
// its start, so that there are no conflicts.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	_, err := s.update(ctx, full, fn)
	return err
}

// UpdateLazily implements store.Store. When the reserved ids of events are used
// up, fn is run again in a transaction that waits for the disk.
func (s *Store) UpdateLazily(ctx context.Context, fn func(store.Tx) error) error {
	again, err := s.update(ctx, normal, fn)
	if again {
		_, err = s.update(ctx, full, fn)
	}
	return err
}

// The values of SQLite's PRAGMA synchronous: in WAL mode full syncs the log, and
// with it all transactions before, at each commit, normal only before the log is
// copied into the database.
const (
	full   = "FULL"
	normal = "NORMAL"
)

// update runs fn in a transaction. With again nothing was written, as it needs
// full.
func (s *Store) update(ctx context.Context, synchronous string, fn func(store.Tx) error) (again bool, err error) {
	conn, err := s.writer.Conn(ctx)
	if err != nil {
		return false, fmt.Errorf("begin write: %w", err)
	}
	defer conn.Close() // gives it back
	if _, err := conn.ExecContext(ctx, "PRAGMA synchronous = "+synchronous); err != nil {
		return false, fmt.Errorf("begin write: %w", err)
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return false, fmt.Errorf("begin write: %w", err)
	}
	defer tx.Rollback() // does nothing after a commit
	t := &txn{tx: tx, lasting: synchronous == full, eventIDs: s.eventIDs}
	err = fn(t)
	if err != nil || t.again {
		return t.again, err
	}
	if err := tx.Commit(); err != nil {
		if errors.Is(err, sql.ErrTxDone) && ctx.Err() != nil {
			err = ctx.Err() // which had the transaction rolled back
		}
		return false, fmt.Errorf("commit: %w", err)
	}
	s.eventIDs = t.eventIDs
	return false, nil
}
