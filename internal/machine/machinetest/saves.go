package machinetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
)

// Where guestinit's work writes on the disk.
const (
	firstWorkSector = 64
	workSectors     = 2048
	workDiskBytes   = 32 << 20
)

// lastRound is the number of the last round of work that is on a disk.
func lastRound(t testing.TB, disk *os.File) (last uint64) {
	t.Helper()
	buf := make([]byte, workSectors*512)
	if _, err := disk.ReadAt(buf, firstWorkSector*512); err != nil {
		t.Fatal(err)
	}
	for ; len(buf) > 0; buf = buf[512:] {
		last = max(last, binary.LittleEndian.Uint64(buf))
	}
	return last
}

// rounds is how many rounds of work there were.
func (v *VM) rounds() uint64 {
	v.t.Helper()
	n, err := strconv.ParseUint(v.Do("rounds"), 10, 64)
	if err != nil {
		v.t.Fatal(err)
	}
	return n
}

// Works waits until the guest has done so many more rounds.
func (v *VM) Works(more uint64) {
	v.t.Helper()
	begin := v.rounds()
	Wait(v.t, "work", func() bool { return v.rounds() >= begin+more })
}

// sameInstant resumes a copy of a working machine, whose disk is a copy too, and
// checks that its memory and its disk are of one instant: the work stops at
// once, and the last round is the one on the disk, or the one that was begun.
func sameInstant(t *testing.T, v *VM, disk *os.File) {
	t.Helper()
	if _, err := disk.WriteAt([]byte("stop"), 0); err != nil {
		t.Fatal(err)
	}
	onDisk := lastRound(t, disk)
	v.Resume()
	v.Hello()
	n, err := strconv.ParseUint(v.Do("stopped"), 10, 64)
	if err != nil || n < onDisk || n > onDisk+1 {
		t.Errorf("rounds in memory: got %d, %v; on disk %d", n, err, onDisk)
	}
	if n == 0 {
		t.Error("the copy is of a time before the work")
	}
}

// copyOf is a copy of a file.
func copyOf(t testing.TB, f *os.File) *os.File {
	t.Helper()
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	c := Disk(t, fi.Size())
	if _, err := io.Copy(c, io.NewSectionReader(f, 0, fi.Size())); err != nil {
		t.Fatal(err)
	}
	return c
}

// empty is a new file for a copy of a disk.
func empty(t testing.TB) *os.File { return Disk(t, 0) }

// saveRunning saves a machine with its disk and returns where, and the disk.
func saveRunning(t testing.TB, v *VM, base string) (ram string, disk *os.File, saved machine.Saved) {
	t.Helper()
	ram, disk = filepath.Join(t.TempDir(), "ram"), empty(t)
	dc, err := v.CopyScratch(t.Context(), disk)
	if err != nil {
		t.Fatal(err)
	}
	defer dc.Close()
	saved, err = v.Save(t.Context(), machine.SaveRequest{StatePath: statePath(ram), RAMPath: ram, BasePath: base, Disk: dc})
	if err != nil {
		t.Fatalf("save: %v; %s", err, v.logs())
	}
	if err := dc.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := dc.Close(); err != nil {
		t.Fatal(err)
	}
	return ram, disk, saved
}

