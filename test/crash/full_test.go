package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

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
	name := filepath.Join(w.dir.Data(), "filler")
	f, err := os.Create(name)
	w.must(err)
	defer f.Close()
	// The server may take what it holds back at the same moment.
	w.eventually(5*time.Second, func() error {
		var st unix.Statfs_t
		w.must(unix.Fstatfs(int(f.Fd()), &st))
		return unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-leave)
	})
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

// TestDiskFullInGuest has no room for what a guest writes. The sandbox stands still
// and says so on every request; with room it goes on and has lost nothing. While
// it lasts, every operation ends, the sandbox stays what it is, and a delete, as
// well as a restart of the server, works.
func TestDiskFullInGuest(t *testing.T) {
	w := newWorld(t)
	w.onSmallDisk(1500)
	w.start(quiet)
	k, other := w.keep("keeper"), w.create("other")
	w.root(k.id, "dd if=/dev/urandom of=/dev/shm/much bs=1M count=48 2>/dev/null")
	want := w.root(k.id, "sha256sum < /dev/shm/much")
	// More than is free and what the server holds back for itself.
	const write = "cp /dev/shm/much /var/much && cp /dev/shm/much /var/much2 && sync && sha256sum < /var/much2"

	free := w.fill(20 << 20)
	written := make(chan string, 1)
	go func() { written <- w.root(k.id, write) }()
	w.wantStill(k)
	w.wantAlive(other)
	free()
	if got := <-written; got != want {
		t.Errorf("written while the disk was full: digest %q, want %q", got, want)
	}
	w.wantGoesOn(k)
	if late := w.lateSeconds(k); late < -2 || late > 2 {
		t.Errorf("the guest's clock is %d s late", late)
	}

	w.root(k.id, "rm /var/much /var/much2; sync")
	free = w.fill(40 << 20) // of which the guest's new blocks need some
	broken := make(chan error, 1)
	go func() {
		_, err := w.server.Client.Toolbox(k.id).Execute(t.Context(), skerry.ExecuteRequest{User: "root",
			Argv: []string{"sh", "-c", "dd if=/dev/urandom of=/var/more bs=1M count=200 && sync"}})
		broken <- err
	}()
	w.wantStill(k)
	if err := <-broken; skerry.CodeOf(err) != skerry.CodeExhausted {
		t.Errorf("a command that was under way: got %v, want code %s", err, skerry.CodeExhausted)
	}
	w.refused(k)
	w.kill()
	w.start(quiet)
	w.wantStill(k)
	w.must(w.server.Delete(t.Context(), other.ID))
	free()
	w.wantGoesOn(k)

	free = w.fill(40 << 20)
	w.root(k.id, "setsid dd if=/dev/urandom of=/var/most bs=1M count=200 >/dev/null 2>&1 &")
	w.wantStill(k)
	w.must(w.server.Delete(t.Context(), k.id))
	free()
}

// refused has every operation refused on a sandbox that stands still.
func (w *world) refused(k *keeper) {
	w.t.Helper()
	ctx := w.t.Context()
	w.must(w.ask(k, skerry.Pause))
	reasons := map[string]string{"pause": w.rest(k.id).Reason}
	_, err := w.server.Client.CreateSnapshot(ctx, string(k.id), "snap")
	w.must(err)
	s, _ := w.server.Client.WaitSnapshot(ctx, "snap", patience)
	reasons["snapshot"] = s.Error
	w.rest(k.id)
	w.must(w.deleteSnapshots(ctx))
	_, err = w.server.Client.CaptureImage(ctx, string(k.id), skerry.CaptureRequest{Name: "captured"})
	w.must(err)
	i, _ := w.server.Client.WaitImage(ctx, "captured", patience, nil)
	reasons["capture"] = i.Error
	w.rest(k.id)
	w.must(w.server.Client.DeleteImage(ctx, "captured"))
	children, err := w.server.Client.ForkSandbox(ctx, string(k.id), skerry.ForkRequest{})
	w.must(err)
	reasons["fork"] = w.wantFailed(children[0].ID, patience)
	w.must(w.server.Delete(ctx, children[0].ID))
	for operation, reason := range reasons {
		if !saysFull(reason) {
			w.t.Errorf("%s: the reason %q does not say that the disk is full", operation, reason)
		}
	}
	if sb := w.rest(k.id); sb.Status != skerry.StatusRunning {
		w.t.Errorf("the sandbox is %s (%s)", sb.Status, sb.Reason)
	}
}

// wantStill waits until a sandbox stands still for want of room.
func (w *world) wantStill(k *keeper) {
	w.t.Helper()
	w.eventually(patience, func() error {
		ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
		defer cancel()
		_, err := w.server.Client.Toolbox(k.id).Execute(ctx, skerry.ExecuteRequest{Argv: []string{"true"}})
		if skerry.CodeOf(err) != skerry.CodeExhausted {
			return fmt.Errorf("a command on a full disk: %v", err)
		}
		return nil
	})
	w.eventually(patience, func() error {
		sb, err := w.server.Client.Sandbox(w.t.Context(), string(k.id))
		if err == nil && (sb.Status != skerry.StatusRunning || !saysFull(sb.Reason)) {
			err = fmt.Errorf("sandbox %s is %s, reason %q", k.id, sb.Status, sb.Reason)
		}
		return err
	})
}

// wantGoesOn waits until a sandbox works again, with its files.
func (w *world) wantGoesOn(k *keeper) {
	w.t.Helper()
	w.eventually(patience, func() error {
		sb, err := w.server.Client.Sandbox(w.t.Context(), string(k.id))
		if err == nil && (sb.Status != skerry.StatusRunning || sb.Reason != "") {
			err = fmt.Errorf("sandbox %s is %s, reason %q", k.id, sb.Status, sb.Reason)
		}
		return errors.Join(err, w.server.Echo(w.t.Context(), k.id))
	})
	w.wantFiles(k)
}

// lateSeconds is by how much the guest's clock is behind the host's.
func (w *world) lateSeconds(k *keeper) int64 {
	w.t.Helper()
	before := time.Now().Unix()
	guest, err := strconv.ParseInt(strings.TrimSpace(w.root(k.id, "date +%s")), 10, 64)
	w.must(err)
	return before - guest
}

// saysFull reports whether a text tells of a full disk: that a write failed, or,
// for what is refused before anything is written, how little is left.
func saysFull(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "the host's disk has") || strings.Contains(text, "no space left") || strings.Contains(text, "disk is full") || strings.Contains(text, "disk full")
}
