package procfork

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of ptrace(2) and rseq(2) that package unix lacks.
const (
	ptraceGetSigmask = 0x420a
	ptraceSetSigmask = 0x420b
	ptraceGetRseq    = 0x420f
	prGetTidAddress  = 40
	syscallStop      = unix.SIGTRAP | 0x80 // with PTRACE_O_TRACESYSGOOD
)

// Results of a system call that was interrupted: the kernel's own, which user
// space never sees because they make it call again (include/linux/errno.h).
const (
	errRestartSys      = 512
	errRestartNoIntr   = 513
	errRestartNoHand   = 514
	errRestartRestart  = 516
	syscallInstruction = 2 // bytes
)

// traceOptions apply to every thread and, by inheritance, to all that they
// make. The kernel kills what is traced if the tracer ends.
const traceOptions = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL

// thread is one stopped thread of a process that is traced. All methods must be
// called on the operating system's thread that traces it (ptrace(2)).
type thread struct {
	tid   int
	first bool   // of its process, whose end is its own
	gate  uint64 // address of a syscall instruction
}

// seize stops a thread of any process. The error is ESRCH if it has ended.
func seize(pid, tid int) (*thread, error) {
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, traceOptions, 0, 0); errno != 0 {
		return nil, os.NewSyscallError("ptrace seize", errno)
	}
	// ESRCH: it ends just now, which there is still to be waited for.
	if err := unix.PtraceInterrupt(tid); err != nil && !errors.Is(err, unix.ESRCH) {
		return nil, os.NewSyscallError("ptrace interrupt", err)
	}
	t := &thread{tid: tid, first: tid == pid}
	return t, t.awaitStop()
}

// wait waits for the thread's next stop. The error is ESRCH if it has ended,
// which stays to be seen by whoever waits for the process if it is the first.
func (t *thread) wait() (unix.WaitStatus, error) {
	if t.first {
		if err := t.peek(); err != nil {
			return 0, err
		}
	}
	ws, err := wait4(t.tid)
	if err == nil && !ws.Stopped() {
		err = t.errEnded()
	}
	return ws, err
}

// peek waits like wait, but takes nothing.
func (t *thread) peek() error {
	const cldDumped = 3 // waitid(2): this and less is an end
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, t.tid, &info, unix.WEXITED|unix.WNOWAIT|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("waitid", err)
		case info.Code <= cldDumped:
			return t.errEnded()
		}
		return nil
	}
}

func (t *thread) errEnded() error { return fmt.Errorf("thread %d has ended: %w", t.tid, unix.ESRCH) }

// wait4 waits for the next stop, or the end, of a thread or process.
func wait4(id int) (ws unix.WaitStatus, err error) {
	for {
		if _, err = unix.Wait4(id, &ws, unix.WALL, nil); !errors.Is(err, unix.EINTR) {
			return ws, os.NewSyscallError("wait4", err)
		}
	}
}

// awaitStop waits for the stop that PTRACE_INTERRUPT or the birth of a thread
// makes. Other stops on the way are passed, with their signals.
func (t *thread) awaitStop() error {
	for {
		ws, err := t.wait()
		if err != nil {
			return err
		}
		if ws>>16 == unix.PTRACE_EVENT_STOP {
			return nil
		}
		if err := unix.PtraceCont(t.tid, int(ws.StopSignal())); err != nil {
			return os.NewSyscallError("ptrace cont", err)
		}
	}
}

// state is what makes up a thread besides the memory of its process.
type state struct {
	regs       unix.PtraceRegs
	extended   []byte // XSAVE area: floating point and vector registers
	signalMask uint64
	tidAddress uint64 // where the C library keeps the thread's id
	robustList uint64 // get_robust_list(2)
	robustSize uint64
	rseq       rseqConfiguration
	altStack   [altStackBytes]byte // sigaltstack(2)
}

// altStackBytes is the size of stack_t, altStackFlags where its flags are.
const (
	altStackBytes = 24
	altStackFlags = 8
	ssDisable     = 2
)

// hasAltStack reports whether the thread handles signals on a stack of their own.
func (s *state) hasAltStack() bool {
	return binary.LittleEndian.Uint32(s.altStack[altStackFlags:])&ssDisable == 0
}

// rseqConfiguration is struct ptrace_rseq_configuration.
type rseqConfiguration struct {
	Pointer         uint64
	Size, Signature uint32
	Flags, _        uint32
}

// asleep reports whether the registers are those of a thread that was stopped
// while it waited in a system call, and so knows of its own where it is: it is
// not in the middle of something, such as a lock that knows its owner by an id
// which is another in the child.
func asleep(r unix.PtraceRegs) bool {
	if int64(r.Orig_rax) < 0 {
		return false
	}
	switch -int64(r.Rax) {
	case errRestartSys, errRestartNoIntr, errRestartNoHand, errRestartRestart, int64(unix.EINTR):
		return true
	}
	return false
}

// detach lets the thread go on as if nothing had been.
func (t *thread) detach() error {
	return os.NewSyscallError("ptrace detach", unix.PtraceDetach(t.tid))
}

