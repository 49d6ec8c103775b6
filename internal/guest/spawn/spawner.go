package spawn

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/guest/toolbox/process"
)

// maxIdle is how many control groups are kept for the next processes. Making
// and removing one costs the kernel more than the process itself does.
const maxIdle = 16

// Spawner starts each process in a control group of its own below dir, a
// cgroup v2 directory with the controllers enabled for its children.
type Spawner struct {
	dir    string
	reaper *Reaper

	mu       sync.Mutex
	released map[string]bool // guarded by mu; groups that are free once empty
	idle     []string        // guarded by mu; empty groups, at most maxIdle
	made     int             // guarded by mu; numbers the groups
}

// New returns a Spawner and the Reaper that it needs to be run.
func New(dir string) (*Spawner, *Reaper) {
	s := &Spawner{dir: dir, released: make(map[string]bool)}
	s.reaper = NewReaper(s.freeEmpty)
	return s, s.reaper
}

// Start implements process.Spawner.
func (s *Spawner) Start(spec *process.Spec) (process.Child, error) {
	dir, err := s.takeGroup()
	if err != nil {
		return nil, fmt.Errorf("make control group: %w", err)
	}
	oomKills := group(dir).oomKills()
	pid, status, err := s.start(spec, dir)
	if err != nil {
		s.release(dir)
		return nil, err
	}
	return &child{spawner: s, group: group(dir), oomKills: oomKills, pid: pid, status: status}, nil
}

// takeGroup returns an empty control group that nobody else has.
func (s *Spawner) takeGroup() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		dir := s.idle[n-1]
		s.idle = s.idle[:n-1]
		return dir, nil
	}
	s.made++
	dir := fmt.Sprintf("%s/prc_%d", s.dir, s.made)
	return dir, os.Mkdir(dir, 0o755)
}

func (s *Spawner) start(spec *process.Spec, dir string) (int, <-chan syscall.WaitStatus, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("open control group: %w", err)
	}
	defer unix.Close(fd)
	attr := &syscall.ProcAttr{
		Dir: spec.Dir,
		Env: spec.Env,
		Sys: &syscall.SysProcAttr{
			Setsid:      true,
			Setctty:     spec.Terminal,
			Ctty:        0,
			Credential:  &syscall.Credential{Uid: spec.UID, Gid: spec.GID, Groups: spec.Groups},
			UseCgroupFD: true,
			CgroupFD:    fd,
		},
	}
	for _, f := range spec.Files {
		attr.Files = append(attr.Files, f.Fd())
	}
	return s.reaper.start(spec.Path, spec.Argv, attr)
}

// release frees a group now, or when its last process has been reaped.
func (s *Spawner) release(dir string) {
	s.mu.Lock()
	s.released[dir] = true
	s.mu.Unlock()
	s.freeEmpty()
}

// freeEmpty keeps or removes the released groups that have become empty. One
// that has groups in it was put to other uses by its processes and is removed.
func (s *Spawner) freeEmpty() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for dir := range s.released {
		if len(s.idle) < maxIdle && group(dir).reusable() {
			s.idle = append(s.idle, dir)
			delete(s.released, dir)
			continue
		}
		err := group(dir).remove()
		if err == nil || errors.Is(err, os.ErrNotExist) {
			delete(s.released, dir)
		}
	}
}

// child implements process.Child.
type child struct {
	spawner *Spawner
	group   group
	// oomKills is how many there were in the group before.
	oomKills int
	pid      int
	status   <-chan syscall.WaitStatus
}

func (c *child) PID() int { return c.pid }

func (c *child) Wait() (process.Status, error) {
	status := <-c.status
	return process.Status{Wait: status, OOMKilled: c.group.oomKills() > c.oomKills}, nil
}

func (c *child) Signal(sig syscall.Signal) error { return c.spawner.reaper.signalGroup(c.pid, sig) }

func (c *child) SignalAll(sig syscall.Signal) error { return c.group.signal(sig) }

func (c *child) Empty() bool { return c.group.empty() }

func (c *child) Release() { c.spawner.release(string(c.group)) }
