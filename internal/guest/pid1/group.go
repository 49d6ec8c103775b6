package pid1

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/guestapi"
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
	highMiB   int64 // what slows them down, 0 if nothing does

	waiting  sync.Mutex // held by who waits for that
	seenHigh int64      // how often it had happened at the last answer; guarded by waiting
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

// highMemoryMiB is what user processes may hold before they are slowed down,
// where the host can plug more. The kernel makes them wait the longer the further
// they go beyond it (memory.high in "Control Group v2", Documentation/admin-guide
// of Linux): at 2 percent for tenths of a second, at 6 percent for seconds. So
// one eighth stops any of them.
func highMemoryMiB(limitMiB int64) int64 { return limitMiB - limitMiB/8 }

// setMemory limits the user's processes together, in a machine of memMiB. When
// more can be plugged they are slowed down first.
func (g *groups) setMemory(memMiB int64, fixed bool) error {
	limit, high := guestapi.UserMemoryMiB(memMiB), int64(0)
	if limit <= 0 {
		return fmt.Errorf("memory of %d MiB is too small", memMiB)
	}
	if !fixed {
		high = highMemoryMiB(limit)
	}
	// The usual sandbox has the limits that were captured.
	if limit != g.memoryMiB {
		if err := write(g.user, "memory.max", strconv.FormatInt(limit<<20, 10)); err != nil {
			return err
		}
		g.memoryMiB = limit
	}
	if high != g.highMiB {
		text := "max"
		if high > 0 {
			text = strconv.FormatInt(high<<20, 10)
		}
		if err := write(g.user, "memory.high", text); err != nil {
			return err
		}
		g.highMiB = high
	}
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
