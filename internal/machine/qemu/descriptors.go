package qemu

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// firstFD is the number of the first descriptor handed to QEMU, after stdin,
// stdout and stderr.
const firstFD = 3

// descriptors is what QEMU inherits, in order.
type descriptors struct {
	files []*os.File
	owned []*os.File // those of files that close closes
}

// lend adds a file that stays the caller's and returns its number in QEMU.
func (d *descriptors) lend(f *os.File) int {
	d.files = append(d.files, f)
	return firstFD + len(d.files) - 1
}

// give adds a file that close closes.
func (d *descriptors) give(f *os.File) int {
	d.owned = append(d.owned, f)
	return d.lend(f)
}

// close closes this process's copies.
func (d *descriptors) close() {
	for _, f := range d.owned {
		f.Close()
	}
	d.owned = nil
}

// filePair returns a connected pair of stream sockets as files.
func filePair(name string) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}

// socketpair returns a connected pair: our end, and QEMU's as a file.
func socketpair(name string) (net.Conn, *os.File, error) {
	ours, theirs, err := filePair(name)
	if err != nil {
		return nil, nil, err
	}
	conn, err := net.FileConn(ours) // works on a copy
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return conn, theirs, nil
}

// listen makes a listening socket at path that only this user may connect to.
func listen(path string) (*os.File, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false) // QEMU goes on to listen
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	return l.File()
}

// reopen opens the file behind f anew for reading, with an offset of its own.
func reopen(f *os.File) (*os.File, error) {
	return os.Open(selfFD(int(f.Fd())))
}

// newMemfd makes an anonymous file in memory (memfd_create(2)) of a size.
// Every user can open it through /proc/self/fd, so it needs no path.
func newMemfd(name string, size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := f.Truncate(size); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// memfdOf copies a file into a memfd.
func memfdOf(path string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	f, err := newMemfd(path, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.ReadFrom(src); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
