package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/procfork"
)

// CanFork reports whether machines of an accelerator can be forked. With KVM
// the virtual processors are the kernel's, which does not fork them; nor is
// anything translated that would be worth it.
func CanFork(accel string) bool { return accel == "tcg" && procfork.Supported }

// zygote is a machine that others are forked from: its QEMU, stopped for good.
// A fork of that process has all its memory, and so the translated code; what a
// machine needs for itself are the descriptors of the roles below.
type zygote struct {
	*instance
	ownUser bool                            // QEMU runs as a user of its own
	parent  atomic.Pointer[procfork.Parent] // set by Freeze
	roles   [roles][]int                    // the numbers under which QEMU has each
}

var _ machine.Zygote = (*zygote)(nil)

// The descriptors that each machine has for itself, in the order in which a
// fork is asked for with them.
const (
	roleStderr = iota
	roleMonitor
	roleConsole
	roleControl
	roleNet
	roleScratch
	roles
)

// openDoor gives a zygote the socket through which forks get their descriptors.
func (m *instance) openDoor(l *layout, fds *descriptors, cfg machine.Config) error {
	if !cfg.Zygote {
		return nil
	}
	ours, theirs, err := filePair("door")
	if err != nil {
		return err
	}
	m.door = ours
	l.zygote, l.doorFD = true, fds.give(theirs)
	return nil
}

// takeDoor returns the socket, which is then the caller's, or nil.
func (m *instance) takeDoor() *os.File {
	m.mu.Lock()
	defer m.mu.Unlock()
	door := m.door
	m.door = nil
	return door
}

// Freeze implements machine.Zygote.
func (z *zygote) Freeze(ctx context.Context) error {
	// QEMU has closed its end of the port with the host's. A fork needs one in
	// its place, which can only be given to a machine that runs.
	ours, theirs, err := filePair("control")
	if err != nil {
		return err
	}
	defer ours.Close()
	defer theirs.Close()
	if err := z.Reconnect(ctx, theirs); err != nil {
		return err
	}
	if err := z.Pause(ctx); err != nil {
		return err
	}
	for role, fd := range [roles]string{
		roleStderr:  procFD(z.PID(), 2),
		roleMonitor: procFD(z.PID(), z.layout.monitorFD),
		roleConsole: procFD(z.PID(), z.layout.consoleFD),
		roleControl: selfFD(int(theirs.Fd())),
		roleNet:     procFD(z.PID(), z.layout.netFD),
		// QEMU has moved the descriptors of its descriptor sets.
		roleScratch: selfFD(int(z.disk().file.Fd())),
	} {
		if z.roles[role], err = sameFiles(z.PID(), fd); err != nil {
			return err
		}
	}
	parent, err := procfork.Freeze(ctx, z.PID(), z.takeDoor(), z.layout.doorFD)
	if err != nil {
		return err
	}
	z.parent.Store(parent)
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.killed { // by a Kill that may not have seen it
		return errors.Join(machine.ErrKilled, parent.Close())
	}
	return nil
}

func procFD(pid, fd int) string { return fmt.Sprintf("/proc/%d/fd/%d", pid, fd) }

// sameFiles returns the numbers of all descriptors of a process that are of the
// file a link of /proc names: QEMU has copies of some.
func sameFiles(pid int, link string) ([]int, error) {
	want, err := os.Readlink(link)
	if err != nil {
		return nil, err
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var same []int
	for _, e := range entries {
		if got, err := os.Readlink(dir + "/" + e.Name()); err != nil || got != want {
			continue
		}
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, err
		}
		same = append(same, n)
	}
	if len(same) == 0 {
		return nil, fmt.Errorf("process %d does not have %s open", pid, want)
	}
	return same, nil
}

// The messages of a fork: one request with the descriptors of the roles, then
// one reply with a pidfd, and when the process has ended its status.
type (
	forkRequest struct {
		PID int `json:"pid"` // of who asks
	}
	forkReply struct {
		PID   int    `json:"pid"`
		Error string `json:"error,omitempty"`
	}
	forkEnd struct {
		Status uint32 `json:"status"` // wait(2)
	}
)

// maxForkMessage bounds a message in bytes.
const maxForkMessage = 1024

