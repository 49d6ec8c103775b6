package spawn

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// group is the directory of a control group (cgroup v2, Linux
// Documentation/admin-guide/cgroup-v2.rst).
type group string

func (g group) file(name string) string { return string(g) + "/" + name }

// KillAll kills all processes of the control group dir and of those below it.
func KillAll(dir string) error { return group(dir).signal(syscall.SIGKILL) }

// SignalAll signals each process of the control group dir and those below it.
func SignalAll(dir string, sig syscall.Signal) error { return group(dir).signal(sig) }

// Empty reports whether the control group dir and those below it have no
// process.
func Empty(dir string) bool { return group(dir).empty() }

func (g group) signal(sig syscall.Signal) error {
	if sig == syscall.SIGKILL {
		// The kernel kills new forks too, which a loop here could not.
		if err := os.WriteFile(g.file("cgroup.kill"), []byte("1"), 0); err != nil {
			return fmt.Errorf("kill control group: %w", err)
		}
		return nil
	}
	pids, err := g.pids()
	if err != nil {
		return fmt.Errorf("list control group: %w", err)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal process %d: %w", pid, err)
		}
	}
	return nil
}

// pids lists the processes of the group and of those below it.
func (g group) pids() ([]int, error) {
	var pids []int
	err := filepath.WalkDir(string(g), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a nested group was removed
		}
		if err != nil || !d.IsDir() {
			return err
		}
		list, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return ignoreGone(err)
		}
		for field := range strings.FieldsSeq(string(list)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return err
			}
			pids = append(pids, pid)
		}
		return nil
	})
	return pids, err
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return nil
	}
	return err
}

// count returns the value of a key of a flat keyed file, 0 if there is none.
func (g group) count(name, key string) int {
	text, err := g.read(name)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, key+" "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err == nil {
				return n
			}
		}
	}
	return 0
}

// read returns a file of a few short lines. It is read for each process, so
// without os.File, which makes nine system calls of these three: the kernel lets
// these files be polled.
func (g group) read(name string) (string, error) {
	fd, err := unix.Open(g.file(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var buf [256]byte
	n, err := unix.Read(fd, buf[:])
	return string(buf[:max(n, 0)]), err
}

func (g group) empty() bool   { return g.count("cgroup.events", "populated") == 0 }
func (g group) oomKills() int { return g.count("memory.events", "oom_kill") }

// reusable reports whether the group is empty and has no groups in it: a new
// directory has two links, its own and its parent's, and each in it adds one.
func (g group) reusable() bool {
	var st syscall.Stat_t
	return g.empty() && syscall.Stat(string(g), &st) == nil && st.Nlink == 2
}

// remove removes the group and empty ones below it, deepest first.
func (g group) remove() error {
	if !g.empty() {
		return syscall.EBUSY
	}
	entries, err := os.ReadDir(string(g))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := group(g.file(e.Name())).remove(); err != nil {
				return err
			}
		}
	}
	return syscall.Rmdir(string(g))
}
