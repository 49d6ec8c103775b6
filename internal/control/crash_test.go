package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
	"skerry.dev/skerry/internal/store/sqlite"
)

// poll is the pause between two looks at a process that is settling: other ones
// run at the same time.
const poll = 20 * time.Millisecond

// TestKillAtEveryStep runs control plane and runner in a process that kills
// itself (SIGKILL) at its n-th step, for every n until the process comes to its
// end: a step is before or after each transaction, message and change on the
// host, of the create, stop and start of a persistent sandbox and the delete of
// another. Then it runs them once more, undisturbed, and checks that everything
// comes to rest and nothing is lost or left over.
func TestKillAtEveryStep(t *testing.T) {
	const atOnce = 4 // the processes mostly wait
	var next atomic.Int64
	var completed atomic.Bool
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for !completed.Load() && !t.Failed() {
				n := int(next.Add(1))
				if killAt(t, n) {
					completed.Store(true)
				}
			}
		})
	}
	workers.Wait()
	if n := next.Load(); n < 30 {
		t.Errorf("only %d steps, want those of four operations", n)
	}
	t.Logf("killed at each of about %d steps", next.Load()-1)
}

// killAt returns true when the process came to its end before step n.
func killAt(t *testing.T, n int) (completed bool) {
	dir := t.TempDir()
	log, err := crashProcess(t, dir, n)
	var exit *exec.ExitError
	killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if err != nil && !killed {
		t.Errorf("step %d: %v\n%s", n, err, log)
		return true
	}
	settled, err := crashProcess(t, dir, 0)
	if err != nil {
		t.Errorf("after a kill at step %d: %v\nbefore the kill:\n%s\nafter it:\n%s", n, err, log, settled)
	}
	return !killed
}

