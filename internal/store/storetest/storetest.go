// Package storetest is the suite that every implementation of store.Store must
// pass.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

// Database opens one database, as often as asked to; it is empty the first
// time.
type Database func(t *testing.T) store.Store

// Run runs the suite; fresh makes a new database for each test.
func Run(t *testing.T, fresh func(t *testing.T) Database) {
	for name, test := range map[string]func(*testing.T, Database){
		"SandboxRoundTrip":    testSandboxRoundTrip,
		"SandboxUnique":       testSandboxUnique,
		"SandboxCompareSet":   testSandboxCompareAndSet,
		"SandboxPages":        testSandboxPages,
		"SandboxPageBytes":    testSandboxPageBytes,
		"SandboxQueries":      testSandboxQueries,
		"SandboxRetention":    testSandboxRetention,
		"SandboxOrigins":      testSandboxOrigins,
		"NextDue":             testNextDue,
		"Captures":            testCaptures,
		"ImageExpiry":         testImageExpiry,
		"Snapshots":           testSnapshots,
		"Names":               testNames,
		"Events":              testEvents,
		"Images":              testImages,
		"DefaultImage":        testDefaultImage,
		"Outbox":              testOutbox,
		"Runners":             testRunners,
		"APIKeys":             testAPIKeys,
		"Meta":                testMeta,
		"Rollback":            testRollback,
		"ConcurrentIncrement": testConcurrentIncrement,
		"SnapshotRead":        testSnapshotRead,
		"Reopen":              testReopen,
		"Cancelled":           testCancelled,
		"Lazy":                testLazy,
	} {
		t.Run(name, func(t *testing.T) { test(t, fresh(t)) })
	}
}

// epoch is where the suite's clock starts, to the microsecond.
var epoch = time.Date(2026, 2, 3, 4, 5, 6, 789012000, time.UTC)

// newSandbox returns a valid sandbox named name, created at epoch.
func newSandbox(name string) store.Sandbox {
	return store.Sandbox{
		Sandbox: skerry.Sandbox{
			ID: skerry.NewSandboxID(), Name: name, Status: skerry.StatusQueued, State: skerry.StatusQueued.State(),
			Image: "debian", ImageID: "img_a", Labels: map[string]string{"name": name}, User: "root", Env: map[string]string{},
			Resources: skerry.Resources{CPU: 0.5, MemoryMiB: 1024, DiskMiB: 512},
			CreatedAt: epoch, UpdatedAt: epoch, CreateDeadline: epoch.Add(time.Hour),
		},
		Version: 1, Region: "earth", Arch: "amd64", ArgsDigest: "d1",
	}
}

func newImage(name string) store.Image {
	return store.Image{
		Image:   skerry.Image{ID: skerry.NewImageID(), Name: name, Status: skerry.ImagePending, Source: "registry/" + name, CreatedAt: epoch, UpdatedAt: epoch},
		Version: 1, Runner: "run_a", Command: []byte(`{"kind":"image.pull"}`),
	}
}

func update(t *testing.T, s store.Store, fn func(context.Context, store.Tx) error) {
	t.Helper()
	if err := tryUpdate(t, s, fn); err != nil {
		t.Fatal(err)
	}
}

func tryUpdate(t *testing.T, s store.Store, fn func(context.Context, store.Tx) error) error {
	ctx := t.Context()
	return s.Update(ctx, func(tx store.Tx) error { return fn(ctx, tx) })
}

