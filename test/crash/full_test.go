package crash

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
)

// onSmallDisk puts the data directory on a file system of its own.
func (w *world) onSmallDisk(mib int) {
	w.t.Helper()
	original := w.dir.Data() + ".original"
	w.must(os.Rename(w.dir.Data(), original))
	w.must(os.Mkdir(w.dir.Data(), 0o700))
	mount(w.t, w.dir.Data(), fmt.Sprintf("mode=0700,size=%dm", mib))
	if out, err := exec.Command("cp", "-a", "--", original+"/.", w.dir.Data()).CombinedOutput(); err != nil {
		w.t.Fatalf("cp: %v: %s", err, out)
	}
	w.must(os.RemoveAll(original))
}

// fill leaves so much of the data directory's file system free. What it takes is
// given back by the function it returns.
func (w *world) fill(leave int64) (free func()) {
	w.t.Helper()
	var st unix.Statfs_t
	w.must(unix.Statfs(w.dir.Data(), &st))
	name := filepath.Join(w.dir.Data(), "filler")
	f, err := os.Create(name)
	w.must(err)
	w.must(errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-leave), f.Close()))
	return func() { w.must(os.Remove(name)) }
}

// TestDiskFull has no room for a new sandbox, which is not begun then.
func TestDiskFull(t *testing.T) {
	w := newWorld(t)
	w.onSmallDisk(1500)
	w.start(quiet)
	free := w.fill(1 << 20)
	sb, err := w.server.Create(t.Context(), "full")
	if err == nil {
		t.Fatalf("a sandbox runs without room: %+v", sb)
	}
	if reason := w.wantFailed(sb.ID, patience); !strings.Contains(reason, "the host's disk has 0 MiB left") {
		t.Errorf("reason %q does not say how much is left", reason)
	}
	w.must(w.server.Delete(t.Context(), sb.ID))
	free()
	w.wantAlive(w.create("room"))
}

// TestDiskFullInOperation has no room for what pause, snapshot, fork and capture
// write. The sandbox runs on, the reason says what is lacking, nothing half made
// stays, and all of it works once there is room.
func TestDiskFullInOperation(t *testing.T) {
	w := newWorld(t)
	w.onSmallDisk(1500)
	w.start(quiet)
	k := w.keep("keeper")
	ctx := t.Context()
	const much = "dd if=/dev/urandom of=/dev/shm/much bs=1M count=48 2>/dev/null; cp /dev/shm/much /var/much; sync"
	w.root(k.id, much)
	const leave = 8 << 20 // for the server's own records
	for _, tt := range []struct {
		name   string
		reason func(w *world) string
	}{
		{"pause", func(w *world) string {
			w.must(w.ask(k, skerry.Pause))
			return w.rest(k.id).Reason
		}},
		{"snapshot", func(w *world) string {
			_, err := w.server.Client.CreateSnapshot(ctx, string(k.id), "snap")
			w.must(err)
			w.rest(k.id)
			s, _ := w.server.Client.WaitSnapshot(ctx, "snap", patience)
			w.must(w.deleteSnapshots(ctx))
			return s.Error
		}},
		{"fork", func(w *world) string {
			children, err := w.server.Client.ForkSandbox(ctx, string(k.id), skerry.ForkRequest{})
			w.must(err)
			w.rest(k.id)
			reason := w.wantFailed(children[0].ID, patience)
			w.must(w.server.Delete(ctx, children[0].ID))
			return reason
		}},
		{"capture", func(w *world) string {
			_, err := w.server.Client.CaptureImage(ctx, string(k.id), skerry.CaptureRequest{Name: "captured"})
			w.must(err)
			w.rest(k.id)
			i, _ := w.server.Client.WaitImage(ctx, "captured", patience, nil)
			w.must(w.server.Client.DeleteImage(ctx, "captured"))
			return i.Error
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := w.with(t)
			free := w.fill(leave)
			reason := tt.reason(w)
			t.Logf("reason: %s", reason)
			if !saysFull(reason) {
				t.Errorf("the reason %q does not say that the disk is full; end of the log:\n%s", reason, w.server.LogTail(20))
			}
			w.wantFree(k)
			w.wantNothingHalf(k)
			free()
		})
	}
	free := w.fill(leave)
	w.operate(k, skerry.Stop, skerry.StatusStopped)
	w.operate(k, skerry.Start, skerry.StatusRunning)
	w.wantFiles(k)
	free()
	w.works(k)
}

// saysFull reports whether a text tells of a full disk: that a write failed, or,
// for what is refused before anything is written, how little is left.
func saysFull(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "the host's disk has") || strings.Contains(text, "no space left") || strings.Contains(text, "disk is full") || strings.Contains(text, "disk full")
}
