package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

var migrations, _ = fs.Sub(migrationFiles, "migrations") // fails only for an invalid path

// migrate runs the numbered files of dir (0001_what.sql, 0002_…) that the
// database has not had yet, each in a transaction with the change of
// user_version that records it.
func migrate(ctx context.Context, db *sql.DB, dir fs.FS) error {
	files, err := fs.Glob(dir, "*.sql") // sorted
	if err != nil {
		return err
	}
	var have int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return err
	}
	if have > len(files) {
		return fmt.Errorf("schema version %d is newer than the %d this program knows: use the newer program", have, len(files))
	}
	for i, name := range files {
		number, _, _ := strings.Cut(name, "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			return fmt.Errorf("migration %s: want number %04d", name, i+1)
		}
		if i < have {
			continue
		}
		if err := migrateOne(ctx, db, dir, name, i+1); err != nil {
			return fmt.Errorf("migration %s: %w", name, err)
		}
	}
	return nil
}

func migrateOne(ctx context.Context, db *sql.DB, dir fs.FS, name string, version int) error {
	text, err := fs.ReadFile(dir, name)
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after a commit
	for _, statement := range []string{
		string(text),
		fmt.Sprintf("PRAGMA user_version = %d", version), // both are part of the transaction
		fmt.Sprintf("PRAGMA application_id = %d", applicationID),
	} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return tx.Commit()
}