// state reads the state with which the thread can go on elsewhere.
func (t *thread) state() (*state, error) {
	s := &state{extended: make([]byte, 16<<10)}
	if err := unix.PtraceGetRegs(t.tid, &s.regs); err != nil {
		return nil, os.NewSyscallError("ptrace getregs", err)
	}
	s.regs = resumed(s.regs)
	area := unix.Iovec{Base: &s.extended[0], Len: uint64(len(s.extended))}
	if err := t.ptrace(unix.PTRACE_GETREGSET, unix.NT_X86_XSTATE, unsafe.Pointer(&area)); err != nil {
		return nil, err
	}
	s.extended = s.extended[:area.Len]
	if err := t.ptrace(ptraceGetSigmask, unsafe.Sizeof(s.signalMask), unsafe.Pointer(&s.signalMask)); err != nil {
		return nil, err
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_GET_ROBUST_LIST, uintptr(t.tid),
		uintptr(unsafe.Pointer(&s.robustList)), uintptr(unsafe.Pointer(&s.robustSize))); errno != 0 {
		return nil, os.NewSyscallError("get_robust_list", errno)
	}
	// Kernels before 5.13 cannot tell, and then its use is a hint gone stale.
	_ = t.ptrace(ptraceGetRseq, unsafe.Sizeof(s.rseq), unsafe.Pointer(&s.rseq))
	return s, nil
}

// resumed is what the kernel would make of the registers before user space goes
// on: a system call that was interrupted is made again, or ends with EINTR if
// only the kernel knows what is left of it.
func resumed(r unix.PtraceRegs) unix.PtraceRegs {
	if int64(r.Orig_rax) < 0 {
		return r
	}
	switch -int64(r.Rax) {
	case errRestartSys, errRestartNoIntr, errRestartNoHand:
		r.Rax = r.Orig_rax
		r.Rip -= syscallInstruction
	case errRestartRestart:
		errno := int64(unix.EINTR)
		r.Rax = uint64(-errno)
	}
	r.Orig_rax = ^uint64(0)
	return r
}

// become gives a new thread the state of another.
func (t *thread) become(s *state) error {
	if s.robustList != 0 {
		if _, err := t.call(unix.SYS_SET_ROBUST_LIST, s.robustList, s.robustSize); err != nil {
			return fmt.Errorf("set_robust_list: %w", err)
		}
	}
	if s.rseq.Pointer != 0 {
		if _, err := t.call(unix.SYS_RSEQ, s.rseq.Pointer, uint64(s.rseq.Size), 0, uint64(s.rseq.Signature)); err != nil {
			return fmt.Errorf("rseq: %w", err)
		}
	}
	area := unix.Iovec{Base: &s.extended[0], Len: uint64(len(s.extended))}
	if err := t.ptrace(unix.PTRACE_SETREGSET, unix.NT_X86_XSTATE, unsafe.Pointer(&area)); err != nil {
		return err
	}
	if err := t.ptrace(ptraceSetSigmask, unsafe.Sizeof(s.signalMask), unsafe.Pointer(&s.signalMask)); err != nil {
		return err
	}
	return t.setRegs(s.regs)
}

func (t *thread) setRegs(r unix.PtraceRegs) error {
	return os.NewSyscallError("ptrace setregs", unix.PtraceSetRegs(t.tid, &r))
}

func (t *thread) ptrace(request int, addr uintptr, data unsafe.Pointer) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(t.tid), addr, uintptr(data), 0, 0)
	if errno != 0 {
		return fmt.Errorf("ptrace %#x: %w", request, errno)
	}
	return nil
}

// call has the thread make a system call and returns its result. Its registers
// are those of the call afterwards.
func (t *thread) call(number uint64, args ...uint64) (uint64, error) {
	_, result, err := t.callMaking(number, args...)
	return result, err
}

// callMaking is call for a system call that may make a thread or process, whose
// id it returns besides, also after an error; it is traced and about to stop.
func (t *thread) callMaking(number uint64, args ...uint64) (made int, result uint64, err error) {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(t.tid, &r); err != nil {
		return 0, 0, os.NewSyscallError("ptrace getregs", err)
	}
	r.Rip, r.Rax, r.Orig_rax = t.gate, number, ^uint64(0)
	for i, to := range []*uint64{&r.Rdi, &r.Rsi, &r.Rdx, &r.R10, &r.R8, &r.R9} {
		if i < len(args) {
			*to = args[i]
		}
	}
	if err := t.setRegs(r); err != nil {
		return 0, 0, err
	}
	for stops := 0; stops < 2; {
		if err := unix.PtraceSyscall(t.tid, 0); err != nil {
			return made, 0, os.NewSyscallError("ptrace syscall", err)
		}
		ws, err := t.wait()
		if err != nil {
			return made, 0, err
		}
		switch {
		case ws.StopSignal() == syscallStop:
			stops++
		case ws>>16 == unix.PTRACE_EVENT_FORK, ws>>16 == unix.PTRACE_EVENT_CLONE:
			id, err := unix.PtraceGetEventMsg(t.tid)
			if err != nil {
				return made, 0, os.NewSyscallError("ptrace geteventmsg", err)
			}
			made = int(id)
		case ws>>16 == 0:
			return made, 0, fmt.Errorf("thread %d got a signal: %v", t.tid, ws.StopSignal())
		}
	}
	if err := unix.PtraceGetRegs(t.tid, &r); err != nil {
		return made, 0, os.NewSyscallError("ptrace getregs", err)
	}
	if n := -int64(r.Rax); n > 0 && n < 4096 {
		return made, 0, unix.Errno(n)
	}
	return made, r.Rax, nil
}
