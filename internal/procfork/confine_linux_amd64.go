package procfork

import (
	"slices"

	"golang.org/x/sys/unix"
)

// x32Bit marks system calls of the x32 ABI, which has the same architecture.
const x32Bit = 0x40000000

// Requests of ioctl(2) for sockets that do what F_SETOWN does (asm/sockios.h).
const (
	fioSetOwn   = 0x8901
	siocSetPgrp = 0x8902
)

// confinement is the seccomp(2) filter of a child with this id that may neither
// make processes nor reach others. What is forbidden fails with EPERM; clone3
// does as if it were not there, so that a C library makes threads with clone,
// whose flags a filter can see.
func confinement(pid int) []unix.SockFilter {
	const ( // of struct seccomp_data; of arguments the lower half
		numberAt = 0
		archAt   = 4
		firstAt  = 16
		secondAt = 24
	)
	forbidden := []uint32{
		unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_EXECVE, unix.SYS_EXECVEAT,
		unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE,
		unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO,
		unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_SEND_SIGNAL,
	}
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	// A jump skips so many instructions.
	jump := func(test uint16, k uint32, yes, no int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | test, K: k, Jt: uint8(yes), Jf: uint8(no)}
	}
	result := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	const (
		allow = unix.SECCOMP_RET_ALLOW
		eperm = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
		fatal = unix.SECCOMP_RET_KILL_PROCESS
	)
	// only lets a call pass whose argument passes the test.
	only := func(number, at uint32, test uint16, k uint32) []unix.SockFilter {
		return []unix.SockFilter{jump(unix.BPF_JEQ, number, 0, 4),
			load(at), jump(test, k, 1, 0), result(eperm), load(numberAt)}
	}
	// but forbids a call with one value of its second argument.
	but := func(number, value uint32) []unix.SockFilter {
		return []unix.SockFilter{jump(unix.BPF_JEQ, number, 0, 4),
			load(secondAt), jump(unix.BPF_JEQ, value, 0, 1), result(eperm), load(numberAt)}
	}
	f := []unix.SockFilter{
		load(archAt), jump(unix.BPF_JEQ, unix.AUDIT_ARCH_X86_64, 1, 0), result(fatal),
		load(numberAt), jump(unix.BPF_JGE, x32Bit, 0, 1), result(fatal),
	}
	for _, nr := range forbidden {
		f = append(f, jump(unix.BPF_JEQ, nr, 0, 1), result(eperm))
	}
	return slices.Concat(f,
		[]unix.SockFilter{jump(unix.BPF_JEQ, unix.SYS_CLONE3, 0, 1), result(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS))},
		only(unix.SYS_CLONE, firstAt, unix.BPF_JSET, unix.CLONE_THREAD),
		only(unix.SYS_TGKILL, firstAt, unix.BPF_JEQ, uint32(pid)),
		only(unix.SYS_PRLIMIT64, firstAt, unix.BPF_JEQ, 0), // of the caller
		// Input would be told of to another, with any signal.
		but(unix.SYS_FCNTL, unix.F_SETOWN), but(unix.SYS_FCNTL, unix.F_SETOWN_EX), but(unix.SYS_FCNTL, unix.F_SETSIG),
		but(unix.SYS_IOCTL, fioSetOwn), but(unix.SYS_IOCTL, siocSetPgrp),
		[]unix.SockFilter{result(allow)})
}