func view(t *testing.T, s store.Store, fn func(context.Context, store.Reader) error) {
	t.Helper()
	ctx := t.Context()
	if err := s.View(ctx, func(r store.Reader) error { return fn(ctx, r) }); err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func wantSame(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func insert(t *testing.T, s store.Store, sandboxes ...store.Sandbox) {
	t.Helper()
	update(t, s, func(ctx context.Context, tx store.Tx) error {
		for _, sb := range sandboxes {
			if err := tx.InsertSandbox(ctx, sb); err != nil {
				return err
			}
		}
		return nil
	})
}

func testSandboxRoundTrip(t *testing.T, db Database) {
	s := db(t)
	started := epoch.Add(3 * time.Second)
	full := newSandbox("full")
	full.Status, full.State = skerry.StatusRunning, skerry.StatusRunning.State()
	full.Reason = "why\x00not \"quoted\" '; DROP TABLE sandboxes; --"
	full.Labels = map[string]string{"name": "full", "团队": "研究", "": "empty key", "x": ""}
	full.Env = map[string]string{"A": "line\nbreak", "B": strings.Repeat("é", 4096), "C": ""}
	full.Resources = skerry.Resources{CPU: 0.125, MemoryMiB: 1 << 40, DiskMiB: 1, CPUMax: 1.5, MemoryMaxMiB: 2, DiskMaxMiB: 3}
	full.Unenforced = []string{"resources.cpu", "resources.disk"}
	full.Runner, full.RunnerEpoch, full.Machine = "run_a", 1<<60, "mch_a"
	full.StartedAt, full.IdempotencyKey = &started, "key"
	full.Persistent, full.Spot, full.ForkedFrom, full.Snapshot = true, true, "sbx_source", "snap_a"
	fillLifecycle(&full)
	insert(t, s, newSandbox("plain"), full)
	view(t, s, func(ctx context.Context, r store.Reader) error {
		got, err := r.Sandbox(ctx, full.ID)
		if err != nil {
			return err
		}
		wantSame(t, "sandbox by id", got, full)
		if got, err = r.SandboxByKey(ctx, "key"); err != nil {
			return err
		}
		wantSame(t, "sandbox by key", got, full)
		_, err = r.Sandbox(ctx, "sbx_none")
		wantErr(t, "unknown id", err, store.ErrNotFound)
		_, err = r.SandboxByName(ctx, "none")
		wantErr(t, "unknown name", err, store.ErrNotFound)
		_, err = r.SandboxByKey(ctx, "")
		wantErr(t, "no key", err, store.ErrNotFound)
		return nil
	})
}

// fillLifecycle sets all that changes during the life of a sandbox.
func fillLifecycle(s *store.Sandbox) {
	at := func(n int) *time.Time { t := epoch.Add(time.Duration(n) * time.Minute); return &t }
	s.Operation, s.OperationTarget = skerry.CaptureImage, "img_a"
	s.Lifecycle = skerry.Lifecycle{
		LifecyclePolicy: skerry.LifecyclePolicy{TimeoutSeconds: 300, OnTimeout: "stop", IdleExpirySeconds: 60, OnIdleTimeout: "delete"},
		TimeoutAt:       at(1), IdleTimeoutAt: at(2), LastActivityAt: at(3),
	}
	s.SpotEvictedAt, s.ReclaimDue, s.IdleAskedAt, s.RetryAt, s.DueAt = at(4), true, *at(5), *at(6), *at(7)
}

func testSandboxUnique(t *testing.T, db Database) {
	s := db(t)
	first := newSandbox("a")
	first.IdempotencyKey = "k"
	insert(t, s, first)

	clashes := map[string]func(*store.Sandbox){
		"id":   func(sb *store.Sandbox) { sb.ID = first.ID },
		"name": func(sb *store.Sandbox) { sb.Name = "a" },
		"key":  func(sb *store.Sandbox) { sb.IdempotencyKey = "k" },
	}
	for what, change := range clashes {
		second := newSandbox("b")
		change(&second)
		err := tryUpdate(t, s, func(ctx context.Context, tx store.Tx) error { return tx.InsertSandbox(ctx, second) })
		wantErr(t, "same "+what, err, store.ErrExists)
	}

	// A deleted sandbox gives name and key free, and stays to be found.
	first.Status, first.DeletedAt = skerry.StatusDeleted, epoch.Add(time.Second)
	first.State = first.Status.State()
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.UpdateSandbox(ctx, first) })
	first.Version++
	view(t, s, func(ctx context.Context, r store.Reader) error {
		got, err := r.SandboxByName(ctx, "a")
		wantSame(t, "deleted sandbox by name", got, first)
		_, keyErr := r.SandboxByKey(ctx, "k")
		wantErr(t, "key of a deleted sandbox", keyErr, store.ErrNotFound)
		return err
	})
	second := newSandbox("a")
	second.IdempotencyKey = "k"
	insert(t, s, second)
	view(t, s, func(ctx context.Context, r store.Reader) error {
		got, err := r.SandboxByName(ctx, "a")
		wantSame(t, "successor by name", got, second)
		return err
	})
}

func testSandboxCompareAndSet(t *testing.T, db Database) {
	s := db(t)
	sb := newSandbox("a")
	insert(t, s, sb)
	changed := sb
	changed.Status, changed.Reason, changed.User, changed.Machine = skerry.StatusFailed, "why", "alice", "mch_x"
	changed.State, changed.Runner, changed.RunnerEpoch = changed.Status.State(), "run_x", 7
	changed.Unenforced, changed.UpdatedAt, changed.CreateDeadline = []string{"x"}, epoch.Add(time.Minute), epoch.Add(2*time.Hour)
	fillLifecycle(&changed)
	update(t, s, func(ctx context.Context, tx store.Tx) error { return tx.UpdateSandbox(ctx, changed) })

	err := tryUpdate(t, s, func(ctx context.Context, tx store.Tx) error { return tx.UpdateSandbox(ctx, sb) })
	wantErr(t, "old version", err, store.ErrStale)
	unknown := newSandbox("b")
	err = tryUpdate(t, s, func(ctx context.Context, tx store.Tx) error { return tx.UpdateSandbox(ctx, unknown) })
	wantErr(t, "unknown id", err, store.ErrStale)

	changed.Version = 2
	view(t, s, func(ctx context.Context, r store.Reader) error {
		got, err := r.Sandbox(ctx, sb.ID)
		wantSame(t, "changed sandbox", got, changed)
		return err
	})
}

