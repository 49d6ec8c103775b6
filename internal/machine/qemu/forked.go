package qemu

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/machine"
)

// fork has a zygote's holder fork a process for this machine. As launch, it
// returns the monitor's connection, which is not spoken to yet.
func (d *Driver) fork(cfg machine.Config) (_ *instance, _ net.Conn, err error) {
	m := newInstance(cfg)
	var opened []interface{ Close() error }
	var lent descriptors
	defer lent.close()
	defer func() {
		if err != nil {
			m.release()
			for _, c := range opened {
				c.Close()
			}
			err = asError("fork machine", err)
		}
	}()
	origin, err := unixConn(cfg.Origin)
	if err != nil {
		return nil, nil, err
	}
	opened = append(opened, origin)
	ours := [2]net.Conn{}
	for i, name := range []string{"monitor", "console"} {
		conn, theirs, err := socketpair(name)
		if err != nil {
			return nil, nil, err
		}
		ours[i], opened = conn, append(opened, conn)
		lent.give(theirs)
	}
	words, theirs, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	opened = append(opened, words)
	lent.give(theirs)
	if err := m.keepScratch(cfg.Scratch, scratchNode); err != nil {
		return nil, nil, err
	}
	if err := m.keepTemplate(cfg.Template); err != nil {
		return nil, nil, err
	}
	files := [roles]*os.File{roleMonitor: lent.files[0], roleConsole: lent.files[1], roleStderr: lent.files[2],
		roleControl: cfg.Control, roleNet: cfg.Net, roleScratch: cfg.Scratch}
	pid, handle, err := requestFork(origin, files)
	if err != nil {
		return nil, nil, err
	}
	lent.close() // so that the outputs end with the process
	console := &outputPump{from: ours[1], to: newBoundedLog(filepath.Join(cfg.Dir, consoleLog))}
	stderr := newBoundedLog(filepath.Join(cfg.Dir, qemuLog))
	m.process = attach(pid, handle, origin, console, &outputPump{from: words, to: stderr})
	go m.reap()
	return m, ours[0], nil
}

func unixConn(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("origin is not a Unix socket")
	}
	return conn, nil
}

// requestFork returns the process id of the fork and a pidfd of it.
func requestFork(origin *net.UnixConn, files [roles]*os.File) (int, *os.File, error) {
	if err := send(origin, forkRequest{PID: os.Getpid()}, files[:]...); err != nil {
		return 0, nil, err
	}
	var reply forkReply
	got, err := receive(origin, &reply)
	if err == nil && reply.Error != "" {
		err = errors.New(reply.Error)
	}
	if err == nil && len(got) != 1 {
		err = fmt.Errorf("%d descriptors, want 1", len(got))
	}
	if err != nil {
		closeAll(got)
		return 0, nil, err
	}
	return reply.PID, got[0], nil
}

// attach is spawn for a process that was forked. It is a child of the zygote's
// holder, which kills it when this process ends and tells how it has ended.
func attach(pid int, handle *os.File, origin *net.UnixConn, console, words *outputPump) *process {
	p := &process{pid: pid, stderr: words.to, done: make(chan struct{})}
	p.signal = func() error { return unix.PidfdSendSignal(int(handle.Fd()), unix.SIGKILL, nil, 0) }
	console.start()
	words.start()
	go func() {
		defer close(p.done)
		p.exit = awaitEnd(handle, origin)
		origin.Close()
		console.wait()
		words.wait()
		// After an end nobody signals any more: kill waits for done, and the
		// descriptor stays open for as long as it may be in use.
		p.killOnce.Do(func() {})
		handle.Close()
	}()
	return p
}

// awaitEnd waits for the end of a process and returns how it ended: as told, or
// unknown if nobody is there to tell.
func awaitEnd(handle *os.File, origin *net.UnixConn) error {
	var end forkEnd
	if _, err := receive(origin, &end); err == nil {
		return exitError(syscall.WaitStatus(end.Status))
	}
	if err := awaitPidfd(int(handle.Fd())); err != nil {
		return err
	}
	return errors.New("exit status unknown")
}

// exitError says of a status what exec.ExitError does.
func exitError(s syscall.WaitStatus) error {
	switch {
	case s.Signaled():
		return fmt.Errorf("signal: %v", s.Signal())
	case s.ExitStatus() != 0:
		return fmt.Errorf("exit status %d", s.ExitStatus())
	}
	return nil
}
