package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/toolbox/account"
)

// Bounds of a Table.
const (
	maxRunning = 1024 // processes at once
	maxEnded   = 256  // kept after their end; the oldest go first
	// maxEndedBytes bounds what the requests of ended processes take.
	maxEndedBytes = 4 << 20
	// exitTTL is how long keepLogs on_exit_ttl keeps output after the end.
	exitTTL = 5 * time.Minute
	// seenTTL is how long the output of a run is kept after its end, for a
	// client whose link is lost while the last of it is under way.
	seenTTL = 10 * time.Second
)

// Table is the processes of a sandbox. Use NewTable.
type Table struct {
	spawner  Spawner
	users    account.Database
	logger   *slog.Logger
	defaults atomic.Pointer[Defaults]
	budget   budget
	work     sync.WaitGroup // every goroutine of every process

	mu        sync.Mutex
	closed    bool
	starting  int
	processes map[skerry.ProcessID]*Process
	ended     []*Process // oldest first
	endedSize int        // sum of their sizes
	lastEnd   time.Time  // when the last one ended; zero if none did
	pumps     map[*pump]struct{}
}

// NewTable returns an empty Table.
func NewTable(spawner Spawner, users account.Database, logger *slog.Logger, defaults Defaults) *Table {
	t := &Table{spawner: spawner, users: users, logger: logger,
		processes: map[skerry.ProcessID]*Process{}, pumps: map[*pump]struct{}{}}
	t.defaults.Store(&defaults)
	t.budget.reclaim = t.reclaim
	return t
}

// SetEnvironment replaces the sandbox's variables for processes that are started
// from now on.
func (t *Table) SetEnvironment(env map[string]string) {
	defaults := *t.defaults.Load()
	defaults.Env = env
	t.defaults.Store(&defaults)
}

// Options are how a process is started, beyond its request.
type Options struct {
	// Combined gives stdout and stderr one pipe, so that their order is kept.
	Combined bool
	// Follow attaches a follower that loses nothing, before the start.
	Follow bool
	// UntilSeen keeps the output, whatever keepLogs says, until seenTTL after
	// the end: by then the client has it, unless it lost its link and
	// somebody called Keep.
	UntilSeen bool
}

// Start starts a process. What cannot be executed gives a process that has
// ended already, with reason failed and exit code 126 or 127. The error is for
// a request that has no meaning or no room. The Follower is nil unless asked
// for; the caller closes it.
func (t *Table) Start(req *skerry.ProcessRequest, o Options) (*Process, *Follower, error) {
	pl, err := newPlan(t.defaults.Load(), t.users, req)
	fail, failed := errors.AsType[*failure](err)
	if err != nil && !failed {
		return nil, nil, err
	}
	if err := t.reserve(); err != nil {
		return nil, nil, err
	}
	p := &Process{info: pl.info, done: make(chan struct{}), untilSeen: o.UntilSeen, log: newLog(&t.budget, o.UntilSeen || req.KeepLogs != KeepNone)}
	p.info.State, p.info.CreatedAt = StateRunning, time.Now().UTC()
	var follower *Follower
	if o.Follow {
		follower, _ = p.log.Follow(0, 0) // nothing is dropped yet
	}
	if !failed {
		fail = t.launch(p, pl, o.Combined)
	}
	if fail != nil {
		p.finish(time.Now(), skerry.ProcessResult{Reason: skerry.ReasonFailed, ExitCode: &fail.exitCode, Error: fail.Error()})
		t.add(p)
		t.addEnded(p)
		close(p.done)
	}
	return p, follower, nil
}

func (t *Table) reserve() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	running := len(t.processes) - len(t.ended) + t.starting
	switch {
	case t.closed:
		return &skerry.ToolboxError{StatusCode: http.StatusServiceUnavailable, Code: skerry.ToolboxNotActive,
			Message: "the sandbox is going down"}
	case running >= maxRunning:
		return conflict(skerry.ToolboxProcessLimit, "%d processes are running, at most %d at once", running, maxRunning)
	}
	t.starting++
	return nil
}

func (t *Table) add(p *Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.starting--
	t.processes[p.ID()] = p
}

// launch starts the program and its goroutines, or returns why not.
func (t *Table) launch(p *Process, pl *plan, combined bool) *failure {
	streams, err := openStdio(pl, combined)
	if err != nil {
		return &failure{exitCannotExecute, err}
	}
	pl.spec.Files = streams.child
	p.child, err = t.spawner.Start(&pl.spec)
	streams.closeChild()
	if err != nil {
		streams.closeParent()
		// The program was there, so ENOENT is its interpreter's.
		if errors.Is(err, syscall.ENOENT) {
			err = fmt.Errorf("%w: the program's interpreter is missing", err)
		}
		return &failure{exitCannotExecute, err}
	}
	started := time.Now().UTC()
	p.info.StartedAt, p.info.PID = &started, p.child.PID()
	p.tty = streams.tty
	if streams.input != nil {
		p.stdin = newStdin(streams.input)
	}
	var outputs sync.WaitGroup
	pumps := make([]*pump, len(streams.outputs))
	for i, file := range streams.outputs {
		outputs.Add(1)
		pumps[i] = &pump{file: file, channel: streams.channel[i], log: p.log, outputEnd: outputs.Done}
	}
	t.addRunning(p, pumps)
	for _, pump := range pumps {
		t.work.Go(func() {
			pump.run()
			t.removePump(pump)
		})
	}
	t.work.Go(func() {
		p.supervise(pumps, &outputs)
		t.addEnded(p)
		close(p.done)
	})
	return nil
}

