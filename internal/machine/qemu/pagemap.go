package qemu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bits of an entry of /proc/PID/pagemap (the kernel's "Examining Process Page
// Tables").
const (
	pageIsFile    = 1 << 61 // or shared: of a private mapping, not written to
	pageIsSwapped = 1 << 62
	pageIsPresent = 1 << 63
)

// entries finds the pages that QEMU has copies of by reading an entry for each:
// some 50 ms for 32 GiB, however little of it is in use.
func (m *processMemory) entries(f func(from, to int64) error) error {
	buf := make([]byte, 64<<10)
	from, page := int64(-1), int64(0)
	for page < m.pages {
		n := min((m.pages-page)*8, int64(len(buf)))
		if _, err := m.pagemap.ReadAt(buf[:n], (int64(m.address)/pageBytes+page)*8); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the process has ended")
			}
			return fmt.Errorf("page map: %w", err)
		}
		for e := buf[:n]; len(e) > 0; e, page = e[8:], page+1 {
			v := binary.LittleEndian.Uint64(e)
			own := v&(pageIsPresent|pageIsSwapped) != 0 && v&pageIsFile == 0
			if own && from < 0 {
				from = page
			} else if !own && from >= 0 {
				if err := f(from, page); err != nil {
					return err
				}
				from = -1
			}
		}
	}
	if from >= 0 {
		return f(from, page)
	}
	return nil
}

// The same by ioctl PAGEMAP_SCAN (Linux 6.7, linux/fs.h), which skips what is
// not mapped.
const (
	pagemapScan = 0xc0606610

	scanFile    = 1 << 2
	scanPresent = 1 << 3
	scanSwapped = 1 << 4
)

type scanArgs struct {
	size, flags, start, end, walkEnd uint64
	vec                              uint64 // address of vecLen scanRegion
	vecLen, maxPages                 uint64
	inverted, all, any, returned     uint64 // categories
}

type scanRegion struct{ start, end, categories uint64 }

// scan is entries, faster. It is errors.ErrUnsupported on an older kernel, and
// then has not called f.
func (m *processMemory) scan(f func(from, to int64) error) error {
	regions := make([]scanRegion, 1024)
	var pin runtime.Pinner // the kernel writes to it by its address
	pin.Pin(&regions[0])
	defer pin.Unpin()
	begin := uint64(m.address)
	a := scanArgs{
		start: begin, end: begin + uint64(m.pages)*pageBytes,
		vec: uint64(uintptr(unsafe.Pointer(&regions[0]))), vecLen: uint64(len(regions)),
		inverted: scanFile, all: scanFile, any: scanPresent | scanSwapped, returned: scanFile,
	}
	a.size = uint64(unsafe.Sizeof(a))
	for a.start < a.end {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, m.pagemap.Fd(), pagemapScan, uintptr(unsafe.Pointer(&a)))
		switch errno {
		case 0:
		case unix.EINTR:
			continue
		case unix.ENOTTY, unix.EINVAL, unix.EPERM, unix.ENOSYS:
			return errors.ErrUnsupported
		default:
			return fmt.Errorf("page map: %w", errno)
		}
		for _, r := range regions[:n] {
			if err := f(int64(r.start-begin)/pageBytes, int64(r.end-begin)/pageBytes); err != nil {
				return err
			}
		}
		if int(n) < len(regions) {
			return nil
		}
		// Where the walk stopped is not always told right (a walk that fills
		// the kernel's own buffer of 512 regions and then gets to the end
		// reports the first stop), but never before the last region.
		a.start = max(a.walkEnd, regions[n-1].end)
	}
	return nil
}
