package crash

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skerry.dev/skerry"
)

// damages are what can happen to the files of a saved memory.
var damages = []struct {
	name string
	do   func(dir string) error
	want string // in the reason
}{
	{"a byte of the memory", func(dir string) error { return flipData(filepath.Join(dir, "ram")) }, "damaged"},
	{"half the device state", func(dir string) error { return os.Truncate(filepath.Join(dir, "state"), 1000) }, "damaged"},
	{"without its base", func(dir string) error { return os.Remove(filepath.Join(dir, "ram.base")) }, "damaged"},
	{"without a part of the image", func(dir string) error { return os.Remove(filepath.Join(dir, "image-1")) }, "damaged"},
	{"without its description", func(dir string) error { return os.Remove(filepath.Join(dir, "saved.json")) }, "damaged"},
	{"half a description", func(dir string) error { return os.Truncate(filepath.Join(dir, "saved.json"), 20) }, "damaged"},
	{"another hypervisor", otherHypervisor, "does not fit this host"},
}

// flipData changes a byte of a sparse file, where it is not a hole.
func flipData(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	const seekData = 3 // SEEK_DATA of lseek(2)
	at, err := f.Seek(0, seekData)
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	_, err = f.WriteAt([]byte{^b[0]}, at)
	return err
}

// otherHypervisor has a memory be saved by another version.
func otherHypervisor(dir string) error {
	name := filepath.Join(dir, "saved.json")
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var saved map[string]any
	if err := json.Unmarshal(b, &saved); err != nil {
		return err
	}
	saved["hypervisor"] = "QEMU 1.0 of long ago"
	if b, err = json.Marshal(saved); err != nil {
		return err
	}
	return os.WriteFile(name, b, 0o600)
}

// TestDamagedMemory damages the memory of a paused sandbox. A resume is refused
// with the reason and leaves it paused; a start boots it from its disk and says
// so; no flushed file is lost.
func TestDamagedMemory(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	k := w.keep("keeper")
	for _, tt := range damages {
		t.Run(tt.name, func(t *testing.T) {
			w := w.with(t)
			w.bring(k, skerry.StatusPaused)
			w.must(tt.do(filepath.Join(w.dir.Data(), "sandboxes", string(k.id), "memory")))
			for range 2 { // the second finds what the first has left
				w.must(w.ask(k, skerry.Resume))
				sb := w.rest(k.id)
				if sb.Status != skerry.StatusPaused || !strings.Contains(sb.Reason, tt.want) {
					t.Fatalf("after a resume: %s, reason %q, want paused and %q; end of the log:\n%s", sb.Status, sb.Reason, tt.want, w.server.LogTail(20))
				}
				t.Logf("reason: %s", sb.Reason)
			}
			w.operate(k, skerry.Start, skerry.StatusRunning)
			if sb := w.rest(k.id); !strings.Contains(sb.Reason, tt.want) {
				t.Errorf("it was started from its disk with the reason %q, want %q in it", sb.Reason, tt.want)
			}
			k.memory = nil
			w.wantFiles(k)
			w.wantNothingHalf(k)
			w.wantOnly(w.rest(k.id))
			w.write(k, strings.ReplaceAll(tt.name, " ", "-"))
		})
	}
	w.works(k)
}

// TestDamagedSnapshot damages a memory snapshot. What is restored of it fails
// with the reason, its source is not harmed.
func TestDamagedSnapshot(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	k := w.keep("source")
	for _, tt := range damages {
		t.Run(tt.name, func(t *testing.T) {
			w := w.with(t)
			s, err := w.server.Client.CreateSnapshot(t.Context(), string(k.id), "snap")
			w.must(err)
			_, err = w.server.Client.WaitSnapshot(t.Context(), "snap", patience)
			w.must(err)
			w.must(tt.do(filepath.Join(w.dir.Data(), "snapshots", string(s.ID))))
			sb, err := w.server.Client.RestoreSnapshot(t.Context(), "snap", skerry.RestoreRequest{Name: "restored"})
			w.must(err)
			if reason := w.wantFailed(sb.ID, patience); !strings.Contains(reason, tt.want) {
				t.Errorf("reason %q, want %q in it", reason, tt.want)
			}
			w.must(w.server.Delete(t.Context(), sb.ID))
			w.must(w.deleteSnapshots(t.Context()))
			w.wantFree(k)
		})
	}
}

// TestDamagedRecord damages the record of persistent sandboxes, of one that is
// stopped and of one that runs. They are lost and can be deleted; the server
// starts, and others are not harmed.
func TestDamagedRecord(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	victims := []*keeper{w.keep("stopped"), w.keep("running")}
	other := w.keep("other")
	w.bring(victims[0], skerry.StatusStopped)
	w.kill()
	for _, k := range victims {
		w.must(os.WriteFile(filepath.Join(w.dir.Data(), "sandboxes", string(k.id), "record.json"), []byte("{"), 0o600))
	}
	w.start(quiet)
	for _, k := range victims {
		_, err := w.server.Client.WaitSandbox(t.Context(), string(k.id), patience, skerry.StatusLost)
		if sb := w.rest(k.id); err != nil || sb.Status != skerry.StatusLost || sb.Reason == "" {
			t.Errorf("%s is %s, reason %q, want lost and why: %v", k.id, sb.Status, sb.Reason, err)
		}
	}
	w.works(other)
	for _, k := range victims {
		w.must(w.server.Delete(t.Context(), k.id))
	}
	w.wantNothingHalf(other)
	w.wantOnly(w.rest(other.id))
}
