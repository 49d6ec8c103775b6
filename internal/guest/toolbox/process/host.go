package process

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Host is the Spawner of an ordinary host, without control groups. Its groups
// are what /proc tells: the descendants of a process and the sessions they
// lead. That is weaker than a control group: a descendant is lost that has left
// the session and lost its parent before the first look, and one that forks
// faster than /proc can be read can escape.
type Host struct{}

// Start implements Spawner.
func (Host) Start(spec *Spec) (Child, error) {
	attr := &os.ProcAttr{
		Dir: spec.Dir, Env: spec.Env, Files: spec.Files[:],
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: spec.Terminal},
	}
	switch euid := os.Geteuid(); {
	case euid == 0:
		attr.Sys.Credential = &syscall.Credential{Uid: spec.UID, Gid: spec.GID, Groups: spec.Groups}
	case uint32(euid) != spec.UID:
		return nil, &os.PathError{Op: "setuid", Path: spec.Path, Err: syscall.EPERM}
	}
	process, err := os.StartProcess(spec.Path, spec.Argv, attr)
	if err != nil {
		return nil, err
	}
	return &hostChild{process: process, pid: process.Pid, members: map[int]uint64{}}, nil
}

type hostChild struct {
	process *os.Process
	pid     int

	mu      sync.Mutex
	reaped  bool
	members map[int]uint64 // descendants seen so far: pid to start time
}

func (c *hostChild) PID() int { return c.pid }

func (c *hostChild) Wait() (Status, error) {
	// Wait without reaping first: until then the number is ours, and Signal
	// cannot hit a stranger.
	for {
		err := unix.Waitid(unix.P_PID, c.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return Status{}, os.NewSyscallError("waitid", err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scanLocked() // while descendants still have their parent
	c.reaped = true
	state, err := c.process.Wait()
	if err != nil {
		return Status{}, err
	}
	return Status{Wait: state.Sys().(syscall.WaitStatus)}, nil
}

func (c *hostChild) Signal(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped {
		return os.ErrProcessDone
	}
	return os.NewSyscallError("kill", syscall.Kill(-c.pid, sig))
}

func (c *hostChild) SignalAll(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	rounds := 1
	if sig == syscall.SIGKILL {
		rounds = 100 // until a look finds nobody
	}
	for range rounds {
		c.scanLocked()
		if len(c.members) == 0 {
			return nil
		}
		for pid := range c.members {
			// ESRCH: it ended by itself.
			if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
				return os.NewSyscallError("kill", err)
			}
		}
	}
	return nil
}

func (c *hostChild) Empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scanLocked()
	return len(c.members) == 0
}

func (c *hostChild) Release() {}

// scanLocked brings members up to date: the living among the process, those
// seen before, their children, and whoever is in a session one of them leads.
func (c *hostChild) scanLocked() {
	table := readProcesses()
	for pid, start := range c.members {
		if table[pid].start != start {
			delete(c.members, pid)
		}
	}
	if p, ok := table[c.pid]; ok && !c.reaped {
		c.members[c.pid] = p.start
	}
	for grown := true; grown; {
		grown = false
		for pid, p := range table {
			if _, ok := c.members[pid]; ok {
				continue
			}
			_, child := c.members[p.parent]
			_, session := c.members[p.session]
			if child || session || p.session == c.pid {
				c.members[pid] = p.start
				grown = true
			}
		}
	}
}

type procStat struct {
	parent, session int
	start           uint64 // clock ticks since boot; with the pid it names a process for ever
}

// readProcesses returns the living processes, zombies left out.
func readProcesses() map[int]procStat {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	table := make(map[int]procStat, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		if p, ok := parseStat(text); ok {
			table[pid] = p
		}
	}
	return table
}

// parseStat reads /proc/PID/stat, proc_pid_stat(5). The program's name, in
// parentheses, may hold anything.
func parseStat(text []byte) (procStat, bool) {
	i := bytes.LastIndexByte(text, ')')
	if i < 0 {
		return procStat{}, false
	}
	f := strings.Fields(string(text[i+1:])) // f[0] is field 3
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return procStat{}, false
	}
	parent, err1 := strconv.Atoi(f[1])
	session, err2 := strconv.Atoi(f[3])
	start, err3 := strconv.ParseUint(f[19], 10, 64)
	return procStat{parent, session, start}, err1 == nil && err2 == nil && err3 == nil
}
