package qemu

import (
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/machine"
)

const testRAMBytes = 1 << 20

// memoryOf is a memory file with pages full of one byte each.
func memoryOf(t *testing.T, pages map[int64]byte) *os.File {
	t.Helper()
	f, err := newMemfd("m", testRAMBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for page, c := range pages {
		if _, err := f.WriteAt(pageOf(c), page*pageBytes); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// saveMemory does with memory what Save does: changes on top of the memory a
// machine was started with, stored as a delta to the file at base, or whole.
func saveMemory(t *testing.T, started *os.File, base string, changes map[int64]byte, dropped ...int64) (ram, state string) {
	t.Helper()
	dir := t.TempDir()
	ram, state = filepath.Join(dir, "ram"), filepath.Join(dir, "state")
	if err := os.WriteFile(state, []byte("state"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := create(ram)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := newRAMFile(f, testRAMBytes, started)
	if err != nil {
		t.Fatal(err)
	}
	for page, c := range changes {
		if err := errors.Join(r.put(page, pageOf('?')), r.put(page, pageOf(c))); err != nil {
			t.Fatal(err)
		}
	}
	for _, page := range dropped {
		if err := r.drop(page); err != nil {
			t.Fatal(err)
		}
	}
	s := &save{ram: r, req: machine.SaveRequest{RAMPath: ram, BasePath: base}}
	if err := s.keepBase(); err != nil {
		t.Fatal(err)
	}
	crc, err := s.finishRAM()
	if err != nil {
		t.Fatal(err)
	}
	h, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeSums(state, sums{RAMBytes: testRAMBytes, RAMCRC: crc, StateBytes: int64(len(h)), StateCRC: crc32.Checksum(h, castagnoli)}); err != nil {
		t.Fatal(err)
	}
	return ram, state
}

// holdsPages compares a loaded template's memory.
func holdsPages(t *testing.T, ram, state string, want map[int64]byte) *os.File {
	t.Helper()
	tpl, err := LoadTemplate(ram, state)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tpl.RAM.Close(); tpl.State.Close() })
	page := make([]byte, pageBytes)
	for n := range int64(testRAMBytes / pageBytes) {
		if _, err := tpl.RAM.ReadAt(page, n*pageBytes); err != nil {
			t.Fatal(err)
		}
		if string(page) != string(pageOf(want[n])) {
			t.Errorf("page %d: got %q, want %q", n, page[0], want[n])
		}
	}
	return tpl.RAM
}

// TestDelta: a save is its base with the changes, also those to zero, stores
// no more than that, and outlives the base's own name. A save of a machine
// from a save is one of the first base.
func TestDelta(t *testing.T) {
	started := memoryOf(t, map[int64]byte{0: 'a', 1: 'b', 2: 'c', 9: 'i'})
	base, baseState := saveMemory(t, nil, "", map[int64]byte{0: 'a', 1: 'b', 2: 'c', 9: 'i'})
	holdsPages(t, base, baseState, map[int64]byte{0: 'a', 1: 'b', 2: 'c', 9: 'i'})

	ram, state := saveMemory(t, started, base, map[int64]byte{0: 'A', 1: 0, 2: 'c', 5: 'F', 6: 'x', 7: 0}, 6)
	if err := os.RemoveAll(filepath.Dir(base)); err != nil {
		t.Fatal(err)
	}
	second := holdsPages(t, ram, state, map[int64]byte{0: 'A', 2: 'c', 5: 'F', 9: 'i'})
	var st unix.Stat_t
	if err := unix.Stat(ram, &st); err != nil || st.Blocks*512 > 3*pageBytes {
		t.Errorf("delta takes %d bytes, %v; want two pages and a trailer", st.Blocks*512, err)
	}

	ram3, state3 := saveMemory(t, second, ram, map[int64]byte{5: 'G', 9: 0})
	if err := os.RemoveAll(filepath.Dir(ram)); err != nil {
		t.Fatal(err)
	}
	third := holdsPages(t, ram3, state3, map[int64]byte{0: 'A', 2: 'c', 5: 'G'})

	ram4, state4 := saveMemory(t, third, "", map[int64]byte{0: 'Z'})
	holdsPages(t, ram4, state4, map[int64]byte{0: 'Z', 2: 'c', 5: 'G'})
	if _, err := os.Lstat(basePath(ram4)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a whole save has a base: %v", err)
	}
}

// TestOtherBase: a base that the machine was not started from is refused.
func TestOtherBase(t *testing.T) {
	base, _ := saveMemory(t, nil, "", map[int64]byte{0: 'a', 1: 'b'})
	changed, _ := saveMemory(t, memoryOf(t, map[int64]byte{0: 'a', 1: 'b'}), base, map[int64]byte{1: 0})
	for name, c := range map[string]struct {
		path    string
		started map[int64]byte
		ok      bool
	}{
		"its own":         {base, map[int64]byte{0: 'a', 1: 'b'}, true},
		"its own, delta":  {changed, map[int64]byte{0: 'a'}, true},
		"another":         {base, map[int64]byte{0: 'a', 1: 'c'}, false},
		"another's delta": {changed, map[int64]byte{0: 'a', 1: 'b'}, false},
	} {
		_, _, err := linkBase(c.path, filepath.Join(t.TempDir(), "ram"), sameAs{memoryOf(t, c.started)}, testRAMBytes)
		if (err == nil) != c.ok {
			t.Errorf("%s: got %v, want success: %t", name, err, c.ok)
		}
	}
}

// TestDamagedDelta: every damage to a save's files is found.
func TestDamagedDelta(t *testing.T) {
	change := func(path string, at int64) func(*testing.T) {
		return func(t *testing.T) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			b := make([]byte, 1)
			if _, err := f.ReadAt(b, at); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte{b[0] ^ 1}, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	truncate := func(path string, size int64) func(*testing.T) {
		return func(t *testing.T) {
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(path string) func(*testing.T) {
		return func(t *testing.T) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, damage := range map[string]func(ram string) func(*testing.T){
		"a page":                func(ram string) func(*testing.T) { return change(ram, 5*pageBytes) },
		"a zero page":           func(ram string) func(*testing.T) { return change(ram, 1*pageBytes) },
		"the magic":             func(ram string) func(*testing.T) { return change(ram, testRAMBytes) },
		"the base's CRC":        func(ram string) func(*testing.T) { return change(ram, testRAMBytes+int64(len(deltaMagic))) },
		"the bitmap":            func(ram string) func(*testing.T) { return change(ram, testRAMBytes+int64(deltaHeader)) },
		"no trailer":            func(ram string) func(*testing.T) { return truncate(ram, testRAMBytes) },
		"half a trailer":        func(ram string) func(*testing.T) { return truncate(ram, testRAMBytes+14) },
		"a page of the base":    func(ram string) func(*testing.T) { return change(basePath(ram), 2*pageBytes) },
		"a short base":          func(ram string) func(*testing.T) { return truncate(basePath(ram), pageBytes) },
		"no base":               func(ram string) func(*testing.T) { return remove(basePath(ram)) },
		"the state":             func(ram string) func(*testing.T) { return change(filepath.Join(filepath.Dir(ram), "state"), 0) },
		"no sums, as of a save": func(ram string) func(*testing.T) { return remove(sumsPath(filepath.Join(filepath.Dir(ram), "state"))) },
	} {
		t.Run(name, func(t *testing.T) {
			base, _ := saveMemory(t, nil, "", map[int64]byte{0: 'a', 1: 'b', 2: 'c'})
			started := memoryOf(t, map[int64]byte{0: 'a', 1: 'b', 2: 'c'})
			ram, state := saveMemory(t, started, base, map[int64]byte{1: 0, 5: 'F'})
			damage(ram)(t)
			if tpl, err := LoadTemplate(ram, state); !errors.Is(err, ErrCorruptTemplate) {
				t.Errorf("got %v, %v, want %v", tpl, err, ErrCorruptTemplate)
			} else if !strings.Contains(err.Error(), "ram") && !strings.Contains(err.Error(), "state") {
				t.Errorf("%v does not name the file", err)
			}
		})
	}
}