// testSave: a machine that writes hard to memory and disk is saved and goes
// on. Its copies have memory and disk of one instant, plugged memory too, and
// do not see each other's writes. The template of the machine may be gone.
func testSave(t *testing.T, s *suite) {
	disk := Disk(t, workDiskBytes)
	v := s.restore(t, disk)
	if err := v.SetMemory(t.Context(), 768); err != nil {
		t.Fatal(err)
	}
	memoryIs(t, v, 768)
	v.Do("free")
	v.Do("alloc 400 9") // more than the base has
	v.Do("work 16")
	v.Works(50)
	base := filepath.Join(t.TempDir(), "base")
	if err := os.Link(s.ramPath, base); err != nil {
		t.Fatal(err)
	}
	ram, saved, info := saveRunning(t, v, base)
	if err := os.Remove(base); err != nil {
		t.Fatal(err)
	}
	if info.Pause <= 0 || info.MemoryBytes < 400<<20 || info.MemoryBytes > 768<<20 {
		t.Errorf("saved: got %v and %d MiB, want a pause and 400 to 768 MiB", info.Pause, info.MemoryBytes>>20)
	}
	v.Works(50)
	template := Load(t, s.Implementation, ram, statePath(ram))
	template.ScratchBytes = workDiskBytes
	start := func(disk *os.File) *VM {
		return Start(t, s.Driver, machine.Config{Shape: shape, Image: s.image, Scratch: disk, Template: template})
	}
	disks := []*os.File{copyOf(t, saved), copyOf(t, saved)}
	first, second := start(disks[0]), start(disks[1])
	sameInstant(t, first, disks[0])
	checkImage(t, first)
	memoryIs(t, first, 768)
	for _, v := range []*VM{v, first} {
		if got, want := v.Do("check"), "400"; got != want {
			t.Errorf("memory: got %s MiB, want %s", got, want)
		}
	}
	first.Do("free")
	first.Do("alloc 100 10")
	first.Do("write vdb 5000 mine")
	second.Resume()
	second.Hello()
	second.Works(10)
	if got := second.Do("check"); got != "400" {
		t.Errorf("second copy: got %s MiB, want 400", got)
	}
	if got := second.Do("read vdb 5000"); got != "" {
		t.Errorf("second copy reads %q of the first's disk", got)
	}
	reported(t, first)
}

// reported: what a copy frees, the host gets back, and the copy goes on.
func reported(t *testing.T, v *VM) {
	t.Helper()
	v.Do("free")
	v.Do("alloc 300 11")
	big := HostMiB(t, v.PID())
	v.Do("free")
	Wait(t, "reported memory back on the host", func() bool { return HostMiB(t, v.PID()) < big-100 })
}

// testSaveChain: a save of a machine that is from a save stands by itself, and
// so does a final one, which leaves the machine as it is.
func testSaveChain(t *testing.T, s *suite) {
	v := s.restore(t, Disk(t, workDiskBytes))
	v.Do("write vdb 5000 zero")
	ram1, disk1, info1 := saveRunning(t, v, s.ramPath)
	start := func(ram string, disk *os.File) *VM {
		template := Load(t, s.Implementation, ram, statePath(ram))
		template.ScratchBytes = workDiskBytes
		return Start(t, s.Driver, machine.Config{Shape: shape, Image: s.image, Scratch: disk, Template: template})
	}
	if info1.MemoryBytes > 200<<20 {
		t.Errorf("an idle machine takes %d MiB", info1.MemoryBytes>>20)
	}
	v2 := start(ram1, disk1)
	v2.Resume()
	v2.Hello()
	v2.Do("check") // what the template had
	v2.Do("free")
	v2.Do("alloc 60 5")
	v2.Do("work 8")
	v2.Works(20)
	ram2 := filepath.Join(t.TempDir(), "ram")
	info2, err := v2.Save(t.Context(), machine.SaveRequest{StatePath: statePath(ram2), RAMPath: ram2, BasePath: ram1, Final: true})
	if err != nil || info2.Pause != 0 || info2.MemoryBytes < 60<<20 {
		t.Fatalf("final save: got %+v, %v; want no pause and 60 MiB or more", info2, err)
	}
	if err := v2.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(ram1)); err != nil {
		t.Fatal(err)
	}
	v3 := start(ram2, disk1)
	sameInstant(t, v3, disk1)
	if got, want := v3.Do("check"), "60"; got != want {
		t.Errorf("third machine: got %s MiB, want %s", got, want)
	}
	if got, want := v3.Do("read vdb 5000"), "zero"; got != want {
		t.Errorf("third machine's disk: got %q, want %q", got, want)
	}
	// Without a base, the whole memory is stored.
	ram4, disk4, _ := saveRunning(t, v3, "")
	v4 := start(ram4, disk4)
	v4.Resume()
	v4.Hello()
	if got, want := v4.Do("check"), "60"; got != want {
		t.Errorf("fourth machine: got %s MiB, want %s", got, want)
	}
	if _, err := os.Lstat(ram4 + ".base"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("base of a save without one: %v", err)
	}
}

