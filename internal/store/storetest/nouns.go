package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

func testImages(t *testing.T, db Database) {
	s := db(t)
	a, b := newImage("docker.io/library/alpine:3.20"), newImage("b")
	update(t, s, func(ctx context.Context, tx store.Tx) error {
		return errors.Join(tx.InsertImage(ctx, a), tx.InsertImage(ctx, b))
	})
	same := newImage("b")
	err := tryUpdate(t, s, func(ctx context.Context, tx store.Tx) error { return tx.InsertImage(ctx, same) })
	wantErr(t, "same name", err, store.ErrExists)

	a.Status, a.Error, a.Source, a.Digest, a.Platform = skerry.ImageReady, "e", "src", "sha256:1", "linux/amd64"
	a.Bytes, a.LayerCount, a.Command, a.Runner = 1<<40, 127, nil, "run_b"
	a.Config = skerry.ImageConfig{Env: []string{"A=B"}, User: "u:g", WorkingDir: "/w", Entrypoint: []string{"e"}, Cmd: []string{"c", ""}}
	a.Progress = &skerry.PullProgress{Phase: "converting", DoneBytes: 1, TotalBytes: 2}
	a.UpdatedAt = epoch.Add(time.Minute)
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.UpdateImage(ctx, a) })
	err = tryUpdate(t, s, func(ctx context.Context, tx store.Tx) error { return tx.UpdateImage(ctx, a) })
	wantErr(t, "old version", err, store.ErrStale)
	a.Version++

	view(t, s, func(ctx context.Context, r store.Reader) error {
		got, err := r.Image(ctx, a.ID)
		wantSame(t, "image by id", got, a)
		byName, nameErr := r.ImageByName(ctx, a.Name)
		wantSame(t, "image by name", byName, a)
		all, listErr := r.Images(ctx)
		wantSame(t, "images", all, []store.Image{b, a})
		_, missing := r.Image(ctx, "img_none")
		wantErr(t, "unknown id", missing, store.ErrNotFound)
		return errors.Join(err, nameErr, listErr)
	})
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.DeleteImage(ctx, b.ID) })
	err = tryUpdate(t, s, func(ctx context.Context, tx store.Tx) error { return tx.DeleteImage(ctx, b.ID) })
	wantErr(t, "delete twice", err, store.ErrNotFound)
}

func testDefaultImage(t *testing.T, db Database) {
	s := db(t)
	a, b := newImage("a"), newImage("b")
	wantDefault := func(want string) {
		t.Helper()
		view(t, s, func(ctx context.Context, r store.Reader) error {
			got, err := r.DefaultImage(ctx)
			if want == "" {
				wantErr(t, "no default", err, store.ErrNotFound)
				return nil
			}
			if got.Name != want {
				t.Errorf("default image %q, want %q", got.Name, want)
			}
			return err
		})
	}
	wantDefault("")
	a.Default = true
	update(t, s, func(ctx context.Context, tx store.Tx) error {
		return errors.Join(tx.InsertImage(ctx, a), tx.InsertImage(ctx, b))
	})
	wantDefault("a")
	b.Default = true
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.UpdateImage(ctx, b) })
	wantDefault("b")
	b.Version++
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.UpdateImage(ctx, b) }) // stays the default
	wantDefault("b")
	c := newImage("c")
	c.Default = true
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.InsertImage(ctx, c) })
	wantDefault("c")
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.DeleteImage(ctx, c.ID) })
	wantDefault("")
}

