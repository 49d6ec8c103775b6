package procfork

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Parent is a process that stands still for good, to be forked from.
type Parent struct {
	pid     int
	door    *os.File
	doorFD  int
	page    uint64    // address of a page for arguments, in the process and its children
	stopped []*thread // the main one first
	threads []*state  // of each
	open    map[int]openFile
	own     []uint64 // addresses of pages that each child gets copies of
	work    chan func()
	closing sync.Once
	close   chan struct{}
	ended   chan struct{} // closed when the process is dead
	reaped  chan struct{} // closed when its other threads are gone; nil if it is not frozen
}

// pageBytes is the size of the page for arguments.
const pageBytes = 4096

// threadFlags are those of pthread_create(3), processFlags those of fork(2) and
// that the child's parent is the parent's, which is us.
const (
	threadFlags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD |
		unix.CLONE_SYSVSEM | unix.CLONE_SETTLS | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_CLEARTID
	processFlags = unix.CLONE_PARENT | unix.CLONE_CHILD_SETTID | unix.CLONE_CHILD_CLEARTID | uint64(unix.SIGCHLD)
)

// Freeze stops a child of this process for good, at a moment when all its
// threads wait in system calls. Number door of its descriptors
// is the other end of the socket that ours is; both belong to the Parent from
// here on, which Close ends, as the end of this process does. On an error the
// process is killed: it may be anywhere. It is the caller's to wait for, whose
// waits must not be for stops (use a pidfd).
func Freeze(ctx context.Context, pid int, ours *os.File, door int) (*Parent, error) {
	p := &Parent{pid: pid, door: ours, doorFD: door, work: make(chan func()),
		close: make(chan struct{}), ended: make(chan struct{})}
	go p.trace()
	if err := p.do(func() error { return p.freeze(ctx) }); err != nil {
		return nil, errors.Join(fmt.Errorf("freeze process: %w", err), p.Close())
	}
	return p, nil
}

// trace runs what is to be done on one thread: ptrace(2) knows a tracer as a
// thread.
func (p *Parent) trace() {
	defer close(p.ended)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		select {
		case f := <-p.work:
			f()
		case <-p.close:
			// An error means that it has ended.
			_ = unix.Kill(p.pid, unix.SIGKILL)
			if p.reaped == nil {
				reap(p.stopped)
			} else {
				<-p.reaped
			}
			return
		}
	}
}

// reap waits for the end of the threads but the first of a process: those that
// are traced stay until their tracer, or another thread of it, has seen their
// end, and until then the process has none. The first is for whoever waits for
// the process.
func reap(threads []*thread) {
	for _, t := range threads {
		for !t.first {
			if _, err := t.wait(); err != nil {
				break // it has ended, or is not traced any more
			}
		}
	}
}

func (p *Parent) do(f func() error) error {
	result := make(chan error, 1)
	select {
	case p.work <- func() { result <- f() }:
		return <-result
	case <-p.ended:
		return ErrClosed
	}
}

// Own has later children begin with copies of pages, by address, which else are
// made one by one when they are written to: by a fault each, that costs many
// times what the copy does. Pages that another child has Written are a guess.
func (p *Parent) Own(pages []uint64) {
	_ = p.do(func() error { p.own = pages; return nil }) // a closed one has no children to come
}

// Close kills the process, but none of its children.
func (p *Parent) Close() (err error) {
	p.closing.Do(func() {
		close(p.close)
		<-p.ended
		err = p.door.Close()
	})
	return err
}

func (p *Parent) freeze(ctx context.Context) error {
	gate, err := findSyscall(p.pid)
	if err != nil {
		return err
	}
	if err := p.seizeAtRest(ctx); err != nil {
		return err
	}
	for _, t := range p.stopped {
		t.gate = gate
		s, err := t.state()
		if err != nil {
			return fmt.Errorf("thread %d: %w", t.tid, err)
		}
		p.threads = append(p.threads, s)
	}
	main := p.stopped[0]
	p.page, err = main.call(unix.SYS_MMAP, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uint64(0), 0)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	for i, t := range p.stopped {
		if _, err := t.call(unix.SYS_PRCTL, prGetTidAddress, p.page); err != nil {
			return fmt.Errorf("prctl get_tid_address: %w", err)
		}
		var address [8]byte
		if err := readMemory(p.pid, p.page, address[:]); err != nil {
			return err
		}
		p.threads[i].tidAddress = binary.LittleEndian.Uint64(address[:])
		if _, err := t.call(unix.SYS_SIGALTSTACK, 0, p.page); err != nil {
			return fmt.Errorf("sigaltstack: %w", err)
		}
		if err := readMemory(p.pid, p.page, p.threads[i].altStack[:]); err != nil {
			return err
		}
	}
	if err := p.inheritMemory(); err != nil {
		return err
	}
	if p.open, err = openFiles(p.pid); err != nil {
		return err
	}
	// From here on only the first thread is made to do anything. If somebody
	// else kills the process, whoever waits for it shall know.
	p.reaped = make(chan struct{})
	go func() {
		defer close(p.reaped)
		reap(p.stopped)
	}()
	return nil
}

