package qemu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestPagemap reads this process's own memory: both ways of finding its pages
// find those that were written to, and no others, of a private mapping of a
// file and of anonymous memory.
func TestPagemap(t *testing.T) {
	const pages = 4096
	f, err := newMemfd("m", pages*pageBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(pageOf('f'), 0); err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string]int{"private": unix.MAP_PRIVATE, "anonymous": unix.MAP_PRIVATE | unix.MAP_ANONYMOUS} {
		fd := int(f.Fd())
		if flags&unix.MAP_ANONYMOUS != 0 {
			fd = -1
		}
		b, err := unix.Mmap(fd, 0, pages*pageBytes, unix.PROT_READ|unix.PROT_WRITE, flags)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(b)
		if err := unix.Madvise(b, unix.MADV_NOHUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Fatal(err)
		}
		var want []int64
		for page := int64(3); page < pages; page += 2 { // more runs than one scan returns
			b[page*pageBytes] = 'w'
			want = append(want, page)
		}
		m, err := openMemory(os.Getpid(), uintptr(unsafe.Pointer(&b[0])), pages*pageBytes)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		for way, find := range map[string]func(func(from, to int64) error) error{"entries": m.entries, "scan": m.scan} {
			var got []int64
			err := find(func(from, to int64) error {
				for ; from < to; from++ {
					got = append(got, from)
				}
				return nil
			})
			if errors.Is(err, errors.ErrUnsupported) && way == "scan" {
				t.Log("this kernel has no PAGEMAP_SCAN")
				continue
			}
			// The scan of anonymous memory may find its zero page, read above.
			got = slices.DeleteFunc(got, func(page int64) bool { return page == 0 && name == "anonymous" })
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s, %s: got %d pages, %v; want %d", name, way, len(got), err, len(want))
			}
		}
		page := make([]byte, pageBytes)
		if err := m.read(page, 3); err != nil || page[0] != 'w' {
			t.Errorf("%s: read %q, %v", name, page[0], err)
		}
	}
}

// TestPagemapOfTheDead: a process that has ended is an error, not no pages.
func TestPagemapOfTheDead(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // "signal: killed"
	m := &processMemory{pid: cmd.Process.Pid, address: 1 << 30, pages: 1024, pagemap: f}
	none := func(from, to int64) error { return nil }
	for way, find := range map[string]func(func(from, to int64) error) error{"entries": m.entries, "scan": m.scan, "runs": m.runs} {
		if err := find(none); err == nil {
			t.Errorf("%s: got nil, want an error", way)
		}
	}
}
