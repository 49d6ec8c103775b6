package crash

import (
	"os"
	"path/filepath"
	"testing"

	"skerry.dev/skerry"
)

// TestUpgrade gives the server another guest kernel, as an upgrade does, while
// persistent sandboxes run, are stopped and are paused, and there is a snapshot.
// All of them go on, on the software that they have; what no one uses any more
// is removed.
func TestUpgrade(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	running, stopped, paused := w.keep("running"), w.keep("stopped"), w.keep("paused")
	_, err := w.server.Client.CreateSnapshot(t.Context(), string(running.id), "before")
	w.must(err)
	_, err = w.server.Client.WaitSnapshot(t.Context(), "before", patience)
	w.must(err)
	before := running.copyOf("", true)
	w.operate(stopped, skerry.Stop, skerry.StatusStopped)
	w.operate(paused, skerry.Pause, skerry.StatusPaused)
	w.stop()
	old := append(w.glob("disks/*"), w.glob("templates/*")...)
	w.otherKernel()
	w.start(quiet)

	w.write(running, "after")
	children, err := w.server.Client.ForkSandbox(t.Context(), string(running.id), skerry.ForkRequest{})
	w.must(err)
	w.wantMade(running.copyOf(children[0].ID, true))
	_, err = w.server.Client.CreateSnapshot(t.Context(), string(running.id), "after")
	w.must(err)
	_, err = w.server.Client.WaitSnapshot(t.Context(), "after", patience)
	w.must(err)
	for _, name := range []string{"before", "after"} {
		sb, err := w.server.Client.RestoreSnapshot(t.Context(), name, skerry.RestoreRequest{})
		w.must(err)
		source := map[string]*keeper{"before": before, "after": running}[name]
		w.wantMade(source.copyOf(sb.ID, true))
	}
	w.operate(paused, skerry.Resume, skerry.StatusRunning)
	w.wantFiles(paused)
	w.operate(stopped, skerry.Start, skerry.StatusRunning)
	w.wantFiles(stopped)
	for _, k := range []*keeper{running, paused, stopped} {
		w.works(k)
	}
	w.wantAlive(w.create("new"))

	w.stop() // nothing runs on the old software any more: each was stopped since
	w.start(quiet)
	for _, name := range old {
		w.eventually(patience, func() error {
			if _, err := os.Lstat(name); err == nil {
				return os.ErrExist
			}
			return nil
		})
	}
	w.wantAlive(skerry.Sandbox{ID: running.id})
}

func (w *world) glob(pattern string) []string {
	w.t.Helper()
	names, err := filepath.Glob(filepath.Join(w.dir.Data(), pattern))
	w.must(err)
	return names
}

// otherKernel replaces the guest kernel by one that differs: a byte behind its
// end, which no boot loader reads.
func (w *world) otherKernel() {
	w.t.Helper()
	dir := filepath.Join(w.dir.Data(), "kernel", "debian")
	from, err := filepath.EvalSymlinks(dir)
	w.must(err)
	w.must(os.Remove(dir))
	w.must(os.MkdirAll(filepath.Join(dir, "boot"), 0o700))
	w.must(os.Symlink(filepath.Join(from, "lib"), filepath.Join(dir, "lib")))
	images, err := filepath.Glob(filepath.Join(from, "boot", "vmlinuz-*"))
	w.must(err)
	for _, image := range images {
		b, err := os.ReadFile(image)
		w.must(err)
		w.must(os.WriteFile(filepath.Join(dir, "boot", filepath.Base(image)), append(b, 0), 0o600))
	}
}

// wantMade waits for a create that must succeed, and deletes the sandbox.
func (w *world) wantMade(k *keeper) {
	w.t.Helper()
	if sb := w.rest(k.id); sb.Status != skerry.StatusRunning {
		w.t.Errorf("the copy is %s, reason %q; end of the log:\n%s", sb.Status, sb.Reason, w.server.LogTail(20))
	} else {
		w.wantFiles(k)
	}
	w.must(w.server.Delete(w.t.Context(), k.id))
}