// restInterval is how long a process that was found busy may go on.
const restInterval = 10 * time.Millisecond

// seizeAtRest stops all threads at a moment at which all of them wait.
func (p *Parent) seizeAtRest(ctx context.Context) (err error) {
	for {
		if p.stopped, err = seizeAll(p.pid); err != nil {
			return err
		}
		busy := 0
		for _, t := range p.stopped {
			var r unix.PtraceRegs
			if err := unix.PtraceGetRegs(t.tid, &r); err != nil {
				return os.NewSyscallError("ptrace getregs", err)
			}
			if !asleep(r) {
				busy = t.tid
			}
		}
		if busy == 0 {
			return nil
		}
		for _, t := range p.stopped {
			if err := t.detach(); err != nil {
				return err
			}
		}
		select {
		case <-time.After(restInterval):
		case <-ctx.Done():
			return fmt.Errorf("thread %d does not come to rest: %w", busy, context.Cause(ctx))
		}
	}
}

// seizeAll stops all threads of a process, the first one first. A thread that
// still runs may make others: it looks until there is none it does not know.
// After an error it returns those that it has stopped.
func seizeAll(pid int) ([]*thread, error) {
	var all []*thread
	known := map[int]bool{}
	for again := true; again; {
		again = false
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return all, err
		}
		ids := []int{pid}
		for _, e := range entries {
			id, err := strconv.Atoi(e.Name())
			if err != nil {
				return all, err
			}
			ids = append(ids, id)
		}
		for _, id := range ids {
			if known[id] {
				continue
			}
			t, err := seize(pid, id)
			if errors.Is(err, unix.ESRCH) {
				continue // it has just ended
			}
			if err != nil {
				return all, err
			}
			known[id], again = true, true
			all = append(all, t)
		}
	}
	if len(all) == 0 || all[0].tid != pid {
		return all, fmt.Errorf("process %d has ended", pid)
	}
	return all, nil
}

// inheritMemory undoes MADV_DONTFORK: what a fork does not copy would be
// missing in the child.
func (p *Parent) inheritMemory() error {
	ranges, err := notForked(p.pid)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if _, err := p.stopped[0].call(unix.SYS_MADVISE, r.start, r.end-r.start, unix.MADV_DOFORK); err != nil {
			return fmt.Errorf("madvise: %w", err)
		}
	}
	return nil
}

// Fork makes a child, which is a child of this process and must be waited for.
// It runs when Fork returns.
func (p *Parent) Fork(req Request) (*os.Process, error) {
	var child *os.Process
	err := p.do(func() error {
		pid, err := p.fork(req)
		if err != nil {
			return err
		}
		child, err = os.FindProcess(pid)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("fork process %d: %w", p.pid, err)
	}
	return child, nil
}

func (p *Parent) fork(req Request) (int, error) {
	pid, _, err := p.stopped[0].callMaking(unix.SYS_CLONE, processFlags, 0, 0, p.threads[0].tidAddress)
	made := []*thread{{tid: pid, first: true, gate: p.stopped[0].gate}}
	if err != nil {
		err = fmt.Errorf("clone: %w", err)
	} else {
		made, err = p.prepare(made, req)
	}
	if err != nil && pid != 0 {
		_ = unix.Kill(pid, unix.SIGKILL) // an error means that it has ended
		reap(made)
		for {
			if ws, err := wait4(pid); err != nil || !ws.Stopped() {
				break
			}
		}
	}
	return pid, err
}

// prepare makes of a process with one stopped thread one that goes on where
// its parent stopped. It returns all threads, after an error those there are.
func (p *Parent) prepare(made []*thread, req Request) ([]*thread, error) {
	main := made[0]
	if err := main.awaitStop(); err != nil {
		return made, err
	}
	makeOwn(main.tid, p.own)
	if err := p.replaceFiles(main, req.Files); err != nil {
		return made, err
	}
	if err := p.restrict(main, req); err != nil {
		return made, err
	}
	for _, s := range p.threads[1:] {
		tid, _, err := main.callMaking(unix.SYS_CLONE, threadFlags, s.regs.Rsp, s.tidAddress, s.tidAddress, s.regs.Fs_base)
		t := &thread{tid: tid, gate: main.gate}
		if tid != 0 {
			made = append(made, t)
		}
		if err != nil {
			return made, fmt.Errorf("clone thread: %w", err)
		}
		if err := t.awaitStop(); err != nil {
			return made, err
		}
		if err := p.setAltStack(t, s); err != nil {
			return made, fmt.Errorf("thread: %w", err)
		}
		if err := t.become(s); err != nil {
			return made, fmt.Errorf("thread: %w", err)
		}
	}
	if err := main.setRegs(p.threads[0].regs); err != nil {
		return made, err
	}
	for _, t := range made {
		if err := t.detach(); err != nil {
			return made, err
		}
	}
	return made, nil
}

// setAltStack gives a new thread the stack for signals of another. The first
// thread of a child has it from fork(2).
func (p *Parent) setAltStack(t *thread, s *state) error {
	if !s.hasAltStack() {
		return nil
	}
	if err := writeMemory(t.tid, p.page, s.altStack[:]); err != nil {
		return err
	}
	if _, err := t.call(unix.SYS_SIGALTSTACK, p.page, 0); err != nil {
		return fmt.Errorf("sigaltstack: %w", err)
	}
	return nil
}

// restrict sets who may trace the child and what it may ask of the kernel.
func (p *Parent) restrict(main *thread, req Request) error {
	if req.Tracer != 0 {
		// EINVAL: this kernel has no such restriction.
		if _, err := main.call(unix.SYS_PRCTL, unix.PR_SET_PTRACER, uint64(req.Tracer)); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("prctl set_ptracer: %w", err)
		}
	}
	if req.Hide {
		if _, err := main.call(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0); err != nil {
			return fmt.Errorf("prctl set_dumpable: %w", err)
		}
	}
	if !req.Confine {
		return nil
	}
	const header = 16 // struct sock_fprog
	filter := confinement(main.tid)
	var b bytes.Buffer
	binary.Write(&b, binary.LittleEndian, []uint64{uint64(len(filter)), p.page + header})
	binary.Write(&b, binary.LittleEndian, filter)
	if err := writeMemory(main.tid, p.page, b.Bytes()); err != nil {
		return err
	}
	if _, err := main.call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl no_new_privs: %w", err)
	}
	if _, err := main.call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, p.page); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}

