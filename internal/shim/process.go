package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/machine"
)

// The descriptors a shim inherits, after the standard three.
const (
	FDListening = 3 // gets one byte when the shim's sockets accept
	FDRAM       = 4 // of the template, if any
	FDState     = 5
	FDOrigin    = 6 // of Spec.Forked: connected to a zygote
)

// ProgramName is what a shim's process is called in lists of processes.
const ProgramName = "skerry-shim"

// stopTimeout is how long a shim may take to end after it was told to.
const stopTimeout = 10 * time.Second

// Process is a shim process, started here or found again.
type Process struct {
	Dir    string
	Client *Client
	pid    int
	ticks  uint64
	exited chan struct{} // closed when our child was reaped; nil for one found again
}

// Source is what a machine that does not boot is started from: a template and,
// for one that is forked, a connection to a zygote of it.
type Source struct {
	*machine.Template
	Origin *os.File
}

// Start writes the spec and starts a shim (argv, with dir appended) for
// dir, which must exist. It returns when the shim's sockets accept, or for a
// capture at once.
func Start(ctx context.Context, argv []string, dir string, spec Spec, from Source) (*Process, error) {
	spec.Version = SpecVersion
	if err := writeJSON(filepath.Join(dir, SpecFile), spec); err != nil {
		return nil, err
	}
	logFile, err := os.OpenFile(filepath.Join(dir, LogFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	listening, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer listening.Close()
	defer theirs.Close()

	cmd := exec.Command(argv[0], append(argv[1:len(argv):len(argv)], dir)...)
	cmd.Args[0] = ProgramName
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{theirs}
	if from.Template != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, from.RAM, from.State)
	}
	if spec.Forked {
		cmd.ExtraFiles = append(cmd.ExtraFiles, from.Origin)
	}
	// Its own session: a shim does not die with the terminal or the runner.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start shim: %w", err)
	}
	p := &Process{Dir: dir, Client: NewClient(dir), pid: cmd.Process.Pid, exited: make(chan struct{})}
	go func() { cmd.Wait(); close(p.exited) }()
	if p.ticks, err = StartTicks(p.pid); err != nil {
		return nil, errors.Join(fmt.Errorf("shim ended at once: %s", p.LastWords()), p.Kill(ctx))
	}
	if spec.Capture {
		return p, nil
	}
	theirs.Close()
	if err := p.awaitListening(ctx, listening); err != nil {
		return nil, errors.Join(err, p.Kill(context.WithoutCancel(ctx)))
	}
	return p, nil
}

// Find returns the shim that has left its status in dir, and false when it no
// longer runs. The status is returned either way.
func Find(dir string) (*Process, Status, bool) {
	st, err := LastStatus(dir)
	if err != nil {
		return nil, st, false
	}
	p := &Process{Dir: dir, Client: NewClient(dir), pid: st.PID, ticks: st.StartTicks}
	return p, st, Alive(st.PID, st.StartTicks)
}

// PID is the process id of the shim.
func (p *Process) PID() int { return p.pid }

func (p *Process) awaitListening(ctx context.Context, r *os.File) error {
	stop := context.AfterFunc(ctx, func() { r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := io.ReadFull(r, make([]byte, 1))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("wait for shim: %w", context.Cause(ctx))
	default:
		return fmt.Errorf("shim ended at once: %s", p.LastWords())
	}
}

// Wait blocks until the shim has ended.
func (p *Process) Wait(ctx context.Context) error {
	if p.exited != nil {
		select {
		case <-p.exited:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return waitPID(ctx, p.pid, p.ticks)
}

// Kill ends the shim and its hypervisor, politely if it answers, and returns
// when both processes are gone.
func (p *Process) Kill(ctx context.Context) error {
	defer p.Client.Close()
	polite, cancel := context.WithTimeout(ctx, stopTimeout)
	err := p.Client.Stop(polite)
	if err == nil {
		err = p.Wait(polite)
	}
	cancel()
	if err != nil {
		if err := killPID(ctx, p.pid, p.ticks); err != nil {
			return fmt.Errorf("kill shim: %w", err)
		}
		if err := p.Wait(ctx); err != nil {
			return err
		}
	}
	return KillLeftover(ctx, p.Dir)
}

// KillLeftover ends the hypervisor that a dead shim of dir may have left. The
// kernel kills it with the shim; this makes sure.
func KillLeftover(ctx context.Context, dir string) error {
	st, err := LastStatus(dir)
	if err != nil || st.MachinePID == 0 {
		return nil
	}
	if err := killPID(ctx, st.MachinePID, st.MachineStartTicks); err != nil {
		return fmt.Errorf("kill hypervisor: %w", err)
	}
	return nil
}

// killPID kills the process that was started at ticks, if it still runs, and
// waits until it is gone. A pidfd makes sure that no other process is hit.
func killPID(ctx context.Context, pid int, ticks uint64) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // gone
	}
	defer unix.Close(fd)
	if !Alive(pid, ticks) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return waitPID(ctx, pid, ticks)
}

// waitPID waits for the end of a process that is not our child.
func waitPID(ctx context.Context, pid int, ticks uint64) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	for Alive(pid, ticks) {
		const pollMillis = 200 // only to notice ctx; the end itself wakes us
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, pollMillis); err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll", err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// Alive reports whether the shim still runs.
func (p *Process) Alive() bool { return Alive(p.pid, p.ticks) }

// LastWords returns the end of the shim's log for an error message.
func (p *Process) LastWords() string {
	b, err := os.ReadFile(filepath.Join(p.Dir, LogFile))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}
