// Package spawn starts the processes of a sandbox and collects their ends. PID 1
// is the parent of every orphan, so exactly one place calls wait4(2); a second
// one would steal exit statuses.
package spawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Reaper owns wait4(2) of this process. Nothing else in the process may wait
// for children: no os/exec, no os.Process.Wait.
type Reaper struct {
	// mu orders starts and reaping: a child's end is looked up only when its
	// start has been recorded. Starts hold it shared, reaping alone.
	mu sync.RWMutex

	childrenMu sync.Mutex
	children   map[int]chan syscall.WaitStatus // guarded by childrenMu; each has room for one

	afterReap func() // called outside the locks, or nil
}

// NewReaper returns a Reaper. afterReap, if not nil, is called whenever
// processes were reaped.
func NewReaper(afterReap func()) *Reaper {
	return &Reaper{children: make(map[int]chan syscall.WaitStatus), afterReap: afterReap}
}

// Run reaps until ctx is done.
func (r *Reaper) Run(ctx context.Context) {
	// One pending signal is enough: all that ended are reaped for each.
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for {
		if r.reap() && r.afterReap != nil {
			r.afterReap()
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return
		}
	}
}

// reap collects all ended children and reports whether there were any.
func (r *Reaper) reap() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for any := false; ; any = true {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil || pid <= 0: // ECHILD: none left
			return any
		}
		r.deliver(pid, status)
	}
}

func (r *Reaper) deliver(pid int, status syscall.WaitStatus) {
	r.childrenMu.Lock()
	defer r.childrenMu.Unlock()
	if ch, ok := r.children[pid]; ok {
		delete(r.children, pid)
		ch <- status
	}
}

// timerSlack is the kernel's default, in nanoseconds. A child has the slack of
// the thread that forks it, and one of ours has another (see package pid1).
const timerSlack = 50_000

// start starts a program. The channel gets its one status.
func (r *Reaper) start(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlack, 0, 0, 0); err != nil {
		return 0, nil, os.NewSyscallError("prctl", err)
	}
	// When execve fails, ForkExec itself waits for its child; the lock keeps
	// the number from being reaped and reused meanwhile.
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, &os.PathError{Op: "fork/exec", Path: path, Err: err}
	}
	ch := make(chan syscall.WaitStatus, 1)
	r.childrenMu.Lock()
	r.children[pid] = ch
	r.childrenMu.Unlock()
	return pid, ch, nil
}

// signalGroup signals the process group of a child that was not reaped yet.
func (r *Reaper) signalGroup(pid int, sig syscall.Signal) error {
	r.mu.RLock() // a number is not reused while its process is not reaped
	defer r.mu.RUnlock()
	r.childrenMu.Lock()
	_, alive := r.children[pid]
	r.childrenMu.Unlock()
	if !alive {
		return os.ErrProcessDone
	}
	if err := syscall.Kill(-pid, sig); err != nil {
		return fmt.Errorf("signal group %d: %w", pid, err)
	}
	return nil
}
