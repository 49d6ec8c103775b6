package procfork

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// span is a range of addresses.
type span struct{ start, end uint64 }

// mappings calls visit with the address range of each mapping of a process and
// the name of it, if it has one; and, of smaps, with each of its properties
// ("Rss:") and the words of that (proc_pid_smaps(5)).
func mappings(pid int, file string, visit func(s span, name string, value []string)) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return err
	}
	defer f.Close()
	var current span
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			continue
		}
		from, to, ok := strings.Cut(fields[0], "-")
		if !ok {
			visit(current, fields[0], fields[1:])
			continue
		}
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err1 != nil || err2 != nil {
			continue
		}
		current = span{start, end}
		if len(fields) > 5 {
			visit(current, fields[5], nil)
		}
	}
	return lines.Err()
}

// notForked returns the mappings that a fork does not copy.
func notForked(pid int) (ranges []span, err error) {
	err = mappings(pid, "smaps", func(s span, name string, flags []string) {
		if name == "VmFlags:" && slices.Contains(flags, "dc") {
			ranges = append(ranges, s)
		}
	})
	return ranges, err
}

// findSyscall returns the address of a syscall instruction in the code that the
// kernel maps into every process (vdso(7)).
func findSyscall(pid int) (uint64, error) {
	var vdso span
	if err := mappings(pid, "maps", func(s span, name string, _ []string) {
		if name == "[vdso]" {
			vdso = s
		}
	}); err != nil {
		return 0, err
	}
	if vdso.end == vdso.start { // one that is about to end has no mappings any more
		return 0, fmt.Errorf("process %d has no vdso: %w", pid, unix.ESRCH)
	}
	code := make([]byte, vdso.end-vdso.start)
	if err := readMemory(pid, vdso.start, code); err != nil {
		return 0, err
	}
	at := bytes.Index(code, []byte{0x0f, 0x05})
	if at < 0 {
		return 0, fmt.Errorf("the vdso of process %d has no system call", pid)
	}
	return vdso.start + uint64(at), nil
}

// openFile is what a process has open under a number.
type openFile struct {
	flags uint64 // open(2): access mode and status
	event *event // of an eventfd(2), else nil
}

// event is the state of an eventfd.
type event struct {
	count     uint64
	semaphore bool
}

// openFiles returns what a process has open, by number.
func openFiles(pid int) (map[int]openFile, error) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	entries, err := os.ReadDir(dir + "fdinfo")
	if err != nil {
		return nil, err
	}
	all := map[int]openFile{}
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, err
		}
		info, err := os.ReadFile(dir + "fdinfo/" + e.Name())
		if err != nil {
			return nil, err
		}
		if all[number], err = parseFDInfo(string(info)); err != nil {
			return nil, fmt.Errorf("descriptor %d: %w", number, err)
		}
	}
	return all, nil
}

// parseFDInfo parses a file of /proc/pid/fdinfo (proc_pid_fdinfo(5)).
func parseFDInfo(info string) (f openFile, err error) {
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch name {
		case "flags":
			f.flags, err = strconv.ParseUint(value, 8, 64)
		case "eventfd-count":
			f.event = &event{}
			f.event.count, err = strconv.ParseUint(value, 16, 64)
		case "eventfd-semaphore":
			if f.event == nil {
				return f, errors.New("an eventfd without a count")
			}
			f.event.semaphore = value == "1"
		}
		if err != nil {
			return f, err
		}
	}
	return f, nil
}

// Written returns the addresses of the pages of a process that no other has:
// of a child those that it has written to.
func Written(pid int) ([]uint64, error) {
	var dirty []span
	if err := mappings(pid, "smaps", func(s span, name string, fields []string) {
		if name == "Private_Dirty:" && fields[0] != "0" {
			dirty = append(dirty, s)
		}
	}); err != nil {
		return nil, err
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var pages []uint64
	for _, s := range dirty {
		entries := make([]byte, (s.end-s.start)/pageBytes*entryBytes)
		if _, err := f.ReadAt(entries, int64(s.start/pageBytes*entryBytes)); err != nil {
			return nil, fmt.Errorf("read pagemap: %w", err)
		}
		for i := range len(entries) / entryBytes {
			if e := binary.LittleEndian.Uint64(entries[i*entryBytes:]); e&(present|exclusive|ofFile) == present|exclusive {
				pages = append(pages, s.start+uint64(i)*pageBytes)
			}
		}
	}
	return pages, nil
}

// An entry of pagemap (Documentation/admin-guide/mm/pagemap.rst of the kernel).
const (
	entryBytes = 8
	present    = 1 << 63
	ofFile     = 1 << 61 // or shared
	exclusive  = 1 << 56
)

// makeOwn gives a stopped process copies of its own of pages that it shares
// with others: each is written to with what is in it. What cannot be written
// is left as it is.
func makeOwn(pid int, pages []uint64) {
	const atOnce = 1024 // IOV_MAX
	for len(pages) > 0 {
		n := min(len(pages), atOnce)
		bytes := make([]byte, n)
		remote := make([]unix.RemoteIovec, n)
		for i, p := range pages[:n] {
			remote[i] = unix.RemoteIovec{Base: uintptr(p), Len: 1}
		}
		local := []unix.Iovec{{Base: &bytes[0], Len: uint64(n)}}
		// Both stop at what is not there.
		n, err := unix.ProcessVMReadv(pid, local, remote, 0)
		if err == nil {
			local[0].Len = uint64(n)
			n, err = unix.ProcessVMWritev(pid, local, remote[:n], 0)
		}
		if err != nil || n == 0 {
			n = 1 // skip it
		}
		pages = pages[n:]
	}
}

func readMemory(pid int, address uint64, b []byte) error {
	return transfer("process_vm_readv", unix.ProcessVMReadv, pid, address, b)
}

func writeMemory(pid int, address uint64, b []byte) error {
	return transfer("process_vm_writev", unix.ProcessVMWritev, pid, address, b)
}

func transfer(name string, call func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error), pid int, address uint64, b []byte) error {
	local := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	n, err := call(pid, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(address), Len: len(b)}}, 0)
	if err != nil {
		return os.NewSyscallError(name, err)
	}
	if n != len(b) {
		return fmt.Errorf("%s: %d bytes of %d", name, n, len(b))
	}
	return nil
}
