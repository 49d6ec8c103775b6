package process

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"skerry.dev/skerry"
)

// Values of skerry.ProcessRequest and skerry.Process.
const (
	KindExec         = "exec"
	KindPTY          = "pty"
	StdinNone        = "none"
	StdinPipe        = "pipe"
	KeepUntilCleanup = "until_cleanup"
	KeepOnExitTTL    = "on_exit_ttl"
	KeepNone         = "none"
	StateRunning     = "running"
	StateTerminal    = "terminal"
)

// TerminateGrace is the time between TERM and KILL for a process that is ended
// by its timeout or by its client's going away. Both go to the whole group.
const TerminateGrace = 2 * time.Second

const (
	maxTimeout = 10 * 365 * 24 * time.Hour
	// groupPoll is how often a group that was told to end is looked at.
	groupPoll = 10 * time.Millisecond
	// groupKillWait bounds the wait for a killed group; only a process stuck in
	// the kernel needs longer.
	groupKillWait = 5 * time.Second
	// exitTimedOut replaces exit code 0 of a process that answered its timeout's
	// TERM with success, as timeout(1) does.
	exitTimedOut = 124
)

// Process is a process of a Table, running or ended.
type Process struct {
	log   *Log
	child Child  // nil if it could not be started
	stdin *stdin // nil without
	tty   *os.File
	done  chan struct{} // closed when the result is final

	mu   sync.Mutex
	info skerry.Process // static, but for State, times, result and Terminal
	// untilSeen: the output is for a client that follows it, see Options.
	untilSeen bool
	ended     bool          // the leader has ended
	stopping  *stopping     // or nil
	timers    []*time.Timer // stopped at the end
}

// stopping is the end of a process that somebody asked for.
type stopping struct {
	reason string
	signal syscall.Signal
	gone   chan struct{} // closed when the group is gone
}

// ID returns the process's identifier.
func (p *Process) ID() skerry.ProcessID { return p.info.ID }

// Done is closed when the process has ended and its output is complete.
func (p *Process) Done() <-chan struct{} { return p.done }

// Log is the process's output.
func (p *Process) Log() *Log { return p.log }

// Terminal reports whether the process has a terminal.
func (p *Process) Terminal() bool { return p.info.Kind == KindPTY }

// Info returns what the process protocol says of the process.
func (p *Process) Info() skerry.Process {
	p.mu.Lock()
	info := p.info
	p.mu.Unlock()
	first, last := p.log.bounds()
	info.FirstAvailableCursor, info.LastCursor = FormatCursor(first), FormatCursor(last)
	info.TruncatedHead = first > 0
	return info
}

// Result returns how the process ended; it is empty before Done.
func (p *Process) Result() skerry.ProcessResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.info.ProcessResult
}

func conflict(code, format string, args ...any) error {
	return &skerry.ToolboxError{StatusCode: http.StatusConflict, Code: code, Message: fmt.Sprintf(format, args...)}
}

func errEnded() error { return conflict(skerry.ToolboxProcessState, "the process has ended") }

// Signal sends a signal to the process group, KILL to the whole group of
// descendants. With after > 0 a process that has not ended by then gets
// escalate.
func (p *Process) Signal(sig syscall.Signal, after time.Duration, escalate syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.child == nil {
		return errEnded()
	}
	if err := p.sendLocked(sig); err != nil {
		return err
	}
	if after > 0 {
		p.timers = append(p.timers, time.AfterFunc(after, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if !p.ended {
				_ = p.sendLocked(escalate) // it may have ended in this moment
			}
		}))
	}
	return nil
}

func (p *Process) sendLocked(sig syscall.Signal) error {
	var err error
	if sig == syscall.SIGKILL {
		err = p.child.SignalAll(sig)
	} else {
		err = p.child.Signal(sig)
	}
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH) {
		return errEnded()
	}
	return err
}

// WriteStdin writes to the process's standard input and blocks until it has
// room. It returns how many bytes were taken.
func (p *Process) WriteStdin(ctx context.Context, b []byte) (int, error) {
	if p.stdin == nil {
		return 0, ErrStdinClosed
	}
	return p.stdin.write(ctx, b)
}

// CloseStdin gives the process an end of file; on a terminal it types Ctrl-D.
func (p *Process) CloseStdin(ctx context.Context) error {
	switch {
	case p.stdin == nil:
		return nil
	case p.tty != nil:
		_, err := p.stdin.write(ctx, []byte{4})
		return err
	}
	p.stdin.close()
	return nil
}