// Fork implements machine.Zygote.
func (z *zygote) Fork(ctx context.Context, origin *net.UnixConn) error {
	var req forkRequest
	files, err := receive(origin, &req)
	defer closeAll(files)
	if errors.Is(err, io.EOF) {
		return nil // whoever was about to ask has ended, or thought better of it
	}
	if err == nil && len(files) != roles {
		err = fmt.Errorf("%d descriptors, want %d", len(files), roles)
	}
	if err != nil {
		return fmt.Errorf("request for a fork: %w", err)
	}
	child, err := z.fork(req, files)
	closeAll(files)
	if err != nil {
		return errors.Join(err, send(origin, forkReply{Error: err.Error()}))
	}
	return z.attend(ctx, origin, child)
}

func (z *zygote) fork(req forkRequest, files []*os.File) (*os.Process, error) {
	parent := z.parent.Load()
	if parent == nil {
		return nil, skerry.Errorf(skerry.CodeConflict, "the machine is not frozen")
	}
	replaced := map[int]*os.File{}
	for role, numbers := range z.roles {
		for _, n := range numbers {
			replaced[n] = files[role]
		}
	}
	// All forks of a zygote run as one user; where that is not this process's,
	// nobody of them needs to look at another.
	child, err := parent.Fork(procfork.Request{Files: replaced, Tracer: req.PID, Confine: true, Hide: z.ownUser})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", machine.ErrNoFork, err)
	}
	return child, nil
}

// Learn implements machine.Zygote.
func (z *zygote) Learn(fork machine.Machine) error {
	pages, err := procfork.Written(fork.PID())
	if err != nil {
		return fmt.Errorf("memory that a fork writes to: %w", err)
	}
	z.parent.Load().Own(pages)
	return nil
}

// attend tells the other end of a fork's process, and of its end.
func (z *zygote) attend(ctx context.Context, origin *net.UnixConn, child *os.Process) error {
	ended := make(chan struct{})
	defer close(ended)
	kill := func() { _ = child.Kill() } // an error means that it has ended
	stop := context.AfterFunc(ctx, kill)
	defer stop()
	fd, err := unix.PidfdOpen(child.Pid, 0)
	if err == nil {
		handle := os.NewFile(uintptr(fd), "pidfd")
		err = send(origin, forkReply{PID: child.Pid}, handle)
		handle.Close()
	}
	if err != nil {
		kill()
	} else {
		go func() {
			// Nothing more is said; this ends with the other side, or ours.
			_, _ = io.Copy(io.Discard, origin)
			select {
			case <-ended:
			default:
				kill()
			}
		}()
	}
	state, werr := child.Wait()
	if errors.Is(err, unix.EPIPE) {
		err = nil // whoever asked has ended
	}
	if err := errors.Join(err, werr); err != nil {
		return err
	}
	// The other end may be gone already.
	_ = send(origin, forkEnd{Status: uint32(state.Sys().(syscall.WaitStatus))})
	return nil
}

// Kill ends a frozen machine too. Its forks live on.
func (z *zygote) Kill() error {
	z.noteKill()
	if parent := z.parent.Load(); parent != nil {
		_ = parent.Close()
	}
	return z.instance.Kill()
}

// send writes a message with descriptors, which stay the caller's.
func send(conn *net.UnixConn, message any, files ...*os.File) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		rights = unix.UnixRights(fds...)
	}
	_, _, err = conn.WriteMsgUnix(append(b, '\n'), rights, nil)
	return err
}

// receive reads a message and its descriptors, which are the caller's, also
// after an error.
func receive(conn *net.UnixConn, message any) ([]*os.File, error) {
	b, rights := make([]byte, maxForkMessage), make([]byte, unix.CmsgSpace(4*roles))
	n, m, flags, _, err := conn.ReadMsgUnix(b, rights)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	files, err := parseRights(rights[:m])
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = errors.New("more descriptors than there can be")
	}
	if err != nil {
		return files, err
	}
	return files, json.Unmarshal(b[:n], message)
}

func parseRights(b []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(b)
	for i := range messages {
		fds, perr := unix.ParseUnixRights(&messages[i])
		if perr != nil {
			return files, perr
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