// replaceFiles gives the child its own descriptors.
func (p *Parent) replaceFiles(main *thread, files map[int]*os.File) error {
	var numbers []int
	var sent []int
	for n, f := range files {
		was, ok := p.open[n]
		if !ok {
			return fmt.Errorf("descriptor %d is not open, so that it cannot be replaced", n)
		}
		// Whether it blocks is a property of the file, and the program relies
		// on what it has set. Fd may make it blocking, each time.
		fd := int(f.Fd())
		if err := unix.SetNonblock(fd, was.flags&unix.O_NONBLOCK != 0); err != nil {
			return os.NewSyscallError("fcntl", err)
		}
		numbers = append(numbers, n)
		sent = append(sent, fd)
	}
	got, err := p.pass(main, sent)
	if err != nil {
		return fmt.Errorf("pass descriptors: %w", err)
	}
	for i, n := range numbers {
		if err := replace(main, got[i], n); err != nil {
			return err
		}
	}
	for n, f := range p.open {
		if f.event == nil {
			continue
		}
		flags := f.flags & unix.EFD_NONBLOCK
		if f.event.semaphore {
			flags |= unix.EFD_SEMAPHORE
		}
		fd, err := main.call(unix.SYS_EVENTFD2, f.event.count, flags)
		if err != nil {
			return fmt.Errorf("eventfd: %w", err)
		}
		if err := replace(main, fd, n); err != nil {
			return err
		}
	}
	if _, err := main.call(unix.SYS_CLOSE, uint64(p.doorFD)); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// replace moves a descriptor of the thread's process over another.
func replace(t *thread, from uint64, to int) error {
	if _, err := t.call(unix.SYS_DUP3, from, uint64(to), unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("dup3: %w", err)
	}
	if _, err := t.call(unix.SYS_CLOSE, from); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// pass sends descriptors of ours through the door and returns their numbers in
// the thread's process.
func (p *Parent) pass(t *thread, fds []int) ([]uint64, error) {
	if len(fds) == 0 {
		return nil, nil
	}
	if err := unix.Sendmsg(int(p.door.Fd()), []byte{0}, unix.UnixRights(fds...), nil, 0); err != nil {
		return nil, os.NewSyscallError("sendmsg", err)
	}
	// One page: the header of the message, its only byte, the control data.
	const vector, data, control = 64, 96, 128
	size := unix.CmsgSpace(4 * len(fds))
	b := make([]byte, control+size)
	put := func(at int, v uint64) { binary.LittleEndian.PutUint64(b[at:], v) }
	var header unix.Msghdr
	put(int(unsafe.Offsetof(header.Iov)), p.page+vector)
	put(int(unsafe.Offsetof(header.Iovlen)), 1)
	put(int(unsafe.Offsetof(header.Control)), p.page+control)
	put(int(unsafe.Offsetof(header.Controllen)), uint64(size))
	put(vector, p.page+data)
	put(vector+8, 1)
	if err := writeMemory(t.tid, p.page, b); err != nil {
		return nil, err
	}
	if _, err := t.call(unix.SYS_RECVMSG, uint64(p.doorFD), p.page, unix.MSG_CMSG_CLOEXEC); err != nil {
		return nil, fmt.Errorf("recvmsg: %w", err)
	}
	if err := readMemory(t.tid, p.page, b); err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(b[control:])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("recvmsg: %d control messages: %w", len(messages), err)
	}
	got, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(got) != len(fds) {
		return nil, fmt.Errorf("recvmsg: %d descriptors of %d: %w", len(got), len(fds), err)
	}
	numbers := make([]uint64, len(got))
	for i, fd := range got {
		numbers[i] = uint64(fd)
	}
	return numbers, nil
}
