package procfork_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/procfork"
)

// program is set for the process that the tests fork from.
const program = "SKERRY_PROCFORK_PROGRAM"

// The descriptors of the program.
const (
	in   = 3
	out  = 4
	door = 5
)

func TestMain(m *testing.M) {
	if os.Getenv(program) != "" {
		count()
		return
	}
	os.Exit(m.Run())
}

// count answers each line "add N" with a sum of its own, to which each of a
// number of threads adds N. It ends with its input.
func count() {
	const threads = 4
	var sum int
	var turn, answer [threads]chan int
	for i := range threads {
		turn[i], answer[i] = make(chan int), make(chan int)
		go func() {
			runtime.LockOSThread()
			for n := range turn[i] {
				sum += n
				answer[i] <- unix.Gettid()
			}
		}()
	}
	lines := bufio.NewScanner(os.NewFile(in, "in"))
	w := os.NewFile(out, "out")
	for lines.Scan() {
		n, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "add "))
		if err != nil {
			panic(err)
		}
		ids := map[int]bool{}
		for i := range threads {
			turn[i] <- n
			ids[<-answer[i]] = true
		}
		fmt.Fprintf(w, "%d of %d threads in %d\n", sum, len(ids), os.Getpid())
	}
}

// counter is a running program.
type counter struct {
	t       *testing.T
	in, out *os.File
	answers *bufio.Reader
}

// ends makes the pipes of a counter: ours, and the two of the program.
func ends(t *testing.T) (*counter, *os.File, *os.File) {
	t.Helper()
	theirIn, ourIn, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ourOut, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirIn.Close(); ourIn.Close(); ourOut.Close(); theirOut.Close() })
	return &counter{t: t, in: ourIn, out: ourOut, answers: bufio.NewReader(ourOut)}, theirIn, theirOut
}

// add has the program add, and wants the sum.
func (c *counter) add(n, want, pid int) {
	c.t.Helper()
	fmt.Fprintf(c.in, "add %d\n", n)
	got, err := c.answers.ReadString('\n')
	if want := fmt.Sprintf("%d of 4 threads in %d\n", want, pid); err != nil || got != want {
		c.t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// start starts a program and freezes it after it has counted to 4.
func start(t *testing.T) *procfork.Parent {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, theirIn, theirOut := ends(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "door"), os.NewFile(uintptr(fds[1]), "door")
	defer theirs.Close()
	cmd := exec.Command(exe)
	// Go's own signals to its threads go by ids that the children do not have.
	cmd.Env = []string{program + "=1", "GODEBUG=asyncpreemptoff=1"}
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{theirIn, theirOut, theirs}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.add(1, 4, cmd.Process.Pid)
	parent, err := procfork.Freeze(t.Context(), cmd.Process.Pid, ours, door)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := parent.Close(); err != nil {
			t.Error(err)
		}
		cmd.Wait()
	})
	return parent
}

// TestFork has children go on where their parent stands, each with all threads,
// with memory and descriptors of its own.
func TestFork(t *testing.T) {
	parent := start(t)
	var all sync.WaitGroup
	for range 8 {
		c, theirIn, theirOut := ends(t)
		all.Go(func() {
			child, err := parent.Fork(procfork.Request{Files: map[int]*os.File{in: theirIn, out: theirOut}, Tracer: os.Getpid()})
			if err != nil {
				t.Error(err)
				return
			}
			theirIn.Close()
			theirOut.Close()
			c.add(1, 8, child.Pid)
			c.add(2, 16, child.Pid)
			c.in.Close()
			if rest, err := io.ReadAll(c.answers); err != nil || len(rest) > 0 {
				t.Errorf("after the end: %q, %v", rest, err)
			}
			state, err := child.Wait()
			if err != nil || !state.Success() {
				t.Errorf("child: %v, %v", state, err)
			}
		})
	}
	all.Wait()
}
