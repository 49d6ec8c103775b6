package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
	"skerry.dev/skerry/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Database {
		path := filepath.Join(t.TempDir(), "a b%20?#.db") // a path that needs escaping
		return func(t *testing.T) store.Store { return open(t, path) }
	})
}

func open(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestFilesArePrivate(t *testing.T) {
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "x.db"))
	if err := s.Update(t.Context(), func(tx store.Tx) error { return tx.SetMeta(t.Context(), "a", "b") }); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) < 2 {
		t.Fatalf("files %q, %v, want the database and its log", files, err)
	}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != 0o600 {
			t.Errorf("%s has mode %o, want 600", filepath.Base(f), got)
		}
	}
}

// TestRefusals: what cannot be used is refused with a reason, and not touched.
func TestRefusals(t *testing.T) {
	valid := func(t *testing.T, path string) {
		s := open(t, path)
		for i := range 200 {
			if err := s.Update(t.Context(), func(tx store.Tx) error {
				return tx.SetMeta(t.Context(), fmt.Sprint("key", i), strings.Repeat("x", 500))
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	exec := func(t *testing.T, path, statement string) {
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name    string
		prepare func(t *testing.T, path string)
		want    string
	}{
		{"text file", func(t *testing.T, path string) {
			os.WriteFile(path, []byte(strings.Repeat("not a database\n", 100)), 0o600)
		}, "damaged"},
		{"overwritten page", func(t *testing.T, path string) {
			valid(t, path)
			b, _ := os.ReadFile(path)
			copy(b[len(b)/2:], bytes.Repeat([]byte{0xa5}, 8192))
			os.WriteFile(path, b, 0o600)
		}, "damaged"},
		{"cut short", func(t *testing.T, path string) {
			valid(t, path)
			info, _ := os.Stat(path)
			os.Truncate(path, info.Size()/2)
		}, "damaged"},
		{"newer version", func(t *testing.T, path string) {
			valid(t, path)
			exec(t, path, "PRAGMA user_version = 1000")
		}, "newer"},
		{"another program's", func(t *testing.T, path string) {
			exec(t, path, "CREATE TABLE songs (title TEXT)")
		}, "another program"},
		{"a directory", func(t *testing.T, path string) { os.Mkdir(path, 0o700) }, "is a directory"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.db")
			test.prepare(t, path)
			before, _ := os.ReadFile(path)
			s, err := Open(t.Context(), path)
			if err == nil {
				s.Close()
				t.Fatal("was opened")
			}
			if !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %q, want the path and %q", err, test.want)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
				t.Error("the file was changed")
			}
		})
	}
}

func TestMigrations(t *testing.T) {
	one := &fstest.MapFile{Data: []byte("CREATE TABLE a (x INTEGER); CREATE TABLE b (x INTEGER)")}
	two := &fstest.MapFile{Data: []byte("ALTER TABLE a ADD COLUMN y INTEGER")}
	broken := &fstest.MapFile{Data: []byte("CREATE TABLE c (x INTEGER); CREATE TABLE a (x INTEGER)")}
	db, err := connect(filepath.Join(t.TempDir(), "x.db"), "immediate", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	version := func() (v int) {
		if err := db.QueryRow("PRAGMA user_version").Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	steps := []struct {
		name    string
		files   fstest.MapFS
		version int
		err     string
	}{
		{"first", fstest.MapFS{"0001_a.sql": one}, 1, ""},
		{"nothing to do", fstest.MapFS{"0001_a.sql": one}, 1, ""},
		{"broken", fstest.MapFS{"0001_a.sql": one, "0002_c.sql": broken}, 1, "migration 0002_c.sql"},
		{"second", fstest.MapFS{"0001_a.sql": one, "0002_b.sql": two}, 2, ""},
		{"gap", fstest.MapFS{"0001_a.sql": one, "0003_b.sql": two}, 2, "want number 0002"},
		{"older program", fstest.MapFS{"0001_a.sql": one}, 2, "newer"},
	}
	for _, step := range steps {
		err := migrate(t.Context(), db, step.files)
		if (err == nil) != (step.err == "") || err != nil && !strings.Contains(err.Error(), step.err) {
			t.Errorf("%s: error %v, want %q", step.name, err, step.err)
		}
		if got := version(); got != step.version {
			t.Errorf("%s: version %d, want %d", step.name, got, step.version)
		}
	}
	var tables int
	if err := db.QueryRow("SELECT count(*) FROM sqlite_schema WHERE name = 'c'").Scan(&tables); err != nil || tables != 0 {
		t.Errorf("a failed migration left a table: %d, %v", tables, err)
	}
}

// TestWriterWaits: a second process on the same file waits for the lock.
func TestWriterWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	first, second := open(t, path), open(t, path)
	inside, done := make(chan struct{}), make(chan error)
	go func() {
		<-inside
		done <- second.Update(t.Context(), func(tx store.Tx) error { return tx.SetMeta(t.Context(), "a", "second") })
	}()
	err := first.Update(t.Context(), func(tx store.Tx) error {
		close(inside)
		return tx.SetMeta(t.Context(), "a", "first")
	})
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
}

// TestIndexes: the queries of the hot paths use an index.
func TestIndexes(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "x.db"))
	for _, where := range []string{
		"id = 'x'",
		"name = 'x' ORDER BY deleted_at IS NULL DESC, deleted_at DESC, seq DESC LIMIT 1",
		"idempotency_key = 'x' AND deleted_at IS NULL",
		"status IN ('queued') ORDER BY create_deadline LIMIT 1",
		"deleted_at IS NOT NULL ORDER BY deleted_at LIMIT 1",
		"deleted_at < 5",
		"runner_id = 'x' AND deleted_at IS NULL ORDER BY seq",
		"image_id = 'x' AND deleted_at IS NULL",
		"TRUE AND deleted_at IS NULL ORDER BY seq DESC LIMIT 10",
		"due_at IS NOT NULL ORDER BY due_at LIMIT 1",
		"forked_from = 'x' AND forked_from <> '' AND status IN ('pending') ORDER BY seq",
		"snapshot_id = 'x' AND snapshot_id <> '' AND status IN ('pending')",
	} {
		rows, err := s.reader.Query("EXPLAIN QUERY PLAN SELECT env FROM sandboxes WHERE " + where)
		if err != nil {
			t.Fatal(err)
		}
		var id, parent, unused int
		var plan []string
		for rows.Next() {
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, detail)
		}
		rows.Close()
		if slices.ContainsFunc(plan, func(d string) bool { return strings.HasPrefix(d, "SCAN") && !strings.Contains(d, "INDEX") }) {
			t.Errorf("%s: %q", where, plan)
		}
	}
}

