package usernet

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// fullListener returns the address of a listener that does not answer further
// SYNs, since its accept queue is full.
func fullListener(t testing.TB) netip.AddrPort {
	t.Helper()
	socket := func(flags int) int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	fd := socket(0)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := sa.(*unix.SockaddrInet4)
	for range 4 { // a backlog of 0 takes one connection
		if err := unix.Connect(socket(unix.SOCK_NONBLOCK), addr); err != nil && err != unix.EINPROGRESS {
			t.Fatal(err)
		}
	}
	return netip.AddrPortFrom(netip.AddrFrom4(addr.Addr), uint16(addr.Port))
}
