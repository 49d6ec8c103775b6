package machinetest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
)

// fullDisk makes a sparse file on a file system without room for its content,
// and returns what gives it room.
func fullDisk(t *testing.T) (disk *os.File, free func()) {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("skerry-test", dir, "tmpfs", 0, "size=1m,mode=755"); errors.Is(err, unix.EPERM) {
		t.Skip("mounting a small file system needs root")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	disk, err := os.OpenFile(filepath.Join(dir, "scratch.img"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disk.Close() })
	if err := disk.Truncate(workDiskBytes); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: got %v, want %v", err, unix.ENOSPC)
	}
	return disk, func() {
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
	}
}

// stalled tells whether a machine stands still for want of room.
func stalled(v *VM) bool {
	select {
	case <-v.Stalled():
		return true
	default:
		return false
	}
}

// testStalled: a write for which the host has no room stalls the machine, which
// then cannot be saved and does not go on by a retry without room. With room,
// the guest learns nothing of it.
func testStalled(t *testing.T, s *suite) {
	disk, free := fullDisk(t)
	v := s.restore(t, disk)
	answer := make(chan string, 1)
	go func() { answer <- v.Try("write vdb 5000 kept") }()
	stalls := func() { Wait(t, "the machine stalls", func() bool { return stalled(v) }) }
	stalls()
	if err := v.Retry(t.Context()); err != nil {
		t.Fatal(err)
	}
	stalls()
	for _, final := range []bool{false, true} {
		ram := filepath.Join(t.TempDir(), "ram")
		_, err := v.Save(t.Context(), machine.SaveRequest{StatePath: statePath(ram), RAMPath: ram, BasePath: s.ramPath, Final: final})
		if skerry.CodeOf(err) != skerry.CodeExhausted {
			t.Errorf("save, final %t: got %v, want code %s", final, err, skerry.CodeExhausted)
		}
	}
	select {
	case got := <-answer:
		t.Errorf("the guest's write was answered without room: %q", got)
	default:
	}
	free()
	if err := v.Retry(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; got != "ok " {
		t.Errorf("write: got %q, want ok", got)
	}
	if stalled(v) {
		t.Error("the machine goes on and counts as stalled")
	}
	if got := v.Do("read vdb 5000"); got != "kept" {
		t.Errorf("read: got %q, want what was written", got)
	}
	got := make([]byte, 4)
	if _, err := disk.ReadAt(got, 5000*512); err != nil || string(got) != "kept" {
		t.Errorf("host file: got %q, %v", got, err)
	}
	if err := v.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := v.Retry(t.Context()); err != nil {
		t.Fatal(err)
	}
	if stalled(v) {
		t.Error("a paused machine counts as stalled")
	}
	v.Resume()
	v.Do("write vdb 6000 more")
}
