package procfork_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/procfork"
)

// program is set for the process that the tests fork from.
const program = "SKERRY_PROCFORK_PROGRAM"

// The descriptors of the program.
const (
	in     = 3
	out    = 4
	door   = 5
	waits  = 6 // blocks
	polled = 7 // does not
	events = 8 // an eventfd(2) that does not block
)

// threads is how many threads the program adds with.
const threads = 4

// pageBytes is the size of a page, of which the program has so many that the
// tests know.
const (
	pageBytes = 4096
	pages     = 8
)

// programState is what the program has besides its threads.
type programState struct {
	sum          int
	turn, answer [threads]chan int
	memory       []byte
}

// runProgram answers each line of its input with a line, and ends with it.
func runProgram() {
	var s programState
	for i := range threads {
		s.turn[i], s.answer[i] = make(chan int), make(chan int)
		go func() {
			runtime.LockOSThread()
			for n := range s.turn[i] {
				s.sum += n
				s.answer[i] <- unix.Gettid()
			}
		}()
	}
	must(unix.SetNonblock(polled, true))
	fd, err := unix.Eventfd(3, unix.EFD_NONBLOCK)
	must(err)
	must(unix.Dup2(fd, events))
	must(unix.Close(fd))
	s.memory, err = unix.Mmap(-1, 0, pages*pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(err)
	must(unix.Madvise(s.memory, unix.MADV_NOHUGEPAGE))
	must(unix.Madvise(s.memory[(pages-1)*pageBytes:], unix.MADV_DONTFORK))
	for i := range pages {
		s.memory[i*pageBytes] = byte(i)
	}
	lines := bufio.NewScanner(os.NewFile(in, "in"))
	w := os.NewFile(out, "out")
	for lines.Scan() {
		var command string
		var a, b int
		fmt.Sscan(lines.Text(), &command, &a, &b)
		fmt.Fprintln(w, s.answerTo(command, a, b))
	}
}

func (s *programState) answerTo(command string, a, b int) string {
	switch command {
	case "add": // a sum, to which each thread adds
		ids := map[int]bool{}
		for i := range threads {
			s.turn[i] <- a
			ids[<-s.answer[i]] = true
		}
		return fmt.Sprintf("%d of %d threads in %d", s.sum, len(ids), os.Getpid())
	case "blocks": // a descriptor
		flags, err := unix.FcntlInt(uintptr(a), unix.F_GETFL, 0)
		must(err)
		return fmt.Sprint(flags&unix.O_NONBLOCK == 0)
	case "count": // of the eventfd, which is 0 then
		var n [8]byte
		if _, err := unix.Read(events, n[:]); err != nil {
			return err.Error()
		}
		return fmt.Sprint(n[0])
	case "raise": // the count of the eventfd
		_, err := unix.Write(events, []byte{byte(a), 0, 0, 0, 0, 0, 0, 0})
		must(err)
		return "raised"
	case "address":
		return fmt.Sprint(uintptr(unsafe.Pointer(&s.memory[0])))
	case "write": // a byte to a page
		s.memory[a*pageBytes] = byte(b)
		return "written"
	case "read": // the first byte of each page
		var text strings.Builder
		for i := range pages {
			fmt.Fprint(&text, s.memory[i*pageBytes], " ")
		}
		return text.String()
	case "spin": // a thread, for good
		var spun atomic.Int64
		go func() {
			runtime.LockOSThread()
			for n := 0; ; n++ {
				spun.Store(int64(n))
			}
		}()
		return "spins"
	case "threads": // makes new ones
		return fmt.Sprint(newThreads(a))
	case "dumpable":
		n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		must(err)
		return fmt.Sprint(n)
	}
	return fmt.Sprint(attempt(command, a))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// newThreads has so many goroutines at once on threads of their own, and returns
// how many threads that were.
func newThreads(n int) int {
	ids, release := make(chan int), make(chan bool)
	for range n {
		go func() {
			runtime.LockOSThread()
			ids <- unix.Gettid()
			<-release
		}()
	}
	different := map[int]bool{}
	for range n {
		different[<-ids] = true
	}
	close(release)
	return len(different)
}

// attempts are what a confined process must not do to one that there is; none of
// them has an effect.
var attempts = []string{"fork", "exec", "kill", "tgkill", "sigqueue", "pidfd", "prlimit", "owner", "owner-ex", "owner-ioctl", "signal"}

// attempt does one of the attempts.
func attempt(what string, pid int) (err error) {
	raw := func(number uintptr, args ...uintptr) error {
		var a [6]uintptr
		copy(a[:], args)
		if _, _, errno := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
			return errno
		}
		return nil
	}
	switch what {
	case "fork": // without an effect: what is to be run is not there
		_, err = syscall.ForkExec("/nonexistent", nil, nil)
	case "exec":
		err = unix.Exec("/nonexistent", nil, nil)
	case "kill":
		err = unix.Kill(pid, 0)
	case "tgkill":
		err = unix.Tgkill(pid, pid, 0)
	case "sigqueue":
		info := [32]int32{2: -1} // si_code: SI_QUEUE
		err = raw(unix.SYS_RT_SIGQUEUEINFO, uintptr(pid), 0, uintptr(unsafe.Pointer(&info)))
	case "pidfd":
		var fd int
		if fd, err = unix.PidfdOpen(pid, 0); err == nil {
			unix.Close(fd)
		}
	case "prlimit":
		var old unix.Rlimit
		err = unix.Prlimit(pid, unix.RLIMIT_CORE, nil, &old)
	case "owner":
		_, err = unix.FcntlInt(out, unix.F_SETOWN, 0)
	case "owner-ex":
		owner := [2]int32{1, 0} // F_OWNER_PID, nobody
		err = raw(unix.SYS_FCNTL, out, unix.F_SETOWN_EX, uintptr(unsafe.Pointer(&owner)))
	case "owner-ioctl":
		err = unix.IoctlSetPointerInt(polled, 0x8901, 0)
	case "signal":
		_, err = unix.FcntlInt(out, unix.F_SETSIG, 0)
	default:
		panic(what)
	}
	return err
}

// counter is a running program, or a child of one.
type counter struct {
	t       *testing.T
	in, out *os.File
	answers *bufio.Reader
}

// ends makes the pipes of a counter: ours, and the two of the program.
func ends(t *testing.T) (*counter, *os.File, *os.File) {
	t.Helper()
	theirIn, ourIn := pipe(t)
	ourOut, theirOut := pipe(t)
	return &counter{t: t, in: ourIn, out: ourOut, answers: bufio.NewReader(ourOut)}, theirIn, theirOut
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// ask returns the answer to a line.
func (c *counter) ask(format string, args ...any) string {
	c.t.Helper()
	fmt.Fprintf(c.in, format+"\n", args...)
	got, err := c.answers.ReadString('\n')
	if err != nil {
		c.t.Errorf("%s: %q, %v", fmt.Sprintf(format, args...), got, err)
	}
	return strings.TrimSuffix(got, "\n")
}

// want asks and wants an answer.
func (c *counter) want(want, format string, args ...any) {
	c.t.Helper()
	if got := c.ask(format, args...); got != want {
		c.t.Errorf("%s: got %q, want %q", fmt.Sprintf(format, args...), got, want)
	}
}

// add has the program add, and wants the sum.
func (c *counter) add(n, want, pid int) {
	c.t.Helper()
	c.want(fmt.Sprintf("%d of %d threads in %d", want, threads, pid), "add %d", n)
}

// running is a program that is not frozen yet.
type running struct {
	*counter
	cmd  *exec.Cmd
	door *os.File
}

// start starts a program, which has counted to 4.
func start(t *testing.T) running {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, theirIn, theirOut := ends(t)
	ours, theirs := socketpair(t)
	blocking, _ := socketpair(t)
	nonblocking, _ := socketpair(t)
	event, _ := socketpair(t) // whose number is taken for that
	cmd := exec.Command(exe)
	// Go's own signals to its threads go by ids that the children do not have.
	cmd.Env = []string{program + "=1", "GODEBUG=asyncpreemptoff=1"}
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{theirIn, theirOut, theirs, blocking, nonblocking, event}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.add(1, 4, cmd.Process.Pid)
	theirIn.Close()
	theirOut.Close()
	return running{c, cmd, ours}
}

func socketpair(t *testing.T) (*os.File, *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := os.NewFile(uintptr(fds[0]), "a"), os.NewFile(uintptr(fds[1]), "b")
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// freeze makes a parent of the program until the test ends.
func (r running) freeze(ctx context.Context) (*procfork.Parent, error) {
	r.t.Helper()
	parent, err := procfork.Freeze(ctx, r.cmd.Process.Pid, r.door, door)
	r.t.Cleanup(func() {
		if parent != nil {
			if err := parent.Close(); err != nil {
				r.t.Error(err)
			}
		}
		r.cmd.Wait()
	})
	return parent, err
}

// frozen is start and freeze.
func frozen(t *testing.T) (running, *procfork.Parent) {
	t.Helper()
	r := start(t)
	parent, err := r.freeze(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r, parent
}

// child is a fork.
type child struct {
	*counter
	*os.Process
}

// fork makes a child that ends with the test at the latest.
func fork(t *testing.T, parent *procfork.Parent, req procfork.Request) child {
	t.Helper()
	c, theirIn, theirOut := ends(t)
	files := map[int]*os.File{in: theirIn, out: theirOut}
	for n, f := range req.Files {
		files[n] = f
	}
	req.Files = files
	p, err := parent.Fork(req)
	if err != nil {
		t.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	t.Cleanup(func() {
		c.in.Close()
		p.Wait() // an error is of one that was waited for
	})
	return child{c, p}
}

// finish ends a child and wants it to end well.
func (c child) finish() {
	c.t.Helper()
	c.in.Close()
	if rest, err := c.answers.ReadString('\n'); err == nil || rest != "" {
		c.t.Errorf("after the end: %q, %v", rest, err)
	}
	if state, err := c.Wait(); err != nil || !state.Success() {
		c.t.Errorf("child: %v, %v", state, err)
	}
}