// TestUpgrade: a database of the first version keeps its rows, whose names are
// then shared with snapshots.
func TestUpgrade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	first, err := fs.ReadFile(migrations, "0001_init.sql")
	if err != nil {
		t.Fatal(err)
	}
	db, err := connect(path, "immediate", 1, "journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	if err := migrate(t.Context(), db, fstest.MapFS{"0001_init.sql": {Data: first}}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`INSERT INTO images VALUES (1, 'img_a', 1, 'debian', 'ready', '', '', '', '', 1, 0, 0, '{}', 'null', 'run_a', NULL, 1, 1);
		INSERT INTO sandboxes VALUES (1, 'sbx_a', 1, 'a', 'running', '', '', 'img_a', '{}', '', '{}', '{}', 'null', '', '', '', 0, '', NULL, '', 1, 1, NULL, 1, NULL)`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s := open(t, path)
	ctx := t.Context()
	err = s.Update(ctx, func(tx store.Tx) error {
		i, imageErr := tx.ImageByName(ctx, "debian")
		sb, sandboxErr := tx.Sandbox(ctx, "sbx_a")
		if i.Status != skerry.ImageReady || i.Push != nil || i.ExpiresAt != nil || sb.Persistent || sb.Lifecycle.TimeoutAt != nil {
			t.Errorf("image %+v, sandbox %+v", i, sb)
		}
		return errors.Join(imageErr, sandboxErr)
	})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Update(ctx, func(tx store.Tx) error {
		return tx.InsertSnapshot(ctx, store.Snapshot{Snapshot: skerry.Snapshot{ID: "snap_a", Name: "debian"}})
	})
	if !errors.Is(err, store.ErrExists) {
		t.Errorf("snapshot of an image's name: %v", err)
	}
}

// BenchmarkUpdate measures the transaction of a create, synced and not.
func BenchmarkUpdate(b *testing.B) {
	b.Run("synced", func(b *testing.B) { benchmarkUpdate(b, (*Store).Update) })
	b.Run("lazy", func(b *testing.B) { benchmarkUpdate(b, (*Store).UpdateLazily) })
}

func benchmarkUpdate(b *testing.B, update func(*Store, context.Context, func(store.Tx) error) error) {
	s := open(b, filepath.Join(b.TempDir(), "x.db"))
	ctx := b.Context()
	now := time.Now()
	var times []time.Duration
	for b.Loop() {
		sb := store.Sandbox{Sandbox: skerry.Sandbox{ID: skerry.NewSandboxID(), Name: skerry.RandomToken(12), Status: skerry.StatusQueued, CreatedAt: now, UpdatedAt: now, CreateDeadline: now}}
		sb.Labels = map[string]string{"name": sb.Name, "team": "x"}
		start := time.Now()
		err := update(s, ctx, func(tx store.Tx) error {
			return errors.Join(tx.InsertSandbox(ctx, sb), tx.AddOutbox(ctx, store.OutboxEntry{SandboxID: sb.ID}))
		})
		times = append(times, time.Since(start))
		if err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
}
