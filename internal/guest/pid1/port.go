package pid1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"skerry.dev/skerry/internal/guestapi"
)

// Port is the virtio-serial port to the host. It implements guestapi.Port.
type Port struct {
	f   *os.File // non-blocking, in the runtime's poller
	raw syscall.RawConn
	up  bool // the last read saw a host; used by one reader only
}

func (s *System) openPort(ctx context.Context) error {
	var device string
	err := waitFor(ctx, "port "+guestapi.PortName, func() (bool, error) {
		names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return false, err
		}
		for _, path := range names {
			// A port without a name yet has no content.
			name, err := os.ReadFile(path)
			if err == nil && strings.TrimSpace(string(name)) == guestapi.PortName {
				device = "/dev/" + filepath.Base(filepath.Dir(path))
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	s.port, err = openPort(device)
	return err
}

func openPort(path string) (*Port, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Port{f: f, raw: raw}, nil
}

// Read reads from the host. The kernel returns 0 bytes as long as no host is
// connected and wakes pollers when that changes.
func (p *Port) Read(b []byte) (int, error) {
	var n int
	var rerr error
	err := p.raw.Read(func(fd uintptr) bool {
		for {
			n, rerr = unix.Read(int(fd), b)
			if !errors.Is(rerr, unix.EINTR) {
				break
			}
		}
		switch {
		case errors.Is(rerr, unix.EAGAIN):
			return false
		case rerr == nil && n == 0:
			return p.up // gone: say so once; not there yet: wait
		}
		return true
	})
	switch {
	case err != nil:
		return 0, err
	case rerr != nil:
		return 0, fmt.Errorf("read port: %w", rerr)
	case n == 0:
		p.up = false
		return 0, io.EOF
	}
	p.up = true
	return n, nil
}

// Write writes to the host; it blocks while none is connected.
func (p *Port) Write(b []byte) (int, error) { return p.f.Write(b) }

// SetDeadline sets the deadline of reads and writes.
func (p *Port) SetDeadline(t time.Time) error { return p.f.SetDeadline(t) }

// SetReadDeadline sets the deadline of reads.
func (p *Port) SetReadDeadline(t time.Time) error { return p.f.SetReadDeadline(t) }

// SetWriteDeadline sets the deadline of writes.
func (p *Port) SetWriteDeadline(t time.Time) error { return p.f.SetWriteDeadline(t) }

// Close closes the port.
func (p *Port) Close() error { return p.f.Close() }
