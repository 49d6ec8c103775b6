//go:build linux

package disk_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"skerry.dev/skerry/internal/disk"
)

// TestScratchCRC: whatever changes the content changes the sum, and nothing else
// does.
func TestScratchCRC(t *testing.T) {
	const size = 3 << 20
	content := func(change func(f *os.File)) string {
		path := filepath.Join(t.TempDir(), "disk")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for at, b := range map[int64]byte{0: 'a', 1 << 20: 'b', size - 5000: 'c'} {
			if _, err := f.WriteAt(bytes.Repeat([]byte{b}, 4500), at); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		change(f)
		return path
	}
	write := func(at int64, b ...byte) func(*os.File) {
		return func(f *os.File) {
			if _, err := f.WriteAt(b, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	sum := func(path string) uint32 {
		t.Helper()
		crc, err := disk.ScratchCRC(path)
		if err != nil {
			t.Fatal(err)
		}
		return crc
	}
	original := content(func(*os.File) {})
	want := sum(original)
	for name, change := range map[string]func(*os.File){
		"a bit":          write(1<<20+7, 'b'^1),
		"the first byte": write(0, 'x'),
		"the last byte":  write(size-1, 'x'),
		"a hole":         write(2<<20, 'x'),
		"a lost block":   write(1<<20, make([]byte, 4096)...),
		"a second block": write(4<<10+100, 0),
		"a shifted block": func(f *os.File) {
			write(1<<20, make([]byte, 4500)...)(f)
			write(1<<20+8192, bytes.Repeat([]byte("b"), 4500)...)(f)
		},
	} {
		if got := sum(content(change)); got == want {
			t.Errorf("%s: the sum is the same", name)
		}
	}
	data, err := os.ReadFile(original)
	if err != nil {
		t.Fatal(err)
	}
	filled := filepath.Join(t.TempDir(), "filled")
	if err := os.WriteFile(filled, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := sum(filled); got != want {
		t.Errorf("without holes: %08x, want %08x", got, want)
	}
	grown := filepath.Join(t.TempDir(), "copy")
	if err := disk.CopyScratch(grown, original, 16); err != nil {
		t.Fatal(err)
	}
	if got := sum(grown); got != want {
		t.Errorf("copy: %08x, want %08x", got, want)
	}
	if _, err := disk.ScratchCRC(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("no file: %v", err)
	}
}

func BenchmarkScratchCRC(b *testing.B) {
	needMke2fs(b)
	dir := b.TempDir()
	path := filepath.Join(dir, "disk")
	if err := disk.NewScratch(dir).Create(b.Context(), path, disk.ScratchOptions{MiB: 10 << 10}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := disk.ScratchCRC(path); err != nil {
			b.Fatal(err)
		}
	}
}
