package machinetest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
)

// testColdBoot: a machine that is not from a template has its disks, its
// console log and its processors.
func testColdBoot(t *testing.T, s *suite) {
	disk := Disk(t, 16<<20)
	v := Start(t, s.Driver, machine.Config{Shape: shape, Image: s.image, Scratch: disk, Boot: &s.boot})
	v.Hello()
	if got, want := v.Do("size vdb"), "16777216"; got != want {
		t.Errorf("size of vdb: got %s, want %s", got, want)
	}
	checkImage(t, v)
	text, err := os.ReadFile(filepath.Join(v.Dir, "console.log"))
	if err != nil || !strings.Contains(string(text), ReadyMarker) {
		t.Errorf("console.log lacks %q; %v", ReadyMarker, err)
	}
}

// testVCPUs: a template has the processors of its shape, and so do its clones.
func testVCPUs(t *testing.T, s *suite) {
	two := machine.Shape{VCPUs: 2, BaseMiB: 256, MaxMemMiB: 256}
	template := Capture(t, s.Implementation, s.boot, s.image, two)
	v := Start(t, s.Driver, machine.Config{Shape: two, Image: s.image, Template: template})
	v.Resume()
	v.Hello()
	if got, want := v.Do("online"), "0-1"; got != want {
		t.Errorf("two processors: online %s, want %s", got, want)
	}
	if got, err := v.MemoryMiB(t.Context()); err != nil || got != 256 {
		t.Errorf("memory without room to plug: got %d, %v", got, err)
	}
	if got, want := s.restore(t, nil).Do("online"), "0"; got != want {
		t.Errorf("one processor: online %s, want %s", got, want)
	}
}

// testPauseResume: a paused guest does not answer, a resumed one does, with
// what it was asked meanwhile.
func testPauseResume(t *testing.T, s *suite) {
	v := s.restore(t, nil)
	if err := v.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := v.conn.Write([]byte("echo later\n")); err != nil {
		t.Fatal(err)
	}
	if err := v.conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if line, err := v.in.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a paused guest answered %q, %v", line, err)
	}
	v.Resume()
	if err := v.conn.SetReadDeadline(time.Now().Add(deadline)); err != nil {
		t.Fatal(err)
	}
	if line, err := v.in.ReadString('\n'); err != nil || line != "ok later\n" {
		t.Errorf("after resume: got %q, %v", line, err)
	}
}

// testKill: Kill ends a machine in every state, any number of times.
func testKill(t *testing.T, s *suite) {
	v := s.restore(t, nil)
	if err := v.Err(); err != nil {
		t.Errorf("Err of a running machine: got %v, want nil", err)
	}
	for range 2 {
		if err := v.Kill(); err != nil {
			t.Errorf("kill: %v", err)
		}
	}
	ended(t, v)
	if err := v.Err(); !errors.Is(err, machine.ErrKilled) {
		t.Errorf("Err: got %v, want %v", err, machine.ErrKilled)
	}
	if err := v.Machine.Resume(t.Context()); err == nil {
		t.Error("resume of a killed machine: got nil, want an error")
	}
	paused := Start(t, s.Driver, machine.Config{Shape: shape, Image: s.image, Template: s.template})
	if err := paused.Kill(); err != nil {
		t.Errorf("kill a paused machine: %v", err)
	}
	ended(t, paused)
}

// ended: Done is closed and no process is left.
func ended(t *testing.T, v *VM) {
	t.Helper()
	select {
	case <-v.Done():
	case <-time.After(deadline):
		t.Fatal("Done is not closed")
	}
	if err := syscall.Kill(v.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d after Done: got %v, want none", v.PID(), err)
	}
}

// testKilledFromOutside: an end that nobody asked for is a fault.
func testKilledFromOutside(t *testing.T, s *suite) {
	v := s.restore(t, nil)
	if err := syscall.Kill(v.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended(t, v)
	var e *skerry.Error
	if err := v.Err(); !errors.As(err, &e) || errors.Is(err, machine.ErrKilled) {
		t.Errorf("Err: got %v, want a *skerry.Error of another kind", err)
	}
}

// testGuestEnds: power off is no fault, a reset is told apart.
func testGuestEnds(t *testing.T, s *suite) {
	for command, want := range map[string]error{"off": nil, "reboot": machine.ErrReset} {
		v := s.restore(t, nil)
		if _, err := v.conn.Write([]byte(command + "\n")); err != nil {
			t.Fatal(err)
		}
		ended(t, v)
		if err := v.Err(); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", command, err, want)
		}
	}
}

// testBadConfig: what cannot work is refused before anything starts.
func testBadConfig(t *testing.T, s *suite) {
	for name, cfg := range map[string]machine.Config{
		"neither boot nor template": {Shape: shape},
		"both":                      {Shape: shape, Boot: &s.boot, Template: s.template},
		"no processor":              {Shape: machine.Shape{BaseMiB: 256, MaxMemMiB: 256}, Boot: &s.boot},
		"maximum below base":        {Shape: machine.Shape{VCPUs: 1, BaseMiB: 256, MaxMemMiB: 128}, Boot: &s.boot},
		"template of another size":  {Shape: machine.Shape{VCPUs: 1, BaseMiB: 512, MaxMemMiB: 1024}, Template: s.template},
	} {
		cfg.Dir = t.TempDir()
		m, err := s.Driver.Start(t.Context(), cfg)
		if got := skerry.CodeOf(err); got != skerry.CodeInvalid {
			t.Errorf("%s: got %v, want code %s", name, err, skerry.CodeInvalid)
		}
		if m != nil {
			m.Kill()
		}
	}
}