// crashProcess runs TestCrashProcess in a process of its own; step 0 is the
// undisturbed run.
func crashProcess(t *testing.T, dir string, step int) (log string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestCrashProcess$", "-test.v")
	cmd.Env = append(os.Environ(), "SKERRY_CRASH_DIR="+dir, "SKERRY_CRASH_STEP="+strconv.Itoa(step))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// crasher kills the process at a step.
type crasher struct {
	at, now atomic.Int64
	log     io.Writer
}

func (c *crasher) step(what string) {
	if n := c.now.Add(1); n == c.at.Load() {
		fmt.Fprintln(c.log, "killed at", what)
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	}
}

// around has a step before and after fn.
func (c *crasher) around(what string, fn func() error) error {
	c.step("before " + what)
	err := fn()
	c.step("after " + what)
	return err
}

type crashStore struct {
	store.Store
	*crasher
}

func (s crashStore) Update(ctx context.Context, fn func(store.Tx) error) error {
	return s.around("update", func() error { return s.Store.Update(ctx, fn) })
}

func (s crashStore) UpdateLazily(ctx context.Context, fn func(store.Tx) error) error {
	return s.around("lazy update", func() error { return s.Store.UpdateLazily(ctx, fn) })
}

// crashBus has steps around what both sides publish. A step after the handling
// of a message lies before its acknowledgement.
type crashBus struct {
	*bus.Bus
	*crasher
}

func (b crashBus) PublishJob(ctx context.Context, j bus.CreateJob) error {
	return b.around("publish job", func() error { return b.Bus.PublishJob(ctx, j) })
}

func (b crashBus) PublishCommand(ctx context.Context, r skerry.RunnerID, id string, c bus.Command) error {
	return b.around("publish "+c.Kind, func() error { return b.Bus.PublishCommand(ctx, r, id, c) })
}

func (b crashBus) PublishEvent(ctx context.Context, e bus.Event) error {
	return b.around("publish event "+string(e.Status), func() error { return b.Bus.PublishEvent(ctx, e) })
}

// TestCrashProcess is the process that TestKillAtEveryStep kills. The first
// run, in an empty directory, creates a persistent sandbox, stops and starts it,
// and deletes another; it writes down what it was told. A second run checks the
// outcome.
func TestCrashProcess(t *testing.T) {
	dir := os.Getenv("SKERRY_CRASH_DIR")
	if dir == "" {
		t.Skip("is run by TestKillAtEveryStep")
	}
	step, err := strconv.Atoi(os.Getenv("SKERRY_CRASH_STEP"))
	must(t, err)
	crash := &crasher{log: os.Stdout}
	db, err := sqlite.Open(t.Context(), filepath.Join(dir, "state.db"))
	must(t, err)
	defer db.Close()
	b, err := bus.Open(t.Context(), bus.Config{Dir: filepath.Join(dir, "bus"), Logger: slog.Default()})
	must(t, err)
	defer b.Close(context.Background())
	host := filepath.Join(dir, "host")

	c := New(Config{Store: crashStore{db, crash}, Bus: crashBus{b, crash}, Logger: slog.Default()})
	runner := &fakeRunner{bus: crashBus{b, crash}, dir: host, epoch: time.Now().UnixNano(), skip: func(what string) bool {
		crash.step("runner: " + what)
		return false
	}}
	must(t, runner.init())
	ctx, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	group.Go(func() error { return c.Run(ctx) })
	group.Go(func() error { return runner.run(ctx) })
	w := &world{Control: c, t: t, db: db}
	told, err := os.OpenFile(filepath.Join(dir, "told"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	must(t, err)
	defer told.Close()
	if step > 0 {
		w.crashScenario(crash, int64(step), told)
	} else {
		w.checkSettled(runner, told)
	}
	cancel()
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func (w *world) crashScenario(crash *crasher, step int64, told io.Writer) {
	w.t.Helper()
	ctx := w.t.Context()
	for deadline := time.Now().Add(limit); ; time.Sleep(poll) { // the runner's first report
		if i, err := w.PullImage(ctx, skerry.PullRequest{Reference: "debian", Default: true}); err == nil {
			i, err = w.WaitImage(ctx, string(i.ID), limit)
			must(w.t, err)
			break
		} else if skerry.CodeOf(err) != skerry.CodeUnavailable || time.Now().After(deadline) {
			w.t.Fatal(err)
		}
	}
	drop := w.create("drop")
	fmt.Fprintln(told, "created", drop.ID)
	w.waitFor(drop.ID, skerry.StatusRunning)
	crash.now.Store(0)
	crash.at.Store(step)
	req := request("keep")
	req.Persistent = true
	keep, _, err := w.CreateSandbox(ctx, req)
	must(w.t, err)
	fmt.Fprintln(told, "created", keep.ID)
	w.waitFor(keep.ID, skerry.StatusRunning)
	must(w.t, w.do(ctx, skerry.Stop, "keep"))
	w.waitFor(keep.ID, skerry.StatusStopped)
	fmt.Fprintln(told, "stopped", keep.ID)
	must(w.t, w.do(ctx, skerry.Start, "keep"))
	fmt.Fprintln(told, "started", keep.ID)
	w.waitFor(keep.ID, skerry.StatusRunning)
	_, err = w.DeleteSandbox(ctx, "drop")
	must(w.t, err)
	fmt.Fprintln(told, "deleted", drop.ID)
	w.waitFor(drop.ID, skerry.StatusDeleted)
}

// checkSettled waits until every sandbox is at rest, and compares with what was
// told and with what is on the host.
func (w *world) checkSettled(runner *fakeRunner, told io.Reader) {
	w.t.Helper()
	ctx := w.t.Context()
	rest := []skerry.Status{skerry.StatusDeleted, skerry.StatusRunning, skerry.StatusStopped, skerry.StatusFailed}
	page, err := w.ListSandboxes(ctx, skerry.SandboxFilter{Deleted: true})
	must(w.t, err)
	status := map[skerry.SandboxID]skerry.Status{}
	for _, s := range page.Items {
		until := rest
		if s.Status == skerry.StatusDeleting {
			until = rest[:1]
		}
		s, err := w.WaitSandbox(ctx, string(s.ID), until, limit)
		must(w.t, err)
		status[s.ID] = s.Status
	}
	lines := bufio.NewScanner(told)
	for lines.Scan() {
		what, id, _ := strings.Cut(lines.Text(), " ")
		switch got := status[skerry.SandboxID(id)]; {
		case got == "" || got == skerry.StatusFailed: // nothing kept it from being made
			w.t.Errorf("%s was %s, and is %q", id, what, got)
		case what == "deleted" && got != skerry.StatusDeleted:
			w.t.Errorf("%s was deleted, and is %s", id, got)
		case (what == "stopped" || what == "started") && got != skerry.StatusStopped && got != skerry.StatusRunning:
			w.t.Errorf("%s was %s, and is %s", id, what, got)
		case what == "started" && got != skerry.StatusRunning: // nothing kept it from running
			w.t.Errorf("%s was started, and is %s", id, got)
		}
	}
	w.settledHost(runner)
}

// settledHost waits until the host has exactly the machines of the running
// sandboxes and no message is left to be sent.
func (w *world) settledHost(runner *fakeRunner) {
	w.t.Helper()
	ctx := w.t.Context()
	for deadline := time.Now().Add(limit); ; time.Sleep(poll) {
		page, err := w.ListSandboxes(ctx, skerry.SandboxFilter{Deleted: true})
		must(w.t, err)
		machines, err := runner.machines()
		must(w.t, err)
		var wrong []string
		running := 0
		for _, s := range page.Items {
			switch {
			case s.Status == skerry.StatusRunning && machines[s.Machine] != s.ID:
				wrong = append(wrong, s.Name+" runs without its machine")
			case s.Status == skerry.StatusRunning:
				running++
			case s.Status == skerry.StatusStopped:
				if disk, ok := runner.disk(s.ID); !ok || disk.Machine != s.Machine || disk.Status != s.Status {
					wrong = append(wrong, fmt.Sprintf("%s is stopped, its disk %+v", s.Name, disk))
				}
			case s.Status != skerry.StatusFailed && s.Status != skerry.StatusDeleted:
				wrong = append(wrong, s.Name+" is "+string(s.Status))
			}
		}
		if len(machines) != running {
			wrong = append(wrong, fmt.Sprintf("%d machines for %d running sandboxes", len(machines), running))
		}
		must(w.t, w.db.View(ctx, func(r store.Reader) error {
			left, err := r.Outbox(ctx, 10)
			if len(left) > 0 {
				wrong = append(wrong, fmt.Sprintf("outbox %+v", left))
			}
			return err
		}))
		if len(wrong) == 0 {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("does not come to rest: %q", wrong)
		}
	}
}
