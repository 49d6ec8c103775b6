//go:build linux

package disk_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/disk"
)

func needMke2fs(t testing.TB) {
	t.Helper()
	for _, path := range []string{"mke2fs", "/usr/sbin/mke2fs", "/sbin/mke2fs"} {
		if _, err := exec.LookPath(path); err == nil {
			return
		}
	}
	t.Skip("e2fsprogs is not installed")
}

func TestScratch(t *testing.T) {
	needMke2fs(t)
	s := disk.NewScratch(filepath.Join(t.TempDir(), "templates"))
	for _, c := range []struct {
		name string
		opts disk.ScratchOptions
	}{
		{"16 MiB", disk.ScratchOptions{MiB: 16}},
		{"512 MiB", disk.ScratchOptions{MiB: 512}},
		{"512 MiB with journal", disk.ScratchOptions{MiB: 512, Journal: true}},
		{"10 GiB", disk.ScratchOptions{MiB: 10 << 10}},
		{"1000 GiB with journal", disk.ScratchOptions{MiB: 1000 << 10, Journal: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
			for _, path := range []string{a, b} {
				if err := s.Create(t.Context(), path, c.opts); err != nil {
					t.Fatal(err)
				}
			}
			info, err := os.Stat(b)
			if err != nil || info.Size() != c.opts.MiB<<20 {
				t.Errorf("length is %d, %v; want %d MiB", info.Size(), err, c.opts.MiB)
			}
			used, err := disk.Usage(b)
			if err != nil || used == 0 || used > 1<<20+info.Size()/10000 {
				t.Errorf("a new disk takes %d bytes, %v", used, err)
			}
			checkExt4(t, b, c.opts.Journal)
			if err := s.Create(t.Context(), a, c.opts); !errors.Is(err, os.ErrExist) {
				t.Errorf("a disk that is there was not kept: %v", err)
			}
		})
	}
}

// checkExt4 lets e2fsck and, for root, the kernel look at a file system.
func checkExt4(t *testing.T, path string, journal bool) {
	t.Helper()
	if out, err := exec.Command("/sbin/e2fsck", "-fn", path).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v: %s", err, out)
	}
	out, err := exec.Command("/sbin/dumpe2fs", "-h", path).Output()
	if err != nil || strings.Contains(string(out), "has_journal") != journal {
		t.Errorf("journal: want %v: %v", journal, err)
	}
	if os.Geteuid() != 0 {
		return
	}
	dir := t.TempDir()
	run(t, "mount", "-o", "loop", path, dir)
	defer run(t, "umount", dir)
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("root: %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "x"), []byte("y"), 0o600); err != nil {
		t.Error(err)
	}
}

// TestScratchIsOneDisk fills a disk: what is written stays in the file's length.
func TestScratchIsOneDisk(t *testing.T) {
	needMke2fs(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "disk")
	if err := disk.NewScratch(dir).Create(t.Context(), path, disk.ScratchOptions{MiB: 16}); err != nil {
		t.Fatal(err)
	}
	mnt := t.TempDir()
	run(t, "mount", "-o", "loop", path, mnt)
	f, err := os.Create(filepath.Join(mnt, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, io.LimitReader(ones{}, 32<<20)); err == nil {
		t.Error("32 MiB fit on a disk of 16")
	}
	f.Close()
	run(t, "umount", mnt)
	if used, err := disk.Usage(path); err != nil || used < 10<<20 || used > 17<<20 {
		t.Errorf("a full disk of 16 MiB takes %d bytes, %v", used, err)
	}
}

type ones struct{}

func (ones) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 1
	}
	return len(p), nil
}

func TestScratchConcurrentAndReproducible(t *testing.T) {
	needMke2fs(t)
	dir := t.TempDir()
	s := disk.NewScratch(filepath.Join(dir, "templates"))
	var group sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		group.Go(func() {
			if err := s.Create(t.Context(), filepath.Join(dir, name), disk.ScratchOptions{MiB: 64}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	other := disk.NewScratch(filepath.Join(dir, "other"))
	if err := other.Create(t.Context(), filepath.Join(dir, "e"), disk.ScratchOptions{MiB: 64}); err != nil {
		t.Fatal(err)
	}
	a, err := os.ReadFile(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b", "c", "d", "e"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(a, b) {
			t.Errorf("disk %s differs: %v", name, err)
		}
	}
	left, err := os.ReadDir(filepath.Join(dir, "templates"))
	if err != nil || len(left) != 1 {
		t.Errorf("templates: %v, %v", left, err)
	}
}

func TestScratchRefusals(t *testing.T) {
	needMke2fs(t)
	dir := t.TempDir()
	s := disk.NewScratch(dir)
	for _, mib := range []int64{-1, 0, 15, 16<<20 + 1} {
		if err := s.Create(t.Context(), filepath.Join(dir, "x"), disk.ScratchOptions{MiB: mib}); skerry.CodeOf(err) != skerry.CodeInvalid {
			t.Errorf("%d MiB: %v", mib, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Create(ctx, filepath.Join(dir, "x"), disk.ScratchOptions{MiB: 99}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// smallDisk mounts a file system with little room.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small disk")
	}
	dir := t.TempDir()
	run(t, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", dir)
	t.Cleanup(func() { run(t, "umount", dir) })
	return dir
}

func TestScratchDiskFull(t *testing.T) {
	needMke2fs(t)
	full := smallDisk(t)
	err := disk.NewScratch(filepath.Join(full, "t")).Create(t.Context(), filepath.Join(full, "x"), disk.ScratchOptions{MiB: 512})
	if skerry.CodeOf(err) != skerry.CodeExhausted {
		t.Errorf("making the template: got %v, want code exhausted", err)
	}
	err = disk.NewScratch(t.TempDir()).Create(t.Context(), filepath.Join(full, "x"), disk.ScratchOptions{MiB: 512})
	if skerry.CodeOf(err) != skerry.CodeExhausted {
		t.Errorf("copying: got %v, want code exhausted", err)
	}
	if _, err := os.Stat(filepath.Join(full, "x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a half disk is left: %v", err)
	}
}

func BenchmarkScratch(b *testing.B) {
	needMke2fs(b)
	for _, c := range []struct {
		name string
		mib  int64
	}{{"512MiB", 512}, {"10GiB", 10 << 10}} {
		b.Run(c.name, func(b *testing.B) {
			dir := b.TempDir()
			s := disk.NewScratch(dir)
			for b.Loop() {
				path := filepath.Join(dir, "x")
				if err := s.Create(b.Context(), path, disk.ScratchOptions{MiB: c.mib}); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				os.Remove(path)
				b.StartTimer()
			}
		})
	}
}
