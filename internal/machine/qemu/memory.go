package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
)

// processMemory is a part of QEMU's memory that is mapped from a file it does
// not share, or anonymous. It is read as a debugger would (process_vm_readv(2)),
// which this process may do as QEMU's parent with the same user, or as root.
type processMemory struct {
	pid     int
	address uintptr
	pages   int64
	pagemap *os.File
}

func openMemory(pid int, address uintptr, bytes int64) (*processMemory, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return nil, mayNotRead(err)
	}
	m := &processMemory{pid: pid, address: address, pages: bytes / pageBytes, pagemap: f}
	if err := m.read(make([]byte, pageBytes), 0); err != nil {
		f.Close()
		return nil, err
	}
	return m, nil
}

func (m *processMemory) Close() error { return m.pagemap.Close() }

// runs implements pageSource: the pages that QEMU has copies of.
func (m *processMemory) runs(f func(from, to int64) error) error {
	err := m.scan(f)
	if errors.Is(err, errors.ErrUnsupported) {
		return m.entries(f)
	}
	return err
}

// read implements pageSource.
func (m *processMemory) read(buf []byte, page int64) error {
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	n, err := unix.ProcessVMReadv(m.pid, local, []unix.RemoteIovec{{Base: m.address + uintptr(page*pageBytes), Len: len(buf)}}, 0)
	if err != nil {
		return mayNotRead(err)
	}
	if n != len(buf) {
		return fmt.Errorf("read memory: got %d of %d bytes", n, len(buf))
	}
	return nil
}

// mayNotRead explains a refusal.
func mayNotRead(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return skerry.Errorf(skerry.CodeUnsupported, "read memory of qemu: %w; needs CAP_SYS_PTRACE where QEMU has a user of its own, else kernel.yama.ptrace_scope below 2", err)
	}
	return fmt.Errorf("read memory of qemu: %w", err)
}

// fileMemory is memory in a file that QEMU shares, as a cold boot's.
type fileMemory struct {
	f     *os.File
	bytes int64
}

// runs implements pageSource: what is no hole.
func (m fileMemory) runs(f func(from, to int64) error) error {
	for at := int64(0); at < m.bytes; {
		start, end, err := nextData(m.f, at, m.bytes)
		if err != nil {
			return err
		}
		if start < end {
			if err := f(start/pageBytes, end/pageBytes); err != nil {
				return err
			}
		}
		at = end
	}
	return nil
}

// read implements pageSource.
func (m fileMemory) read(buf []byte, page int64) error {
	_, err := m.f.ReadAt(buf, page*pageBytes)
	return err
}

// hostAddressBits bound the addresses of a process.
const hostAddressBits = 48

// hostAddress is where a guest address lies in QEMU's memory. QEMU tells it to
// people only.
func (m *instance) hostAddress(ctx context.Context, guest uint64) (uintptr, error) {
	text, err := m.monitor.Human(ctx, fmt.Sprintf("gpa2hva %#x", guest))
	if err != nil {
		return 0, err
	}
	// Host virtual address for 0x100000000 (mem1) is 0x7f2e40000000
	_, digits, _ := strings.Cut(strings.TrimSpace(text), ") is 0x")
	address, err := strconv.ParseUint(digits, 16, hostAddressBits)
	if err != nil {
		return 0, fmt.Errorf("host address of guest address %#x: %q", guest, text)
	}
	return uintptr(address), nil
}
