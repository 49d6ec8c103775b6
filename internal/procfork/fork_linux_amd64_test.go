package procfork_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/procfork"
)

func TestMain(m *testing.M) {
	if os.Getenv(program) != "" {
		runProgram()
		return
	}
	goleak.VerifyTestMain(m)
}

// TestFork has children go on where their parent stands, each with all threads,
// with memory and descriptors of its own.
func TestFork(t *testing.T) {
	_, parent := frozen(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			c := fork(t, parent, procfork.Request{Tracer: os.Getpid()})
			c.add(1, 8, c.Pid)
			c.add(2, 16, c.Pid)
			c.finish()
		})
	}
	all.Wait()
}

// TestMemory: what one writes no other reads, and what the parent had not let a
// fork have is there.
func TestMemory(t *testing.T) {
	_, parent := frozen(t)
	const untouched = "0 1 2 3 4 5 6 7 "
	a, b := fork(t, parent, procfork.Request{}), fork(t, parent, procfork.Request{})
	a.want("written", "write 3 100")
	a.want("0 1 2 100 4 5 6 7 ", "read")
	b.want(untouched, "read")
	fork(t, parent, procfork.Request{}).want(untouched, "read")
}

// TestFiles: a file that takes the place of another blocks as that did, however
// it came, and an eventfd is each child's own, with what it had counted.
func TestFiles(t *testing.T) {
	_, parent := frozen(t)
	for range 2 {
		one, _ := pipe(t) // of package os, which does not block
		two, _ := socketpair(t)
		c := fork(t, parent, procfork.Request{Files: map[int]*os.File{waits: one, polled: two}})
		c.want("true", "blocks %d", waits)
		c.want("false", "blocks %d", polled)
		two, _ = pipe(t)
		one, _ = socketpair(t)
		c = fork(t, parent, procfork.Request{Files: map[int]*os.File{waits: one, polled: two}})
		c.want("true", "blocks %d", waits)
		c.want("false", "blocks %d", polled)
		c.want("false", "blocks %d", events)
		c.want("3", "count")
		c.want(unix.EAGAIN.Error(), "count")
		c.want("raised", "raise 9")
	}
}

// TestForkFails: of a child that cannot be made nothing is left, and the next can.
func TestForkFails(t *testing.T) {
	r, parent := frozen(t)
	before := children(t)
	for range 2 {
		file, _ := pipe(t)
		if c, err := parent.Fork(procfork.Request{Files: map[int]*os.File{99: file}}); err == nil || !strings.Contains(err.Error(), "99") {
			t.Errorf("a descriptor that is not there: got %v, %v", c, err)
		}
		restore := procfork.SpoilLastThread(parent)
		if c, err := parent.Fork(procfork.Request{}); err == nil {
			t.Errorf("a thread that cannot be made: got %v", c)
		}
		restore()
		if got := children(t); got != before {
			t.Errorf("%d children, want %d", got, before)
		}
		c := fork(t, parent, procfork.Request{})
		c.add(1, 8, c.Pid)
		c.finish()
	}
	if err := parent.Close(); err != nil {
		t.Error(err)
	}
	if c, err := parent.Fork(procfork.Request{}); !errors.Is(err, procfork.ErrClosed) {
		t.Errorf("after Close: got %v, %v, want %v", c, err, procfork.ErrClosed)
	}
	parent.Own([]uint64{0})
	wantKilled(t, r)
}

// TestCloseDuringForks closes a parent that is being forked from: each fork is
// made, or refused.
func TestCloseDuringForks(t *testing.T) {
	_, parent := frozen(t)
	first := fork(t, parent, procfork.Request{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				p, err := parent.Fork(procfork.Request{})
				if err != nil {
					if !errors.Is(err, procfork.ErrClosed) {
						t.Errorf("got %v, want %v", err, procfork.ErrClosed)
					}
					return
				}
				p.Kill()
				p.Wait()
			}
		})
	}
	first.add(1, 8, first.Pid) // so that there are some
	if err := parent.Close(); err != nil {
		t.Error(err)
	}
	all.Wait()
	first.add(1, 12, first.Pid)
}

// children counts the processes that have this one for their parent.
func children(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile("/proc/" + e.Name() + "/status")
		if err == nil && strings.Contains(string(b), fmt.Sprintf("\nPPid:\t%d\n", os.Getpid())) {
			n++
		}
	}
	return n
}

// wantKilled wants the program to have been killed, which who waits for it is
// told.
func wantKilled(t *testing.T, r running) {
	t.Helper()
	const patience = 20 * time.Second
	fd, err := unix.PidfdOpen(r.cmd.Process.Pid, 0)
	if err == nil {
		defer unix.Close(fd)
		n := 0
		for err = unix.EINTR; err == unix.EINTR; {
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		}
		if n != 1 || err != nil {
			t.Fatalf("the program has not ended: %v", err)
		}
	} else if err != unix.ESRCH { // it has ended
		t.Fatal(err)
	}
	r.cmd.Wait()
	if got := r.cmd.ProcessState.String(); got != "signal: killed" {
		t.Errorf("the program ended: %s", got)
	}
}

