package spawn

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"skerry.dev/skerry/internal/guest/toolbox/process"
)

// Spawner starts each process in a control group of its own below dir, a
// cgroup v2 directory with the controllers enabled for its children.
type Spawner struct {
	dir    string
	reaper *Reaper

	mu       sync.Mutex
	released map[string]bool // guarded by mu; groups to remove once empty
}

// New returns a Spawner and the Reaper that it needs to be run.
func New(dir string) (*Spawner, *Reaper) {
	s := &Spawner{dir: dir, released: make(map[string]bool)}
	s.reaper = NewReaper(s.removeEmpty)
	return s, s.reaper
}

// Start implements process.Spawner.
func (s *Spawner) Start(spec *process.Spec) (process.Child, error) {
	if spec.ID == "" || filepath.Base(spec.ID) != spec.ID || spec.ID[0] == '.' {
		return nil, fmt.Errorf("process id %q is no name", spec.ID)
	}
	dir := filepath.Join(s.dir, spec.ID)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make control group: %w", err)
	}
	pid, status, err := s.start(spec, dir)
	if err != nil {
		_ = os.Remove(dir) // the error of the start is the one to report
		return nil, err
	}
	return &child{spawner: s, group: group(dir), pid: pid, status: status}, nil
}

func (s *Spawner) start(spec *process.Spec, dir string) (int, <-chan syscall.WaitStatus, error) {
	fd, err := os.Open(dir)
	if err != nil {
		return 0, nil, fmt.Errorf("open control group: %w", err)
	}
	defer fd.Close()
	attr := &syscall.ProcAttr{
		Dir: spec.Dir,
		Env: spec.Env,
		Sys: &syscall.SysProcAttr{
			Setsid:      true,
			Setctty:     spec.Terminal,
			Ctty:        0,
			Credential:  &syscall.Credential{Uid: spec.UID, Gid: spec.GID, Groups: spec.Groups},
			UseCgroupFD: true,
			CgroupFD:    int(fd.Fd()),
		},
	}
	for _, f := range spec.Files {
		attr.Files = append(attr.Files, f.Fd())
	}
	return s.reaper.start(spec.Path, spec.Argv, attr)
}

// release removes a group now, or when its last process has been reaped.
func (s *Spawner) release(dir string) {
	s.mu.Lock()
	s.released[dir] = true
	s.mu.Unlock()
	s.removeEmpty()
}

func (s *Spawner) removeEmpty() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for dir := range s.released {
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
	pid     int
	status  <-chan syscall.WaitStatus
}

func (c *child) PID() int { return c.pid }

func (c *child) Wait() (process.Status, error) {
	status := <-c.status
	return process.Status{Wait: status, OOMKilled: c.group.oomKilled()}, nil
}

func (c *child) Signal(sig syscall.Signal) error { return c.spawner.reaper.signalGroup(c.pid, sig) }

func (c *child) SignalAll(sig syscall.Signal) error { return c.group.signal(sig) }

func (c *child) Empty() bool { return c.group.empty() }

func (c *child) Release() { c.spawner.release(string(c.group)) }
