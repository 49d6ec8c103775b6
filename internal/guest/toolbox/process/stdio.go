package process

import (
	"fmt"
	"os"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
)

// stdio are both sides of a process's standard streams.
type stdio struct {
	child   [3]*os.File
	input   *os.File   // writing end of standard input, or nil
	outputs []*os.File // reading ends
	channel []byte     // of each output
	tty     *os.File   // the terminal's master, or nil
}

// openStdio opens the streams of a process; combined gives stdout and stderr one
// pipe, which alone keeps their order.
func openStdio(p *plan, combined bool) (*stdio, error) {
	s := &stdio{}
	err := s.open(p, combined)
	if err != nil {
		s.closeChild()
		s.closeParent()
		return nil, fmt.Errorf("open standard streams: %w", err)
	}
	return s, nil
}

func (s *stdio) open(p *plan, combined bool) (err error) {
	if p.spec.Terminal {
		return s.openTerminal(p)
	}
	if p.info.Stdin == StdinPipe {
		s.child[0], s.input, err = newPipe(p, true)
	} else {
		s.child[0], err = os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	}
	if err != nil {
		return err
	}
	if s.child[1], err = s.addOutput(p, skerry.RunStdout); err != nil {
		return err
	}
	if combined {
		s.child[2] = s.child[1]
		return nil
	}
	s.child[2], err = s.addOutput(p, skerry.RunStderr)
	return err
}

func (s *stdio) addOutput(p *plan, channel byte) (*os.File, error) {
	child, parent, err := newPipe(p, false)
	if err != nil {
		return nil, err
	}
	s.outputs = append(s.outputs, parent)
	s.channel = append(s.channel, channel)
	return child, nil
}

func (s *stdio) openTerminal(p *plan) error {
	master, slave, err := pty.Open()
	if err != nil {
		return err
	}
	slave.Fd() // programs expect a terminal in blocking mode
	s.child = [3]*os.File{slave, slave, slave}
	s.tty, s.input = master, master
	s.outputs, s.channel = []*os.File{master}, []byte{skerry.RunPTY}
	if err := setSize(master, p.info.Terminal); err != nil {
		return err
	}
	return own(slave, p)
}

func setSize(tty *os.File, t *skerry.Terminal) error {
	return pty.Setsize(tty, &pty.Winsize{Cols: uint16(t.Cols), Rows: uint16(t.Rows)})
}

// newPipe returns the child's end, which blocks, and ours, which the runtime
// polls.
func newPipe(p *plan, childReads bool) (child, parent *os.File, err error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	ours, theirs := fd[0], fd[1]
	if childReads {
		ours, theirs = fd[1], fd[0]
	}
	if _, err := unix.FcntlInt(uintptr(ours), unix.F_SETFL, unix.O_NONBLOCK); err != nil { // a new pipe has no other flags
		unix.Close(ours)
		unix.Close(theirs)
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	parent = os.NewFile(uintptr(ours), "pipe")
	child = os.NewFile(uintptr(theirs), "pipe")
	if err := own(child, p); err != nil {
		child.Close()
		parent.Close()
		return nil, nil, err
	}
	return child, parent, nil
}

// own gives a stream to the process's user, who may want to open it again, as
// /dev/stderr or /dev/tty.
func own(f *os.File, p *plan) error {
	if p.spec.UID == uint32(os.Geteuid()) {
		return nil
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var chown error
	if err := raw.Control(func(fd uintptr) {
		chown = syscall.Fchown(int(fd), int(p.spec.UID), int(p.spec.GID))
	}); err != nil {
		return err
	}
	return os.NewSyscallError("fchown", chown)
}

func (s *stdio) closeChild() { closeAll(s.child[:]...) }

func (s *stdio) closeParent() {
	closeAll(s.input)
	closeAll(s.outputs...)
}

// closeAll closes files, of which some may be nil or closed.
func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