func testOutbox(t *testing.T, db Database) {
	s := db(t)
	entries := []store.OutboxEntry{
		{SandboxID: "sbx_a"},
		{Runner: "run_a", Payload: []byte("\x00binary\xff")},
		{SandboxID: "sbx_b"},
	}
	update(t, s, func(ctx context.Context, tx store.Tx) error {
		for _, e := range entries {
			if err := tx.AddOutbox(ctx, e); err != nil {
				return err
			}
		}
		return nil
	})
	var got []store.OutboxEntry
	read := func(limit int) {
		view(t, s, func(ctx context.Context, r store.Reader) (err error) {
			got, err = r.Outbox(ctx, limit)
			return err
		})
	}
	read(10)
	for i := range got {
		if i > 0 && got[i].ID <= got[i-1].ID {
			t.Errorf("ids %d, %d are not in order", got[i-1].ID, got[i].ID)
		}
		if i < len(entries) {
			entries[i].ID = got[i].ID
		}
	}
	wantSame(t, "outbox", got, entries)
	last := got[2].ID
	update(t, s, func(ctx context.Context, tx store.Tx) error {
		for _, e := range got {
			if err := tx.DeleteOutbox(ctx, e.ID); err != nil {
				return err
			}
		}
		return errors.Join(tx.DeleteOutbox(ctx, 4711), // gone already: no error
			tx.AddOutbox(ctx, store.OutboxEntry{SandboxID: "sbx_c"}))
	})
	read(1)
	if len(got) != 1 || got[0].ID <= last {
		t.Errorf("outbox %+v, want one entry with an id never used before", got)
	}
}

func testRunners(t *testing.T, db Database) {
	s := db(t)
	r := store.Runner{
		Runner: skerry.Runner{ID: "run_a", Hostname: "h", Arch: "amd64", LastSeen: epoch, Accel: "tcg", CPUs: 2, MemoryMiB: 3, DiskFreeMiB: 4,
			Facts: []skerry.Check{{Name: "kvm", Level: skerry.CheckWarn, Detail: "d", Fix: "f"}}},
		Region: "earth", Epoch: 1 << 60,
	}
	other := store.Runner{Runner: skerry.Runner{ID: "run_0"}, Gone: true}
	put := func(rs ...store.Runner) {
		update(t, s, func(ctx context.Context, tx store.Tx) error {
			for _, r := range rs {
				if err := tx.PutRunner(ctx, r); err != nil {
					return err
				}
			}
			return nil
		})
	}
	put(r, other)
	r.Hostname, r.Epoch, r.Gone = "h2", 1<<61, true
	put(r)
	view(t, s, func(ctx context.Context, reader store.Reader) error {
		got, err := reader.Runner(ctx, "run_a")
		wantSame(t, "runner", got, r)
		all, listErr := reader.Runners(ctx)
		wantSame(t, "runners", all, []store.Runner{other, r})
		_, missing := reader.Runner(ctx, "run_none")
		wantErr(t, "unknown runner", missing, store.ErrNotFound)
		return errors.Join(err, listErr)
	})
}

func testAPIKeys(t *testing.T, db Database) {
	s := db(t)
	hash := sha256.Sum256([]byte("token"))
	key := store.APIKey{ID: "key_a", Name: "first", Hash: hash[:], CreatedAt: epoch}
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.InsertAPIKey(ctx, key) })
	same := key
	same.ID = "key_b"
	err := tryUpdate(t, s, func(ctx context.Context, tx store.Tx) error { return tx.InsertAPIKey(ctx, same) })
	wantErr(t, "same hash", err, store.ErrExists)
	view(t, s, func(ctx context.Context, r store.Reader) error {
		got, err := r.APIKeyByHash(ctx, bytes.Clone(hash[:]))
		wantSame(t, "key", got, key)
		_, missing := r.APIKeyByHash(ctx, []byte("x"))
		wantErr(t, "unknown hash", missing, store.ErrNotFound)
		n, countErr := r.CountAPIKeys(ctx)
		if n != 1 {
			t.Errorf("%d keys, want 1", n)
		}
		return errors.Join(err, countErr)
	})
}

func testMeta(t *testing.T, db Database) {
	s := db(t)
	update(t, s, func(ctx context.Context, tx store.Tx) error {
		before, err := tx.Meta(ctx, "a")
		if before != "" {
			t.Errorf("unset value %q", before)
		}
		return errors.Join(err, tx.SetMeta(ctx, "a", "1"), tx.SetMeta(ctx, "a", "2"))
	})
	view(t, s, func(ctx context.Context, r store.Reader) error {
		got, err := r.Meta(ctx, "a")
		if got != "2" {
			t.Errorf("value %q, want 2", got)
		}
		return err
	})
}

