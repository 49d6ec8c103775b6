// Package walk takes sandboxes through a random sequence of operations, with
// the processes of the server and the machines killed in between, and compares
// what they are with what they must be.
package walk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/test/testimage"
	"skerry.dev/skerry/test/testserver"
)

// most is how many sandboxes there are at a time.
const most = 3

// TestWalk takes SKERRY_WALK_STEPS steps (60), chosen by SKERRY_WALK_SEED (1).
func TestWalk(t *testing.T) {
	steps, seed := number(t, "SKERRY_WALK_STEPS", 60), number(t, "SKERRY_WALK_SEED", 1)
	w := newWalk(t, uint64(seed))
	for i := range steps {
		w.step(i)
		if t.Failed() {
			t.Fatalf("failed at step %d of seed %d", i, seed)
		}
	}
	w.settle()
	t.Logf("%d steps with seed %d: %v", steps, seed, w.taken)
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// walk is the state of one walk.
type walk struct {
	t         *testing.T
	rand      *rand.Rand
	dir       *testserver.Dir
	server    *testserver.Server
	sandboxes []*model
	snapshots []*snapshot
	serial    int            // makes names and contents differ
	taken     map[string]int // how often each kind of step was
}

// snapshot is a memory snapshot, and what a sandbox restored from it must be.
type snapshot struct {
	id    skerry.SnapshotID
	name  string
	model model
}

func newWalk(t *testing.T, seed uint64) *walk {
	t.Helper()
	w := &walk{t: t, rand: rand.New(rand.NewPCG(seed, 0)), taken: map[string]int{}}
	layout, err := testimage.Build(t.Context(), t.TempDir())
	w.must(err)
	archive := filepath.Join(t.TempDir(), "shell.tar")
	w.must(layout.Archive(t.Context(), testimage.Shell, "oci-archive", archive))
	w.dir, err = testserver.NewDir(0)
	w.must(err)
	t.Cleanup(w.end)
	w.start()
	w.must(w.server.Import(t.Context(), archive, "shell"))
	return w
}

// start starts a server without a ready pool, so that what runs is what was
// asked for.
func (w *walk) start() {
	w.t.Helper()
	var err error
	w.server, err = testserver.Start(w.t.Context(), w.dir, testserver.Options{Args: []string{"--pool", "0"}})
	w.must(err)
}

// end deletes everything; nothing may be left.
func (w *walk) end() {
	if w.server == nil {
		w.must(w.dir.Remove())
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if w.t.Failed() {
		w.t.Logf("end of the server's log:\n%s", w.server.LogTail(60))
	}
	err := errors.Join(w.server.DeleteAll(ctx), w.deleteSnapshots(ctx), w.wantEmpty("sandboxes"),
		w.wantEmpty("snapshots"), w.wantEmpty("forks"), w.server.Stop())
	left, lerr := w.dir.Leftovers()
	if err = errors.Join(err, lerr); err != nil || len(left) > 0 {
		w.t.Errorf("left over: %q, %v", left, err)
	}
	if err := w.dir.Remove(); err != nil {
		w.t.Error(err)
	}
}

// wantEmpty fails unless a part of the data directory comes to be empty.
func (w *walk) wantEmpty(part string) error {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		entries, err := os.ReadDir(filepath.Join(w.dir.Data(), part))
		if err != nil || len(entries) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s still holds %v", part, entries)
		}
	}
}

func (w *walk) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// step takes one step that is possible now.
func (w *walk) step(i int) {
	w.t.Helper()
	type choice struct {
		name   string
		weight int
		take   func()
	}
	var choices []choice
	add := func(name string, weight int, take func()) { choices = append(choices, choice{name, weight, take}) }
	if len(w.sandboxes) < most {
		add("create", 6, w.create)
		if len(w.snapshots) > 0 {
			add("restore", 4, w.restore)
		}
	}
	for _, m := range w.sandboxes {
		for _, op := range operations {
			if op.valid(w, m) {
				add(op.name, op.weight, func() { op.take(w, m) })
			}
		}
	}
	if len(w.snapshots) > 0 {
		add("delete snapshot", 1, w.deleteSnapshot)
	}
	add("kill server", 2, func() { w.restart(); w.checkAll() })
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	at := w.rand.IntN(total)
	for _, c := range choices {
		if at -= c.weight; at < 0 {
			begin := time.Now()
			w.taken[c.name]++
			c.take()
			w.t.Logf("step %d: %s (%v) -> %s", i, c.name, time.Since(begin).Round(time.Millisecond), w.summary())
			w.checkProcesses()
			return
		}
	}
}

// settle brings every sandbox to run once more and checks it.
func (w *walk) settle() {
	for _, m := range w.sandboxes {
		if m.status != skerry.StatusRunning {
			w.begin(m, skerry.Start)
			w.await(m, skerry.StatusRunning)
		}
		w.check(m)
	}
}

func (w *walk) summary() string {
	text := ""
	for _, m := range w.sandboxes {
		text += fmt.Sprintf("%s %s (%d files) ", m.name, m.status, len(m.disk))
	}
	return text + fmt.Sprintf("%d snapshots", len(w.snapshots))
}