// testSaveFails: a machine whose save fails goes on, or stays paused if it was,
// and nothing is left of the save.
func testSaveFails(t *testing.T, s *suite) {
	v := s.restore(t, Disk(t, workDiskBytes))
	v.Do("work 8")
	dir := t.TempDir()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	ram := filepath.Join(dir, "ram")
	good := machine.SaveRequest{StatePath: statePath(ram), RAMPath: ram}
	for _, c := range []struct {
		name   string
		ctx    context.Context
		change func(*machine.SaveRequest)
	}{
		{"cancelled", cancelled, func(*machine.SaveRequest) {}},
		{"no folder", t.Context(), func(r *machine.SaveRequest) { r.StatePath = filepath.Join(dir, "absent", "state") }},
		{"no base", t.Context(), func(r *machine.SaveRequest) { r.BasePath = filepath.Join(dir, "absent") }},
		{"no base, final", t.Context(), func(r *machine.SaveRequest) { r.BasePath, r.Final = filepath.Join(dir, "absent"), true }},
		{"disk cannot be cut", t.Context(), func(r *machine.SaveRequest) { r.Disk = uncuttable{} }},
	} {
		req := good
		c.change(&req)
		_, err := v.Save(c.ctx, req)
		var e *skerry.Error
		if !errors.As(err, &e) {
			t.Errorf("%s: got %v, want a *skerry.Error", c.name, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", c.name, left, err)
		}
		v.Works(3)
	}
	if err := v.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if saved, err := v.Save(t.Context(), good); err != nil || saved.Pause != 0 {
		t.Errorf("save of a paused machine: got %+v, %v; want no pause", saved, err)
	}
	v.Resume()
	v.Works(3)
}

type uncuttable struct{ machine.DiskCopy }

func (uncuttable) Cut(context.Context) error { return errors.New("it cannot be cut") }

// testSaveBooted: a machine that was booted can be saved while it runs.
func testSaveBooted(t *testing.T, s *suite) {
	v := Start(t, s.Driver, machine.Config{Shape: shape, Image: s.image, Scratch: Disk(t, workDiskBytes), Boot: &s.boot})
	v.Hello()
	v.Do("alloc 32 4")
	v.Do("work 8")
	v.Works(20)
	ram, disk, _ := saveRunning(t, v, "")
	v.Works(20)
	template := Load(t, s.Implementation, ram, statePath(ram))
	template.ScratchBytes = workDiskBytes
	c := Start(t, s.Driver, machine.Config{Shape: shape, Image: s.image, Scratch: disk, Template: template})
	sameInstant(t, c, disk)
	checkImage(t, c)
	if got := c.Do("check"); got != "32" {
		t.Errorf("memory: got %s MiB, want 32", got)
	}
	if err := c.SetMemory(t.Context(), 512); err != nil {
		t.Fatal(err)
	}
	memoryIs(t, c, 512)
}

// testDiskCopy: a copy is the disk at the cut, whatever is written or freed
// before and after, and has holes where the disk has.
func testDiskCopy(t *testing.T, s *suite) {
	disk, dst := Disk(t, workDiskBytes), empty(t)
	if _, err := disk.WriteAt([]byte(strings.Repeat("d", 4<<20)), 8<<20); err != nil {
		t.Fatal(err)
	}
	v := s.restore(t, disk)
	v.Do("write vdb 5000 before")
	dc, err := v.CopyScratch(t.Context(), dst)
	if err != nil {
		t.Fatal(err)
	}
	defer dc.Close()
	if _, err := v.CopyScratch(t.Context(), empty(t)); skerry.CodeOf(err) != skerry.CodeConflict {
		t.Errorf("second copy: got %v, want code %s", err, skerry.CodeConflict)
	}
	v.Do("write vdb 6000 meanwhile")
	v.Do(fmt.Sprintf("discard vdb %d %d", 9<<20, 2<<20))
	if err := dc.Cut(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.Do("write vdb 5000 after")
	v.Do("write vdb 6000 after")
	v.Do("write vdb 7000 after")
	if err := dc.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := dc.Close(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, workDiskBytes)
	if _, err := dst.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	for sector, want := range map[int]string{5000: "before", 6000: "meanwhile", 7000: "", 8 << 11: "dddd", 9 << 11: "", 11<<11 - 1: "", 11 << 11: "dddd"} {
		if text := strings.TrimRight(string(got[sector*512:sector*512+512]), "\x00"); text != want && !(len(want) == 4 && strings.HasPrefix(text, want)) {
			t.Errorf("sector %d: got %.20q, want %q", sector, text, want)
		}
	}
	if got, most := allocated(t, dst), int64(2<<20+4*64<<10+64<<10); got > most {
		t.Errorf("the copy takes %d bytes, want at most %d", got, most)
	}
	if got, want := v.Do("read vdb 6000"), "after"; got != want {
		t.Errorf("the disk itself: got %q, want %q", got, want)
	}
}

// testDiskCopyEnds: a copy that is closed early, at any step, leaves a machine
// that goes on and can be copied again.
func testDiskCopyEnds(t *testing.T, s *suite) {
	v := s.restore(t, Disk(t, workDiskBytes))
	v.Do("work 8")
	for _, cut := range []bool{false, true} {
		dc, err := v.CopyScratch(t.Context(), empty(t))
		if err != nil {
			t.Fatal(err)
		}
		if cut {
			if err := dc.Cut(t.Context()); err != nil {
				t.Fatal(err)
			}
		} else if err := dc.Wait(t.Context()); err == nil {
			t.Error("wait without a cut: got nil, want an error")
		}
		for range 2 {
			if err := dc.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		if err := dc.Cut(t.Context()); err == nil {
			t.Error("cut of a closed copy: got nil, want an error")
		}
		v.Works(3)
	}
	for _, bad := range []*os.File{Disk(t, 512)} {
		if dc, err := v.CopyScratch(t.Context(), bad); err == nil {
			dc.Close()
			t.Error("copy to a file that is not empty: got nil, want an error")
		}
	}
	dc, err := v.CopyScratch(t.Context(), empty(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := dc.Close(); err != nil {
		t.Errorf("close after the machine's end: %v", err)
	}
}

// testReconnect: the port gets a new host end, also in a copy of a machine
// that was in the middle of an answer.
func testReconnect(t *testing.T, s *suite) {
	v := s.restore(t, Disk(t, workDiskBytes))
	if _, err := io.WriteString(v.conn, "flood 4000000\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := v.in.Peek(4096); err != nil { // it writes, and nobody reads on
		t.Fatal(err)
	}
	ram, disk, _ := saveRunning(t, v, s.ramPath)
	template := Load(t, s.Implementation, ram, statePath(ram))
	template.ScratchBytes = workDiskBytes
	c := Start(t, s.Driver, machine.Config{Shape: shape, Image: s.image, Scratch: disk, Template: template})
	c.Resume()
	for _, v := range []*VM{v, c} {
		v.reconnect()
		v.Hello()
		if got, want := v.Do("echo new"), "new"; got != want {
			t.Errorf("over the new end: got %q, want %q", got, want)
		}
	}
}