func testRollback(t *testing.T, db Database) {
	s := db(t)
	cause := errors.New("cause")
	sb := newSandbox("a")
	err := tryUpdate(t, s, func(ctx context.Context, tx store.Tx) error {
		if err := errors.Join(tx.InsertSandbox(ctx, sb), tx.AddOutbox(ctx, store.OutboxEntry{SandboxID: sb.ID})); err != nil {
			return err
		}
		return cause
	})
	if err != cause {
		t.Errorf("Update returned %v, want the function's own error", err)
	}
	view(t, s, func(ctx context.Context, r store.Reader) error {
		_, err := r.Sandbox(ctx, sb.ID)
		wantErr(t, "rolled back sandbox", err, store.ErrNotFound)
		outbox, err := r.Outbox(ctx, 1)
		if len(outbox) != 0 {
			t.Errorf("outbox %+v after a rollback", outbox)
		}
		return err
	})
}

// testConcurrentIncrement loses no update, whichever way the store serialises.
func testConcurrentIncrement(t *testing.T, db Database) {
	s := db(t)
	const workers, each = 8, 10
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for range each {
				err := tryUpdate(t, s, func(ctx context.Context, tx store.Tx) error {
					var n int
					text, err := tx.Meta(ctx, "n")
					if err != nil {
						return err
					}
					fmt.Sscan(text, &n) // unset is 0
					return tx.SetMeta(ctx, "n", fmt.Sprint(n+1))
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	view(t, s, func(ctx context.Context, r store.Reader) error {
		got, err := r.Meta(ctx, "n")
		if got != fmt.Sprint(workers*each) {
			t.Errorf("counted to %s, want %d", got, workers*each)
		}
		return err
	})
}

// testSnapshotRead: a reader neither sees nor blocks a writer.
func testSnapshotRead(t *testing.T, db Database) {
	s := db(t)
	insert(t, s, newSandbox("a"))
	view(t, s, func(ctx context.Context, r store.Reader) error {
		before, err := r.Sandboxes(ctx, skerry.SandboxFilter{})
		if err != nil {
			return err
		}
		insert(t, s, newSandbox("b"))
		after, err := r.Sandboxes(ctx, skerry.SandboxFilter{})
		if len(before.Items) != 1 || len(after.Items) != 1 {
			t.Errorf("read %d, then %d sandboxes in one transaction, want 1 and 1", len(before.Items), len(after.Items))
		}
		return err
	})
}

func testReopen(t *testing.T, db Database) {
	s := db(t)
	sb := newSandbox("a")
	insert(t, s, sb)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = db(t)
	view(t, s, func(ctx context.Context, r store.Reader) error {
		got, err := r.Sandbox(ctx, sb.ID)
		wantSame(t, "after opening again", got, sb)
		return err
	})
}

func testCancelled(t *testing.T, db Database) {
	s := db(t)
	ctx, cancel := context.WithCancel(t.Context())
	sb := newSandbox("a")
	err := s.Update(ctx, func(tx store.Tx) error {
		if err := tx.InsertSandbox(ctx, sb); err != nil {
			return err
		}
		cancel()
		return nil
	})
	wantErr(t, "cancelled before the commit", err, context.Canceled)
	view(t, s, func(ctx context.Context, r store.Reader) error {
		_, err := r.Sandbox(ctx, sb.ID)
		wantErr(t, "sandbox of a cancelled transaction", err, store.ErrNotFound)
		return nil
	})
	insert(t, s, sb) // the store is still usable
}

// testLazy: lazy transactions are transactions, and are there after a Close.
func testLazy(t *testing.T, db Database) {
	s := db(t)
	a, b := newSandbox("a"), newSandbox("b")
	ctx := t.Context()
	if err := s.UpdateLazily(ctx, func(tx store.Tx) error { return tx.InsertSandbox(ctx, a) }); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("cause")
	err := s.UpdateLazily(ctx, func(tx store.Tx) error { return errors.Join(tx.InsertSandbox(ctx, b), cause) })
	wantErr(t, "lazy update that fails", err, cause)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = db(t)
	view(t, s, func(ctx context.Context, r store.Reader) error {
		got, err := r.Sandbox(ctx, a.ID)
		wantSame(t, "lazily written", got, a)
		_, missing := r.Sandbox(ctx, b.ID)
		wantErr(t, "rolled back", missing, store.ErrNotFound)
		return err
	})
}