func testSandboxPages(t *testing.T, db Database) {
	s := db(t)
	var all []string // newest first
	for i := range 25 {
		sb := newSandbox(fmt.Sprintf("s%02d", i))
		// The clock goes backwards: the order is that of insertion.
		sb.CreatedAt = epoch.Add(-time.Duration(i) * time.Hour)
		sb.Labels["half"] = fmt.Sprint(i % 2)
		sb.Labels["third"] = fmt.Sprint(i % 3)
		if i%5 == 0 {
			sb.Status = skerry.StatusRunning
		}
		if i == 24 {
			sb.Status, sb.DeletedAt = skerry.StatusDeleted, epoch
		}
		insert(t, s, sb)
		all = append([]string{sb.Name}, all...)
	}
	pick := func(keep func(i int) bool) (names []string) {
		for i := 24; i >= 0; i-- {
			if keep(i) {
				names = append(names, fmt.Sprintf("s%02d", i))
			}
		}
		return names
	}
	tests := []struct {
		name   string
		filter skerry.SandboxFilter
		want   []string
	}{
		{"all", skerry.SandboxFilter{Deleted: true}, all},
		{"not deleted", skerry.SandboxFilter{}, all[1:]},
		{"label", skerry.SandboxFilter{Labels: map[string]string{"half": "1"}}, pick(func(i int) bool { return i%2 == 1 && i != 24 })},
		{"two labels", skerry.SandboxFilter{Labels: map[string]string{"half": "1", "third": "0"}}, pick(func(i int) bool { return i%2 == 1 && i%3 == 0 && i != 24 })},
		{"no such label", skerry.SandboxFilter{Labels: map[string]string{"half": "2"}}, nil},
		{"status", skerry.SandboxFilter{Statuses: []skerry.Status{skerry.StatusRunning}}, pick(func(i int) bool { return i%5 == 0 })},
		{"statuses", skerry.SandboxFilter{Statuses: []skerry.Status{skerry.StatusRunning, skerry.StatusQueued}}, all[1:]},
		{"deleted only", skerry.SandboxFilter{Statuses: []skerry.Status{skerry.StatusDeleted}, Deleted: true}, all[:1]},
		{"label and status", skerry.SandboxFilter{Labels: map[string]string{"third": "0"}, Statuses: []skerry.Status{skerry.StatusRunning}}, pick(func(i int) bool { return i%15 == 0 })},
	}
	for _, test := range tests {
		for _, limit := range []int{0, 1, 7, 24, 25, skerry.MaxPageSize} {
			test.filter.Limit, test.filter.Cursor = limit, ""
			got := collect(t, s, test.filter)
			wantSame(t, fmt.Sprintf("%s, limit %d", test.name, limit), got, test.want)
		}
	}
	for _, filter := range []skerry.SandboxFilter{{Cursor: "bad"}, {Limit: -1}, {Limit: skerry.MaxPageSize + 1}} {
		view(t, s, func(ctx context.Context, r store.Reader) error {
			if _, err := r.Sandboxes(ctx, filter); skerry.CodeOf(err) != skerry.CodeInvalid {
				t.Errorf("list %+v: error %v, want code invalid", filter, err)
			}
			return nil
		})
	}
}

// collect follows the cursors.
func collect(t *testing.T, s store.Store, filter skerry.SandboxFilter) (names []string) {
	t.Helper()
	for {
		var page store.SandboxPage
		view(t, s, func(ctx context.Context, r store.Reader) (err error) {
			page, err = r.Sandboxes(ctx, filter)
			return err
		})
		limit := filter.Limit
		if limit == 0 {
			limit = skerry.DefaultPageSize
		}
		if len(page.Items) > limit {
			t.Fatalf("page of %d, limit %d", len(page.Items), limit)
		}
		for _, sb := range page.Items {
			names = append(names, sb.Name)
		}
		if page.Next == "" {
			return names
		}
		if len(page.Items) != limit {
			t.Fatalf("page of %d is followed by another, limit %d", len(page.Items), limit)
		}
		filter.Cursor = page.Next
	}
}

