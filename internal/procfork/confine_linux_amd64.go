package procfork

import "golang.org/x/sys/unix"

// x32Bit marks system calls of the x32 ABI, which has the same architecture.
const x32Bit = 0x40000000

// confinement is the seccomp(2) filter of a child with this id that may neither
// make processes nor reach others. What is forbidden fails with EPERM; clone3
// does as if it were not there, so that a C library makes threads with clone,
// whose flags a filter can see.
func confinement(pid int) []unix.SockFilter {
	const ( // of struct seccomp_data; of arguments the lower half
		numberAt = 0
		archAt   = 4
		firstAt  = 16
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
	f := []unix.SockFilter{
		load(archAt), jump(unix.BPF_JEQ, unix.AUDIT_ARCH_X86_64, 1, 0), result(fatal),
		load(numberAt), jump(unix.BPF_JGE, x32Bit, 0, 1), result(fatal),
	}
	for _, nr := range forbidden {
		f = append(f, jump(unix.BPF_JEQ, nr, 0, 1), result(eperm))
	}
	return append(f,
		jump(unix.BPF_JEQ, unix.SYS_CLONE3, 0, 1), result(unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS)),
		jump(unix.BPF_JEQ, unix.SYS_CLONE, 0, 3), load(firstAt), jump(unix.BPF_JSET, unix.CLONE_THREAD, 1, 0), result(eperm),
		load(numberAt),
		jump(unix.BPF_JEQ, unix.SYS_TGKILL, 0, 3), load(firstAt), jump(unix.BPF_JEQ, uint32(pid), 1, 0), result(eperm),
		result(allow))
}
