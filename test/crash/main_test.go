// Package crash tests what is left when processes are killed, files are damaged
// and the host lacks something: servers of the built binary, real microVMs.
package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/test/testimage"
	"skerry.dev/skerry/test/testserver"
)

// What all tests start from; set by TestMain.
var (
	archive  string          // of the image "shell"
	prepared *testserver.Dir // of a server that has the image and its template
)

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "skerry-images-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	layout, err := testimage.Build(context.Background(), dir)
	if err != nil {
		return 1, err
	}
	archive = filepath.Join(dir, "shell.tar")
	if err := layout.Archive(context.Background(), testimage.Shell, "oci-archive", archive); err != nil {
		return 1, err
	}
	if prepared, err = testserver.NewDir(0); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, prepared.Remove()) }()
	if err := prepare(context.Background()); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// prepare registers the image and has its templates made: of ephemeral sandboxes,
// of persistent ones, and of those that are started.
func prepare(ctx context.Context) error {
	s, err := testserver.Start(ctx, prepared, quiet)
	if err != nil {
		return err
	}
	if err := s.Import(ctx, archive, "shell"); err != nil {
		return errors.Join(err, s.Kill())
	}
	sb, err := s.Create(ctx, "first")
	if err == nil {
		sb, err = warmPersistent(ctx, s)
	}
	if err != nil {
		err = fmt.Errorf("%w (%s)\n%s", err, sb.Reason, s.Log())
	}
	return errors.Join(err, s.DeleteAll(ctx), s.Stop())
}

func warmPersistent(ctx context.Context, s *testserver.Server) (skerry.Sandbox, error) {
	sb, err := s.Client.CreateSandbox(ctx, persistent("persistent"))
	if err != nil {
		return sb, err
	}
	id := string(sb.ID)
	if sb, err = s.Client.WaitOperation(ctx, id, patience, skerry.StatusRunning); err != nil {
		return sb, err
	}
	if sb, err = s.Client.StopSandbox(ctx, id); err != nil {
		return sb, err
	}
	if sb, err = s.Client.WaitOperation(ctx, id, patience, skerry.StatusStopped); err != nil {
		return sb, err
	}
	if sb, err = s.Client.StartSandbox(ctx, id); err != nil {
		return sb, err
	}
	return s.Client.WaitOperation(ctx, id, patience, skerry.StatusRunning)
}

// world is one data directory and the server that is on it at the moment.
type world struct {
	t      *testing.T
	dir    *testserver.Dir
	server *testserver.Server // nil when none runs
}

// newWorld makes a data directory that has the image and its template. When the
// test ends nothing may be left of it.
func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := prepared.Clone()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir}
	t.Cleanup(w.end)
	return w
}

// end deletes all sandboxes with a server that works, and looks for leftovers.
func (w *world) end() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	if w.server == nil {
		w.server, err = testserver.Start(ctx, w.dir, quiet)
	}
	if w.server != nil {
		if w.t.Failed() {
			w.t.Logf("end of the server's log:\n%s", w.server.LogTail(40))
		}
		err = errors.Join(err, w.server.DeleteAll(ctx), w.deleteSnapshots(ctx), w.server.Stop())
	}
	if err != nil {
		w.t.Error(err)
	}
	left, err := w.dir.Leftovers()
	if err != nil || len(left) > 0 {
		w.t.Errorf("left over: %q, %v", left, err)
	}
	if err := w.dir.Remove(); err != nil {
		w.t.Error(err)
	}
}

// quiet is a server without machines of its own, so that what runs is what was asked
// for.
var quiet = testserver.Options{Args: []string{"--pool", "0", "--zygotes", "0"}}

// start starts a server.
func (w *world) start(o testserver.Options) {
	w.t.Helper()
	var err error
	if w.server, err = testserver.Start(w.t.Context(), w.dir, o); err != nil {
		w.t.Fatal(err)
	}
}

// kill ends the server at once.
func (w *world) kill() {
	w.t.Helper()
	w.must(w.server.Kill())
	w.server = nil
}

// stop ends the server gracefully.
func (w *world) stop() {
	w.t.Helper()
	w.must(w.server.Stop())
	w.server = nil
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// create makes a sandbox that must come to run.
func (w *world) create(name string) skerry.Sandbox {
	w.t.Helper()
	sb, err := w.server.Create(w.t.Context(), name)
	if err != nil {
		w.t.Fatalf("create %s: %v (%s)", name, err, sb.Reason)
	}
	return sb
}

// wantAlive fails unless a sandbox runs and runs programs.
func (w *world) wantAlive(sb skerry.Sandbox) {
	w.t.Helper()
	w.eventually(20*time.Second, func() error { return w.server.Echo(w.t.Context(), sb.ID) })
}

// wantOnly fails unless machines of just these sandboxes are on the host.
func (w *world) wantOnly(want ...skerry.Sandbox) {
	w.t.Helper()
	w.eventually(20*time.Second, func() error {
		entries, err := os.ReadDir(filepath.Join(w.dir.Data(), "machines"))
		if err != nil {
			return err
		}
		var have, expected []string
		for _, e := range entries {
			have = append(have, e.Name())
		}
		for _, sb := range want {
			expected = append(expected, string(sb.Machine))
		}
		slices.Sort(expected)
		if !slices.Equal(have, expected) {
			return fmt.Errorf("directories of machines %q, want %q", have, expected)
		}
		shims, hypervisors, err := w.dir.Machines()
		if err != nil {
			return err
		}
		if shims != len(want) || hypervisors != len(want) {
			return fmt.Errorf("%d shims and %d hypervisors, want %d", shims, hypervisors, len(want))
		}
		return nil
	})
}

// wantFailed waits until a sandbox is failed and returns the reason.
func (w *world) wantFailed(id skerry.SandboxID, within time.Duration) string {
	w.t.Helper()
	sb, err := w.server.Client.WaitSandbox(w.t.Context(), string(id), within, skerry.StatusFailed)
	if err != nil || sb.Reason == "" {
		w.t.Fatalf("sandbox %s is %s with reason %q, want failed with a reason: %v", id, sb.Status, sb.Reason, err)
	}
	w.t.Logf("reason: %s", sb.Reason)
	return sb.Reason
}

// eventually waits until check succeeds, or fails with its last error.
func (w *world) eventually(within time.Duration, check func() error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), within)
	defer cancel()
	ticks := time.NewTicker(50 * time.Millisecond)
	defer ticks.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			w.t.Fatalf("not within %v: %v", within, err)
		case <-ticks.C:
		}
	}
}
