package pid1

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The control groups. The agent moves into a namespace whose root is "user", so
// that the sandbox sees its own part as the whole and containers started in it
// stay below its limits:
//
//	/agent       PID 1
//	/user        limits; the sandbox's /sys/fs/cgroup
//	/user/prc_…  one per process started through the toolbox
//
// PID 1 needs no oom_score_adj: the kernel's OOM killer never picks the global
// init (oom_unkillable_task), and children would inherit it.
const (
	cgroupRoot = "/cg"
	cgroupUser = "/sys/fs/cgroup"
)

// groups keeps the limits' directory open: its path is gone after the switch
// to the sandbox's root.
type groups struct {
	user      *os.Root
	memoryMiB int64 // limit of the user's processes
}

func (s *System) makeGroups(context.Context) error {
	if err := (mount{"cgroup2", cgroupRoot, "cgroup2", 0, ""}).do(); err != nil {
		return err
	}
	root, err := os.OpenRoot(cgroupRoot)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range []string{"agent", "user"} {
		if err := root.Mkdir(name, 0o755); err != nil {
			return err
		}
	}
	// The namespace's root is the group its creator is in, for all threads.
	if err := write(root, "user/cgroup.procs", "1"); err != nil {
		return err
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP, 0, 0); errno != 0 {
		return fmt.Errorf("unshare: %w", errno)
	}
	if err := write(root, "agent/cgroup.procs", "1"); err != nil {
		return err
	}
	if err := enableControllers(root, "."); err != nil {
		return err
	}
	if err := enableControllers(root, "user"); err != nil {
		return err
	}
	// A busy sandbox must not starve the agent.
	if err := write(root, "agent/cpu.weight", "1000"); err != nil {
		return err
	}
	user, err := root.OpenRoot("user")
	if err != nil {
		return err
	}
	s.groups = &groups{user: user}
	if err := s.groups.limitProcesses(); err != nil {
		return err
	}
	const secure = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	return mount{"cgroup2", cgroupUser, "cgroup2", secure, "nsdelegate,memory_recursiveprot"}.do()
}

// enableControllers enables those that exist of the ones the agent and Docker
// use, for the children of dir.
func enableControllers(root *os.Root, dir string) error {
	have, err := root.ReadFile(dir + "/cgroup.controllers")
	if err != nil {
		return err
	}
	var enable []string
	for name := range strings.FieldsSeq(string(have)) {
		switch name {
		case "cpuset", "cpu", "io", "memory", "pids":
			enable = append(enable, "+"+name)
		}
	}
	return write(root, dir+"/cgroup.subtree_control", strings.Join(enable, " "))
}

func write(root *os.Root, name, text string) error {
	f, err := root.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// userMemoryMiB is the limit of the user's processes in a machine of memMiB.
// The kernel's text, its tables (1/64 of memory for page descriptors) and the
// agent need the rest. The limit must be below what is available to the user
// when nothing runs (MemAvailable is 81 MiB less than 512): a machine that is
// itself out of memory looks for one victim after the other and comes to
// nothing else, the agent's answers included.
func userMemoryMiB(memMiB int64) int64 { return memMiB - memMiB/64 - 96 }

// setMemory limits the user's processes together.
func (g *groups) setMemory(memMiB int64) error {
	limit := userMemoryMiB(memMiB)
	if limit <= 0 {
		return fmt.Errorf("memory of %d MiB is too small", memMiB)
	}
	if limit == g.memoryMiB {
		return nil // as it was captured
	}
	if err := write(g.user, "memory.max", strconv.FormatInt(limit<<20, 10)); err != nil {
		return err
	}
	g.memoryMiB = limit
	return nil
}

// limitProcesses keeps a quarter of the kernel's threads out of reach of fork
// bombs.
func (g *groups) limitProcesses() error {
	text, err := os.ReadFile("/proc/sys/kernel/threads-max")
	if err != nil {
		return err
	}
	threads, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	const pidMax = 32768 // the kernel's default pid_max
	return write(g.user, "pids.max", strconv.Itoa(min(threads, pidMax)*3/4))
}
