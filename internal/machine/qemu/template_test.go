package qemu

import (
	"bytes"
	"encoding/json"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// writeTemplate makes the files of a template as Capture does, without a
// machine: memory with a zero page between two others, and a hole.
func writeTemplate(t *testing.T) (ramPath, statePath string) {
	t.Helper()
	dir := t.TempDir()
	ramPath, statePath = filepath.Join(dir, "ram"), filepath.Join(dir, "state")
	m := &instance{}
	m.shape.BaseMiB = 4
	var err error
	if m.ram, err = newMemfd("ram", 4<<20); err != nil {
		t.Fatal(err)
	}
	defer m.ram.Close()
	data := append(append(bytes.Repeat([]byte("a"), pageBytes), make([]byte, pageBytes)...), bytes.Repeat([]byte("b"), pageBytes)...)
	if _, err := m.ram.WriteAt(data, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(statePath, []byte("state"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.saveRAM(statePath, ramPath); err != nil {
		t.Fatal(err)
	}
	return ramPath, statePath
}

func TestLoadTemplate(t *testing.T) {
	ramPath, statePath := writeTemplate(t)
	fi, err := os.Stat(ramPath)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(ramPath, &st); err != nil || st.Blocks*512 > 4*pageBytes {
		t.Errorf("memory file takes %d bytes of the disk, %v; want two pages of %d", st.Blocks*512, err, fi.Size())
	}
	tpl, err := LoadTemplate(ramPath, statePath)
	if err != nil {
		t.Fatal(err)
	}
	defer tpl.RAM.Close()
	defer tpl.State.Close()
	got := make([]byte, 3*pageBytes)
	if _, err := tpl.RAM.ReadAt(got, 1<<20); err != nil || got[0] != 'a' || got[pageBytes] != 0 || got[2*pageBytes] != 'b' {
		t.Errorf("memory: got %q %q %q, %v", got[0], got[pageBytes], got[2*pageBytes], err)
	}
	if _, err := tpl.RAM.WriteAt([]byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write to sealed memory: got %v, want %v", err, unix.EPERM)
	}
	if err := unix.Fallocate(int(tpl.RAM.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 1<<20, pageBytes); !errors.Is(err, unix.EPERM) {
		t.Errorf("hole in sealed memory: got %v, want %v", err, unix.EPERM)
	}
}

// TestLoadFilledHoles: a copy that lost its holes is still right.
func TestLoadFilledHoles(t *testing.T) {
	ramPath, statePath := writeTemplate(t)
	data, err := os.ReadFile(ramPath)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ramPath, data, 0o600); err != nil {
		t.Fatal(err)
	}
	tpl, err := LoadTemplate(ramPath, statePath)
	if err != nil {
		t.Fatal(err)
	}
	tpl.RAM.Close()
	tpl.State.Close()
}

// TestCorruptTemplate: whatever a disk or a crash does to the files is
// recognised, and leaves no descriptor behind.
func TestCorruptTemplate(t *testing.T) {
	flip := func(path string, at int64) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data[at] ^= 1
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, harm := range map[string]func(ram, state string) error{
		"bit of the memory":  func(ram, _ string) error { flip(ram, 1<<20+5); return nil },
		"bit of a zero page": func(ram, _ string) error { flip(ram, 0); return nil },
		"bit of the state":   func(_, state string) error { flip(state, 2); return nil },
		"bit of the sums":    func(_, state string) error { flip(sumsPath(state), 0); return nil },
		"lost page":          func(ram, _ string) error { return zero(ram, 1<<20) },
		"short memory":       func(ram, _ string) error { return os.Truncate(ram, 2<<20) },
		"short state":        func(_, state string) error { return os.Truncate(state, 0) },
		"no memory":          func(ram, _ string) error { return os.Remove(ram) },
		"no state":           func(_, state string) error { return os.Remove(state) },
		"no sums":            func(_, state string) error { return os.Remove(sumsPath(state)) },
	} {
		t.Run(name, func(t *testing.T) {
			ramPath, statePath := writeTemplate(t)
			if err := harm(ramPath, statePath); err != nil {
				t.Fatal(err)
			}
			before := leftovers(t)
			if _, err := LoadTemplate(ramPath, statePath); !errors.Is(err, ErrCorruptTemplate) {
				t.Errorf("got %v, want %v", err, ErrCorruptTemplate)
			}
			if got := leftovers(t); got != before {
				t.Errorf("left over: got %s, want %s", got, before)
			}
		})
	}
}

// zero clears a page.
func zero(path string, at int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(make([]byte, pageBytes), at)
	return err
}

// TestBoundedLog: a guest that writes without end fills two files and keeps
// the newest.
func TestBoundedLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := newBoundedLog(path)
	chunk := bytes.Repeat([]byte("0123456789abcde\n"), 7000)
	for range 40 {
		if n, err := l.Write(chunk); n != len(chunk) || err != nil {
			t.Fatalf("write: %d, %v", n, err)
		}
	}
	if _, err := l.Write([]byte("the end")); err != nil {
		t.Fatal(err)
	}
	if got := l.tail(); len(got) > tailBytes || !bytes.HasSuffix([]byte(got), []byte("the end")) {
		t.Errorf("tail: got %q", got)
	}
	l.Close()
	newest, err := os.ReadFile(path)
	if err != nil || !bytes.HasSuffix(newest, []byte("the end")) {
		t.Errorf("log does not end with the last line; %v", err)
	}
	for _, p := range []string{path, path + ".1"} {
		if fi, err := os.Stat(p); err != nil || fi.Size() > maxLogBytes {
			t.Errorf("%s: got %v, %v, want at most %d bytes", p, fi.Size(), err, maxLogBytes)
		}
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 2 {
		t.Errorf("files: got %d, %v, want 2", len(files), err)
	}
}

// FuzzSums: no sums file makes LoadTemplate do more than refuse or load.
func FuzzSums(f *testing.F) {
	good, err := json.Marshal(sums{Version: sumsVersion, StateBytes: 5, StateCRC: crc32.Checksum([]byte("state"), castagnoli)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"version":1,"ram_bytes":-1,"state_bytes":9223372036854775807}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		ram, state := filepath.Join(dir, "ram"), filepath.Join(dir, "state")
		for path, content := range map[string][]byte{ram: nil, state: []byte("state"), sumsPath(state): text} {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if tpl, err := LoadTemplate(ram, state); err == nil {
			tpl.RAM.Close()
			tpl.State.Close()
		}
	})
}
