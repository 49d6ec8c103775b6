package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
)

// sockPath names a socket through an open directory, because the path of a
// Unix socket has room for only 107 bytes (unix(7)) and data directories can
// be deeper than that. The directory must stay open while the path is used.
func sockPath(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// listen makes the socket name in dir, in place of a stale one.
func listen(dir, name string) (net.Listener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	path := sockPath(d, name)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// The path is only good while d is open; whoever removes the directory
	// removes the socket.
	l.SetUnlinkOnClose(false)
	return l, nil
}

// dial connects to the socket name in dir.
func dial(ctx context.Context, dir, name string) (net.Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var nd net.Dialer
	return nd.DialContext(ctx, "unix", sockPath(d, name))
}
