package app

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/programs"
	"skerry.dev/skerry/internal/shim"
)

// network is the part of the configuration that every shim gets.
func (c *Config) network() shim.NetworkSpec { return shim.NetworkSpec{AllowPrefixes: c.AllowEgress} }

// shimProgram makes the program of all shims ready to be executed, by the
// children of this process, until Close. It is a file in memory, which nobody
// can replace or remove, and which no file system can forbid to execute.
func (s *Server) shimProgram() (path string, err error) {
	elf, err := programs.Shim(runtime.GOARCH)
	if err != nil {
		return "", skerry.Errorf(skerry.CodeUnavailable, "%w", err)
	}
	f, err := newProgram(shim.ProgramName, elf)
	if err != nil {
		return "", skerry.Errorf(skerry.CodeUnavailable, "%w", err)
	}
	s.onClose(f.Close)
	// By the number of this process: what a child has at the same number
	// depends on what it is handed.
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()), nil
}

// newProgram makes an unchangeable file in memory that can be executed
// (memfd_create(2)).
func newProgram(name string, elf []byte) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3, where each can be executed
		fd, err = unix.MemfdCreate(name, flags)
	}
	if errors.Is(err, unix.EACCES) {
		return nil, errors.New("programs in memory are forbidden on this host: sudo sysctl vm.memfd_noexec=1")
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(elf)
	if err == nil {
		err = f.Chmod(0o500)
	}
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
