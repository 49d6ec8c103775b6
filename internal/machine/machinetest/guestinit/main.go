// Command guestinit is PID 1 of the guest of the conformance suite. It loads
// the modules it finds in /modules, in order of name, opens the first
// virtio-serial port and answers one line with one line, as commands.go lists.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	fmt.Println("guestinit:", run())
	// The end of PID 1 is a kernel panic, which ends the machine.
}

// run serves the test until something fails.
func run() error {
	for dir, kind := range map[string]string{"/proc": "proc", "/sys": "sysfs", "/dev": "devtmpfs"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(kind, dir, kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	modules, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, path := range modules {
		if err := load(path); err != nil {
			return fmt.Errorf("load %s: %w", path, err)
		}
	}
	fd, err := openPort()
	if err != nil {
		return err
	}
	fmt.Println("guestinit: ready")
	return serve(fd)
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

func openPort() (int, error) {
	ports, err := filepath.Glob("/dev/vport*")
	if err != nil || len(ports) == 0 {
		return 0, fmt.Errorf("no virtio-serial port: %v", err)
	}
	return unix.Open(ports[0], unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

// serve answers lines for ever. While the host is not connected a read says
// EOF; the edge-triggered wait returns when that changes.
func serve(fd int) error {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET, Fd: int32(fd)}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return err
	}
	wait := func() error {
		_, err := unix.EpollWait(ep, make([]unix.EpollEvent, 1), -1)
		if errors.Is(err, unix.EINTR) {
			return nil
		}
		return err
	}
	var g guest
	var pending []byte
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(fd, buf)
		if n <= 0 {
			if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
				return err
			}
			if n == 0 {
				pending = nil // half a line of a host that went away
			}
			if err := wait(); err != nil {
				return err
			}
			continue
		}
		pending = append(pending, buf[:n]...)
		for {
			line, rest, ok := strings.Cut(string(pending), "\n")
			if !ok {
				break
			}
			pending = []byte(rest)
			answer := []byte(g.answer(line) + "\n")
			for len(answer) > 0 {
				n, err := unix.Write(fd, answer)
				if err != nil && !errors.Is(err, unix.EAGAIN) {
					return err
				}
				answer = answer[max(n, 0):]
				if n < 0 {
					if err := wait(); err != nil {
						return err
					}
				}
			}
		}
	}
}