// TestParentKilled: when somebody else kills a parent, who waits for it knows;
// its children live on, and there are no more.
func TestParentKilled(t *testing.T) {
	r, parent := frozen(t)
	c := fork(t, parent, procfork.Request{})
	if err := unix.Kill(r.cmd.Process.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wantKilled(t, r)
	for range 2 {
		if p, err := parent.Fork(procfork.Request{}); !errors.Is(err, unix.ESRCH) {
			t.Errorf("fork: got %v, %v, want %v", p, err, unix.ESRCH)
		}
	}
	c.add(1, 8, c.Pid)
	if err := parent.Close(); err != nil {
		t.Error(err)
	}
	c.add(1, 12, c.Pid)
	c.finish()
}

// TestChildKilled: the end of a child is its own.
func TestChildKilled(t *testing.T) {
	_, parent := frozen(t)
	a, b := fork(t, parent, procfork.Request{}), fork(t, parent, procfork.Request{})
	a.add(1, 8, a.Pid)
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	if state, err := a.Wait(); err != nil || state.String() != "signal: killed" {
		t.Errorf("killed child: %v, %v", state, err)
	}
	b.add(1, 8, b.Pid)
	c := fork(t, parent, procfork.Request{})
	c.add(1, 8, c.Pid)
}

// TestFreezeFails: a process that does not come to rest, ends meanwhile or has
// ended before is dead afterwards, and who waits for it knows.
func TestFreezeFails(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name   string
		ctx    context.Context
		before func(running)
		want   error
	}{
		{"never rests", cancelled, func(r running) { r.want("spins", "spin") }, context.Canceled},
		{"has ended", t.Context(), running.kill, nil},
		{"ends meanwhile", t.Context(), func(r running) {
			r.want("spins", "spin")
			time.AfterFunc(30*time.Millisecond, r.kill)
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t)
			r.t = t
			tt.before(r)
			if parent, err := r.freeze(tt.ctx); err == nil || parent != nil || (tt.want != nil && !errors.Is(err, tt.want)) {
				t.Errorf("got %v, %v, want %v", parent, err, tt.want)
			}
			wantKilled(t, r)
		})
	}
}

func (r running) kill() { _ = unix.Kill(r.cmd.Process.Pid, unix.SIGKILL) }

// TestConfine: a confined child makes threads, but no processes, and reaches no
// other; one that is not could.
func TestConfine(t *testing.T) {
	_, parent := frozen(t)
	free, confined := fork(t, parent, procfork.Request{}), fork(t, parent, procfork.Request{Confine: true})
	for _, what := range attempts {
		if got := free.ask("%s %d", what, os.Getpid()); got == unix.EPERM.Error() {
			t.Errorf("%s of a free child: %s", what, got)
		}
		confined.want(unix.EPERM.Error(), "%s %d", what, os.Getpid())
	}
	confined.want("12", "threads 12")
	confined.want("<nil>", "tgkill %d", confined.Pid)
	confined.want("<nil>", "prlimit 0")
	confined.add(1, 8, confined.Pid)
	confined.finish()
}

// TestHide: a hidden child cannot be read by its like.
func TestHide(t *testing.T) {
	_, parent := frozen(t)
	fork(t, parent, procfork.Request{}).want("1", "dumpable")
	c := fork(t, parent, procfork.Request{Hide: true, Confine: true})
	c.want("0", "dumpable")
	c.add(1, 8, c.Pid)
}

// TestOwn: what one child writes to later ones have from the start, with what
// was in it; what cannot be had is passed over.
func TestOwn(t *testing.T) {
	_, parent := frozen(t)
	first := fork(t, parent, procfork.Request{})
	text := first.ask("address")
	address, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	// written says of each page whether the child has it for itself.
	written := func(c child) (own [pages]bool) {
		t.Helper()
		all, err := procfork.Written(c.Pid)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range all {
			if a >= address && a < address+pages*pageBytes {
				own[(a-address)/pageBytes] = true
			}
		}
		return own
	}
	first.want("written", "write 2 200")
	first.want("written", "write 5 250")
	want := [pages]bool{2: true, 5: true}
	if got := written(first); got != want {
		t.Errorf("written pages: got %v, want %v", got, want)
	}
	all, err := procfork.Written(first.Pid)
	if err != nil {
		t.Fatal(err)
	}
	parent.Own(append([]uint64{0, 1 << 46}, all...))
	second := fork(t, parent, procfork.Request{})
	if got := written(second); got != want {
		t.Errorf("pages of its own: got %v, want %v", got, want)
	}
	second.want("0 1 2 3 4 5 6 7 ", "read")
	second.add(1, 8, second.Pid)
	parent.Own(nil)
	if got := written(fork(t, parent, procfork.Request{})); got != [pages]bool{} {
		t.Errorf("pages of its own, without any wanted: got %v", got)
	}
	if _, err := procfork.Written(1 << 29); err == nil {
		t.Error("pages of a process that there is not: got nil, want an error")
	}
}