func testSandboxPageBytes(t *testing.T, db Database) {
	s := db(t)
	const count = 2*store.MaxPageBytes/skerry.MaxEnvBytes + 3
	for i := range count {
		sb := newSandbox(fmt.Sprintf("s%02d", i))
		sb.Env = map[string]string{"A": strings.Repeat("x", skerry.MaxEnvBytes)}
		insert(t, s, sb)
	}
	seen, pages := 0, 0
	filter := skerry.SandboxFilter{Limit: count}
	for {
		var page store.SandboxPage
		view(t, s, func(ctx context.Context, r store.Reader) (err error) {
			page, err = r.Sandboxes(ctx, filter)
			return err
		})
		if most := store.MaxPageBytes/skerry.MaxEnvBytes + 1; len(page.Items) > most {
			t.Errorf("page of %d MiB, want at most %d", len(page.Items), most)
		}
		seen, pages, filter.Cursor = seen+len(page.Items), pages+1, page.Next
		if page.Next == "" {
			break
		}
	}
	if seen != count || pages < 2 {
		t.Errorf("%d sandboxes on %d pages, want %d on several", seen, pages, count)
	}
}

func testSandboxQueries(t *testing.T, db Database) {
	s := db(t)
	a, b, c := newSandbox("a"), newSandbox("b"), newSandbox("c")
	a.Runner, a.Status, a.CreateDeadline = "run_1", skerry.StatusBooting, epoch.Add(3*time.Second)
	b.Runner, b.Status, b.CreateDeadline = "run_1", skerry.StatusRunning, epoch.Add(1*time.Second)
	c.Status, c.CreateDeadline = skerry.StatusQueued, epoch.Add(2*time.Second)
	gone := newSandbox("gone")
	gone.Runner, gone.Status, gone.DeletedAt, gone.CreateDeadline = "run_1", skerry.StatusDeleted, epoch, epoch
	restarted := newSandbox("restarted")
	restarted.Status, restarted.StartedAt, restarted.CreateDeadline, restarted.ImageID = skerry.StatusBooting, &restarted.CreatedAt, epoch, "img_b"
	insert(t, s, a, b, c, gone, restarted)
	view(t, s, func(ctx context.Context, r store.Reader) error {
		found, err := r.SandboxesOnRunner(ctx, "run_1")
		if err != nil {
			return err
		}
		var names []string
		for _, sb := range found {
			names = append(names, sb.Name)
		}
		wantSame(t, "on runner", names, []string{"a", "b"})

		n, err := r.CountSandboxesOfImage(ctx, "img_a")
		if err != nil || n != 3 {
			t.Errorf("sandboxes of image: %d, %v, want 3", n, err)
		}
		// One that ran before has no create deadline any more.
		next, err := r.NextCreateDeadline(ctx, []skerry.Status{skerry.StatusQueued, skerry.StatusBooting})
		if err != nil || next.Name != "c" {
			t.Errorf("next deadline: %s, %v, want c", next.Name, err)
		}
		_, err = r.NextCreateDeadline(ctx, []skerry.Status{skerry.StatusPending})
		wantErr(t, "no deadline", err, store.ErrNotFound)
		return nil
	})
}

func testSandboxRetention(t *testing.T, db Database) {
	s := db(t)
	view(t, s, func(ctx context.Context, r store.Reader) error {
		_, err := r.OldestDeleted(ctx)
		wantErr(t, "oldest of none", err, store.ErrNotFound)
		return nil
	})
	for i := range 4 {
		sb := newSandbox(fmt.Sprint("s", i))
		if i > 0 {
			sb.Status, sb.DeletedAt = skerry.StatusDeleted, epoch.Add(time.Duration(i)*time.Hour)
		}
		insert(t, s, sb)
	}
	update(t, s, func(ctx context.Context, tx store.Tx) error {
		oldest, err := tx.OldestDeleted(ctx)
		if err != nil || !oldest.Equal(epoch.Add(time.Hour)) {
			t.Errorf("oldest deleted: %v, %v", oldest, err)
		}
		n, err := tx.PruneSandboxes(ctx, epoch.Add(2*time.Hour))
		if n != 2 {
			t.Errorf("pruned %d, want 2", n)
		}
		return err
	})
	wantSame(t, "left", collect(t, s, skerry.SandboxFilter{Deleted: true}), []string{"s3", "s0"})
	wantSame(t, "labels of pruned", collect(t, s, skerry.SandboxFilter{Deleted: true, Labels: map[string]string{"name": "s1"}}), []string(nil))
}