// Resize changes the size of the process's terminal.
func (p *Process) Resize(cols, rows int) error {
	if p.tty == nil {
		return conflict(skerry.ToolboxProcessState, "the process has no terminal")
	}
	if err := checkSizeOf(cols, rows); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return errEnded()
	}
	t := *p.info.Terminal
	t.Cols, t.Rows = cols, rows
	if err := setSize(p.tty, &t); err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	p.info.Terminal = &t // the old one may be in an Info already
	return nil
}

// stop ends the whole group: sig, after grace KILL. The result has the reason
// of the first stop. It returns at once; wait for Done.
func (p *Process) stop(reason string, sig syscall.Signal, grace time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.child == nil || p.stopping != nil {
		return
	}
	s := &stopping{reason: reason, signal: sig, gone: make(chan struct{})}
	p.stopping = s
	go func() {
		defer close(s.gone)
		stopGroup(p.child, sig, grace)
	}()
}

// Keep keeps the output of a process that was started with UntilSeen, as that of
// any other: its client has lost it on the way.
func (p *Process) Keep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.untilSeen {
		p.untilSeen, p.info.KeepLogs = false, KeepUntilCleanup
	}
}

// dropLater drops the output of a process that has ended, at the time its
// request wants.
func (p *Process) dropLater() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.untilSeen:
		p.timers = append(p.timers, time.AfterFunc(seenTTL, p.dropSeen))
	case p.info.KeepLogs == KeepOnExitTTL:
		p.timers = append(p.timers, time.AfterFunc(exitTTL, p.log.Drop))
	}
}

func (p *Process) dropSeen() {
	p.mu.Lock()
	seen := p.untilSeen // not kept since
	p.mu.Unlock()
	if seen {
		p.log.Drop()
	}
}

// Terminate is what happens to a process whose client has gone.
func (p *Process) Terminate() { p.stop("", syscall.SIGTERM, TerminateGrace) }

// stopGroup returns when no process of the group is left.
func stopGroup(c Child, sig syscall.Signal, grace time.Duration) {
	// Errors mean that processes have ended by themselves: Empty is what counts.
	_ = c.SignalAll(sig)
	_ = c.SignalAll(syscall.SIGCONT) // one that is stopped cannot react
	if waitEmpty(c, grace) {
		return
	}
	_ = c.SignalAll(syscall.SIGKILL)
	waitEmpty(c, groupKillWait)
}

func waitEmpty(c Child, most time.Duration) bool {
	deadline := time.Now().Add(most)
	for !c.Empty() {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		time.Sleep(min(groupPoll, left))
	}
	return true
}

// supervise waits for the process's end and makes its result final.
func (p *Process) supervise(pumps []*pump, outputs *sync.WaitGroup) {
	status, err := p.child.Wait()
	exited := time.Now()
	p.mu.Lock()
	p.ended = true
	stop := p.stopping
	for _, t := range p.timers {
		t.Stop()
	}
	p.mu.Unlock()
	if stop != nil {
		<-stop.gone
	}
	if p.stdin != nil && p.tty == nil {
		p.stdin.close()
	}
	for _, pump := range pumps {
		pump.processEnded()
	}
	outputs.Wait()
	p.child.Release()
	p.finish(exited, resultOf(status, err, stop))
}

func (p *Process) finish(at time.Time, result skerry.ProcessResult) {
	p.mu.Lock()
	at = at.UTC()
	p.info.State, p.info.ExitedAt, p.info.ProcessResult = StateTerminal, &at, result
	p.ended = true
	p.mu.Unlock()
	p.log.end()
}

// resultOf says how a process ended; stop is who wanted it, or nil.
func resultOf(status Status, err error, stop *stopping) skerry.ProcessResult {
	r := skerry.ProcessResult{Reason: skerry.ReasonExited, OOMKilled: status.OOMKilled}
	code := 0
	switch w := status.Wait; {
	case err != nil:
		return skerry.ProcessResult{Reason: skerry.ReasonFailed, Error: "wait for the process: " + err.Error()}
	case w.Signaled():
		r.Reason, r.Signal = skerry.ReasonSignaled, SignalName(w.Signal())
		code = 128 + int(w.Signal())
	case w.Exited():
		code = w.ExitStatus()
	default:
		return skerry.ProcessResult{Reason: skerry.ReasonFailed, Error: fmt.Sprintf("wait status %#x is no end", int(w))}
	}
	if stop != nil && stop.reason != "" {
		r.Reason = stop.reason
		if code == 0 && stop.reason == skerry.ReasonTimedOut {
			code = exitTimedOut
		}
		if r.Signal == "" {
			r.Signal = SignalName(stop.signal)
		}
	}
	r.ExitCode = &code
	return r
}