// addRunning makes the process known, and arms its timeout.
func (t *Table) addRunning(p *Process, pumps []*pump) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.starting--
	t.processes[p.ID()] = p
	for _, pump := range pumps {
		t.pumps[pump] = struct{}{}
	}
	if ms := p.info.TimeoutMs; ms > 0 {
		p.timers = append(p.timers, time.AfterFunc(time.Duration(ms)*time.Millisecond, func() {
			p.stop(skerry.ReasonTimedOut, syscall.SIGTERM, TerminateGrace)
		}))
	}
	if t.closed { // Close has not seen it
		p.stop(skerry.ReasonSandboxStopped, syscall.SIGKILL, 0)
	}
}

func (t *Table) removePump(p *pump) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pumps, p)
}

// addEnded keeps a process that has ended, in place of the oldest.
func (t *Table) addEnded(p *Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = append(t.ended, p)
	t.endedSize += p.size()
	t.lastEnd = time.Now()
	for len(t.ended) > maxEnded || t.endedSize > maxEndedBytes && len(t.ended) > 1 {
		t.removeLocked(t.ended[0])
	}
	if !t.closed {
		p.dropLater()
	}
}

// removeLocked forgets a process that has ended.
func (t *Table) removeLocked(p *Process) {
	delete(t.processes, p.ID())
	if i := slices.Index(t.ended, p); i >= 0 {
		t.ended = slices.Delete(t.ended, i, i+1)
		t.endedSize -= p.size()
	}
	p.forget()
}

// size is about how many bytes the request takes.
func (p *Process) size() int {
	n := len(p.info.ShellCommand) + len(p.info.Error)
	for _, s := range p.info.Argv {
		n += len(s)
	}
	for name, value := range p.info.Env {
		n += len(name) + len(value)
	}
	return n
}

// forget stops timers and drops output.
func (p *Process) forget() {
	p.mu.Lock()
	for _, timer := range p.timers {
		timer.Stop()
	}
	p.mu.Unlock()
	p.log.Drop()
}

// reclaim drops the output of ended processes until the budget is kept.
func (t *Table) reclaim() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.ended {
		if !t.budget.exceeded() {
			return
		}
		p.log.Drop()
	}
}

// Get returns a process by its identifier.
func (t *Table) Get(id skerry.ProcessID) (*Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, ok := t.processes[id]
	if !ok {
		return nil, &skerry.ToolboxError{StatusCode: http.StatusNotFound, Code: skerry.ToolboxProcessNotFound,
			Message: fmt.Sprintf("process %.64q not found", id)}
	}
	return p, nil
}

// All returns the processes, oldest first.
func (t *Table) All() []skerry.Process {
	t.mu.Lock()
	all := make([]*Process, 0, len(t.processes))
	for _, p := range t.processes {
		all = append(all, p)
	}
	t.mu.Unlock()
	infos := make([]skerry.Process, len(all))
	for i, p := range all {
		infos[i] = p.Info()
	}
	slices.SortFunc(infos, func(a, b skerry.Process) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(string(a.ID), string(b.ID))
	})
	return infos
}

// Delete forgets a process that has ended.
func (t *Table) Delete(id skerry.ProcessID) error {
	p, err := t.Get(id)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.ended, p) {
		return conflict(skerry.ToolboxProcessState, "the process is running")
	}
	t.removeLocked(p)
	return nil
}

// Running returns the number of processes that have not ended.
func (t *Table) Running() int {
	running, _ := t.Activity()
	return running
}

// Activity returns the number of processes that have not ended, and when the
// last one ended; zero if none did.
func (t *Table) Activity() (running int, lastEnd time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.processes) - len(t.ended), t.lastEnd
}

// Close ends all processes with reason sandbox_stopped: TERM, after grace KILL.
// It returns when every goroutine of the Table has ended, or ctx's error.
func (t *Table) Close(ctx context.Context, grace time.Duration) error {
	t.mu.Lock()
	t.closed = true
	running := make([]*Process, 0, len(t.processes))
	for _, p := range t.processes {
		running = append(running, p)
	}
	t.mu.Unlock()
	for _, p := range running {
		p.stop(skerry.ReasonSandboxStopped, syscall.SIGTERM, grace)
	}
	for _, p := range running {
		select {
		case <-p.done:
			p.forget()
		case <-ctx.Done():
			return fmt.Errorf("close processes: %s is running: %w", p.ID(), ctx.Err())
		}
	}
	return t.waitWork(ctx)
}

// waitWork closes the streams that descendants of ended processes still hold,
// which ends the last goroutines.
func (t *Table) waitWork(ctx context.Context) error {
	t.mu.Lock()
	for pump := range t.pumps {
		pump.file.Close()
	}
	t.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		t.work.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close processes: %w", ctx.Err())
	}
}

// FormatCursor returns the wire form of a position in a Log.
func FormatCursor(position int64) string { return "c" + strconv.FormatInt(position, 10) }

// ParseCursor reads what FormatCursor wrote; "" and "start" are 0, with which
// reading begins at the first frame that is kept.
func ParseCursor(s string) (position int64, fromStart, ok bool) {
	if s == "" || s == "start" {
		return 0, true, true
	}
	digits, found := strings.CutPrefix(s, "c")
	position, err := strconv.ParseInt(digits, 10, 64)
	return position, false, found && err == nil && position >= 0 && FormatCursor(position) == s
}
