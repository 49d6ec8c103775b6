package crash

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"skerry.dev/skerry"
)

// TestMachineKilledInOperation kills the shim, and the hypervisor, of a
// persistent sandbox in the middle of every operation. The sandbox is then
// stopped, or what it was, with the reason; what was to be made of it has failed
// and says why, or is whole; and everything works again.
func TestMachineKilledInOperation(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	k := w.keep("keeper")
	running, stopped, paused := skerry.StatusRunning, skerry.StatusStopped, skerry.StatusPaused
	for _, tt := range []struct {
		name  string
		from  skerry.Status
		begin func(w *world) error
		// under is what is there, below the data directory, once the operation
		// is under way; "" for the processes of the machine alone.
		under string
		want  []skerry.Status
	}{
		{"pause", running, func(w *world) error { return w.ask(k, skerry.Pause) }, "sandboxes/*/memory.new", []skerry.Status{stopped, paused}},
		{"snapshot", running, func(w *world) error {
			_, err := w.server.Client.CreateSnapshot(w.t.Context(), string(k.id), "snap")
			return err
		}, "snapshots/*.new", []skerry.Status{stopped}},
		{"fork", running, func(w *world) error {
			_, err := w.server.Client.ForkSandbox(w.t.Context(), string(k.id), skerry.ForkRequest{Names: []string{"child"}})
			return err
		}, "forks/mch_*", []skerry.Status{stopped}},
		{"capture", running, func(w *world) error {
			_, err := w.server.Client.CaptureImage(w.t.Context(), string(k.id), skerry.CaptureRequest{Name: "captured"})
			return err
		}, "forks/img_*", []skerry.Status{stopped}},
		{"stop", running, func(w *world) error { return w.ask(k, skerry.Stop) }, "", []skerry.Status{stopped}},
		{"start", stopped, func(w *world) error { return w.ask(k, skerry.Start) }, "", []skerry.Status{stopped}},
		{"resume", paused, func(w *world) error { return w.ask(k, skerry.Resume) }, "", []skerry.Status{stopped, paused}},
	} {
		for _, victim := range []string{"shim", "hypervisor"} {
			t.Run(tt.name+"/"+victim, func(t *testing.T) {
				w := w.with(t)
				w.bring(k, running)
				if tt.from == running {
					// So much that it is not over at once: memory to save, a disk
					// to copy, and a process that does not end when asked to.
					w.root(k.id, "dd if=/dev/urandom of=/dev/shm/much bs=1M count=64 2>/dev/null; cp /dev/shm/much /var/much; sync")
					w.root(k.id, "(trap '' TERM; while :; do sleep 1; done) >/dev/null 2>&1 &")
				}
				w.bring(k, tt.from)
				w.must(tt.begin(w))
				w.killUnderWay(k, victim, tt.under)
				sb := w.rest(k.id)
				t.Logf("afterwards: %s, %q", sb.Status, sb.Reason)
				if sb.Status == running {
					// The end of the machine is not noticed yet.
					w.eventually(20*time.Second, func() error {
						if sb = w.rest(k.id); sb.Status == running {
							return fmt.Errorf("still runs")
						}
						return nil
					})
				}
				if !slices.Contains(tt.want, sb.Status) || (sb.Status == stopped && sb.Reason == "") || strings.Contains(sb.Reason, "\n") {
					t.Errorf("%s, reason %q, want one of %s and why, in one line; end of the log:\n%s", sb.Status, sb.Reason, tt.want, w.server.LogTail(20))
				}
				if sb.Status == stopped {
					k.memory = nil
				}
				w.wantProduct(k, tt.name)
				w.bring(k, running)
				w.wantFiles(k)
				w.wantNothingHalf(k)
				w.wantOnly(w.rest(k.id))
			})
		}
	}
	w.works(k)
}

// killUnderWay kills a process of the sandbox's present machine as soon as a file
// of the pattern is there.
func (w *world) killUnderWay(k *keeper, victim, pattern string) {
	w.t.Helper()
	sb, err := w.server.Client.Sandbox(w.t.Context(), string(k.id))
	w.must(err)
	deadline := time.Now().Add(patience)
	for {
		found, _ := filepath.Glob(filepath.Join(w.dir.Data(), pattern))
		shim, qemu, err := w.dir.MachineProcesses(string(sb.Machine))
		if err == nil && (pattern == "" || len(found) > 0) {
			w.must(syscall.Kill(map[string]int{"shim": shim, "hypervisor": qemu}[victim], syscall.SIGKILL))
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("not under way: %v, %q", err, found)
		}
		time.Sleep(time.Millisecond)
	}
}

// wantProduct fails unless what an operation makes is whole, or has failed and
// says why. It removes it.
func (w *world) wantProduct(k *keeper, operation string) {
	w.t.Helper()
	ctx := w.t.Context()
	switch operation {
	case "fork":
		w.wantCopy(k.copyOf(w.named("child"), true))
	case "snapshot":
		s, err := w.server.Client.WaitSnapshot(ctx, "snap", patience)
		w.t.Logf("the snapshot is %s, %q", s.Status, s.Error)
		if err != nil && (s.Status != skerry.ImageFailed || s.Error == "") {
			w.t.Errorf("snapshot is %s, error %q: %v", s.Status, s.Error, err)
		}
		w.must(w.deleteSnapshots(ctx))
	case "capture":
		i, err := w.server.Client.WaitImage(ctx, "captured", patience, nil)
		w.t.Logf("the image is %s, %q", i.Status, i.Error)
		if err != nil && (i.Status != skerry.ImageFailed || i.Error == "") {
			w.t.Errorf("image is %s, error %q: %v", i.Status, i.Error, err)
		}
		w.must(w.server.Client.DeleteImage(ctx, "captured"))
	}
}

// TestEphemeralKilledInCopy kills the hypervisor of an ephemeral sandbox while a
// snapshot and an image are made of it.
func TestEphemeralKilledInCopy(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	for operation, pattern := range map[string]string{"snapshot": "snapshots/*.new", "capture": "forks/img_*"} {
		t.Run(operation, func(t *testing.T) {
			w := w.with(t)
			req := persistent("")
			req.Persistent = false
			sb, err := w.server.Client.CreateSandbox(t.Context(), req)
			w.must(err)
			_, err = w.server.Client.WaitSandbox(t.Context(), string(sb.ID), patience, skerry.StatusRunning)
			w.must(err)
			w.root(sb.ID, "dd if=/dev/urandom of=/dev/shm/much bs=1M count=64 2>/dev/null; cp /dev/shm/much /var/much; sync")
			if operation == "snapshot" {
				_, err = w.server.Client.CreateSnapshot(t.Context(), string(sb.ID), "snap")
			} else {
				_, err = w.server.Client.CaptureImage(t.Context(), string(sb.ID), skerry.CaptureRequest{Name: "captured"})
			}
			w.must(err)
			k := &keeper{id: sb.ID}
			w.killUnderWay(k, "hypervisor", pattern)
			w.wantFailed(sb.ID, 20*time.Second)
			w.wantProduct(k, operation)
			w.must(w.server.Delete(t.Context(), sb.ID))
			w.wantNothingHalf()
		})
	}
}
