package qmp

import (
	"errors"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// send writes line to conn, with files as SCM_RIGHTS beside its first byte.
func send(conn net.Conn, line []byte, files []*os.File) error {
	if len(files) == 0 {
		_, err := conn.Write(line)
		return err
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("descriptors need a unix socket")
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	n, _, err := u.WriteMsgUnix(line, unix.UnixRights(fds...), nil)
	if err == nil && n < len(line) { // the rest carries no descriptors
		_, err = u.Write(line[n:])
	}
	runtime.KeepAlive(files) // a finalized one's number could name another file
	return err
}
