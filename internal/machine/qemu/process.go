package qemu

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
)

// process is one QEMU process, a child that dies with this process, or one that
// was forked elsewhere.
type process struct {
	pid    int
	stderr *boundedLog
	done   chan struct{} // closed when it is reaped and its output is drained
	exit   error         // valid after done: nil or *exec.ExitError and the like

	killOnce sync.Once
	signal   func() error // kills it
}

// dropsPrivileges reports whether QEMU runs as another user than this process.
func (o *Options) dropsPrivileges() bool { return o.UID != 0 && os.Geteuid() == 0 }

// spawn starts QEMU with files as descriptors 3 and up. What it writes to its
// stderr and its console is complete in the logs before done closes.
func spawn(o Options, args []string, files []*os.File, stderr *boundedLog, console *outputPump) (*process, error) {
	// Go opens everything close-on-exec, but whoever started this process may
	// have left it descriptors that are not. close_range(2), Linux 5.11.
	if err := unix.CloseRange(firstFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, skerry.Errorf(skerry.CodeUnsupported, "close_range: %w", err)
	}
	cmd := exec.Command(o.Binary, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"LC_ALL=C"}
	cmd.Stderr = stderr
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:    true, // the terminal's Ctrl-C is not for QEMU
		Pdeathsig: syscall.SIGKILL,
	}
	if o.dropsPrivileges() {
		// An empty group list drops all supplementary groups; the change
		// of user drops all capabilities (capabilities(7)).
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: o.UID, Gid: o.GID, Groups: []uint32{}}
	}
	p := &process{stderr: stderr, done: make(chan struct{}), signal: func() error { return cmd.Process.Kill() }}
	started := make(chan error)
	go p.supervise(cmd, console, started)
	if err := <-started; err != nil {
		return nil, skerry.Errorf(skerry.CodeUnavailable, "run %s (package qemu-system-x86): %w", o.Binary, err)
	}
	return p, nil
}

// supervise starts the process and waits for it on one OS thread. PDEATHSIG
// is sent when the thread that forked ends, not the process (prctl(2)), so
// that thread must outlive QEMU: it is locked to this goroutine.
func (p *process) supervise(cmd *exec.Cmd, console *outputPump, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	if err != nil {
		started <- err
		return
	}
	p.pid = cmd.Process.Pid
	console.start()
	started <- nil
	// Wait takes the stops of a process that is traced for its end.
	if err := awaitProcess(p.pid); err != nil {
		p.exit = errors.Join(err, cmd.Process.Kill())
	}
	p.exit = errors.Join(p.exit, cmd.Wait())
	console.wait()
	close(p.done)
}

// awaitProcess waits until a process has ended, but does not reap it.
func awaitProcess(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	return awaitPidfd(fd)
}

func awaitPidfd(fd int) error {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll", err)
		}
	}
}

// kill ends the process and waits until it is gone.
func (p *process) kill() {
	// An error means that it is gone already.
	p.killOnce.Do(func() { _ = p.signal() })
	<-p.done
}

// failure describes an end that nobody asked for.
func (p *process) failure() error {
	how := "exit status 0"
	if p.exit != nil {
		how = p.exit.Error()
	}
	msg := fmt.Sprintf("qemu ended: %s", how)
	if tail := p.stderr.tail(); tail != "" {
		msg += ": " + tail
	}
	return &skerry.Error{Code: skerry.CodeUnavailable, Message: msg, Err: p.exit}
}
