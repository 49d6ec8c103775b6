package sqlite

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

func TestLastEventID(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "x.db"))
	for want := range int64(3) {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			got, err := tx.LastEventID(t.Context())
			if err != nil || got != want {
				t.Errorf("after %d events: %d, %v", want, got, err)
			}
			return tx.AddEvent(t.Context(), skerry.Event{Type: skerry.EventSandboxStatus, ObjectID: "sbx_x", Object: []byte("{}")})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestEventIDsAfterAPowerFailure: no id that was given is given again, wherever
// in a run of events power fails. What is on the disk is what the files held
// after the last commit with PRAGMA synchronous=FULL.
func TestEventIDsAfterAPowerFailure(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.db")
	s, syncs := open(t, path), 0
	random := rand.New(rand.NewPCG(1, 1))
	var given, synced int64
	disk := readFiles(t, path)
	lastID := func(s *Store) (id int64) {
		must(t, s.View(t.Context(), func(r store.Reader) (err error) {
			id, err = r.LastEventID(t.Context())
			return err
		}))
		return id
	}
	for i := range 5 * eventBlock {
		count := 1 + random.IntN(3)
		if random.IntN(100) == 0 {
			count = eventBlock + 1
		}
		update := s.UpdateLazily
		if random.IntN(2*eventBlock) == 0 {
			update = s.Update
		}
		must(t, update(t.Context(), addEvents(t, count)))
		id := lastID(s)
		if id < given+int64(count) {
			t.Fatalf("update %d: %d events, last id %d, given before %d", i, count, id, given)
		}
		given = id
		if isSynced(t, s) {
			disk, synced = readFiles(t, path), id
			syncs++
		}
		if random.IntN(40) != 0 {
			continue
		}
		must(t, s.Close())
		writeFiles(t, path, disk)
		s = open(t, path)
		if got := lastID(s); got != synced {
			t.Fatalf("update %d: event %d is the newest after the power failure, want %d", i, got, synced)
		}
		disk = readFiles(t, path)
		must(t, s.UpdateLazily(t.Context(), addEvents(t, 1)))
		if id := lastID(s); id <= given {
			t.Fatalf("update %d: id %d is given again, %d was given before the power failure", i, id, given)
		} else {
			given = id
		}
	}
	if syncs > eventBlock/2 {
		t.Errorf("%d of %d updates waited for the disk", syncs, 5*eventBlock)
	}
}

func addEvents(t *testing.T, n int) func(store.Tx) error {
	return func(tx store.Tx) error {
		for range n {
			if err := tx.AddEvent(t.Context(), skerry.Event{Type: skerry.EventSandboxStatus, ObjectID: "sbx_x", Object: []byte("{}")}); err != nil {
				return err
			}
		}
		return nil
	}
}

// isSynced reports whether the last update was committed with synchronous=FULL.
func isSynced(t *testing.T, s *Store) bool {
	t.Helper()
	var synchronous int
	must(t, s.writer.QueryRow("PRAGMA synchronous").Scan(&synchronous))
	return synchronous == 2
}

// readFiles and writeFiles copy a database and its log.
func readFiles(t *testing.T, path string) (files [2][]byte) {
	t.Helper()
	for i, suffix := range []string{"", "-wal"} {
		var err error
		files[i], err = os.ReadFile(path + suffix)
		must(t, err)
	}
	return files
}

func writeFiles(t *testing.T, path string, files [2][]byte) {
	t.Helper()
	for i, suffix := range []string{"", "-wal"} {
		must(t, os.WriteFile(path+suffix, files[i], 0o600))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
