package testserver

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dirPrefix  = "sandboxes-"
	lockSuffix = ".lock" // of the file beside a directory that its owner has locked
	// killTimeout is how long killed processes may take to be gone.
	killTimeout = 20 * time.Second
	// pollInterval is how often they are looked at: nothing tells of the end of
	// another process's children.
	pollInterval = 10 * time.Millisecond
)

// makeDir makes an empty directory that is this process's.
func makeDir(uid int) (*Dir, error) {
	path, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return nil, err
	}
	d := &Dir{Path: path, uid: uid}
	// It is locked before it has its name: nobody takes it for abandoned.
	d.lock, err = os.CreateTemp("", "lock-")
	if err == nil {
		err = errors.Join(unix.Flock(int(d.lock.Fd()), unix.LOCK_EX), os.Rename(d.lock.Name(), path+lockSuffix))
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return d, nil
}

// removeAbandoned removes the directories, and ends what they started, of tests
// that could not do it: they were killed, or ran into their time limit.
func removeAbandoned() error {
	locks, err := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"+lockSuffix))
	if err != nil {
		return err
	}
	for _, name := range locks {
		lock, err := os.Open(name)
		if err != nil {
			continue // removed meanwhile
		}
		d := &Dir{Path: strings.TrimSuffix(name, lockSuffix), lock: lock}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			lock.Close() // its owner lives
			continue
		}
		if err := d.Remove(); err != nil {
			return fmt.Errorf("remove %s, which a test has left: %w", d.Path, err)
		}
	}
	return nil
}

// Remove ends all processes that were started from the directory and deletes it,
// with its mounts and control groups.
func (d *Dir) Remove() error {
	errs := []error{d.killAll(), d.unmountAll(), d.removeControlGroups()}
	errs = append(errs, os.RemoveAll(d.Path))
	if errors.Join(errs...) == nil { // else the next test tries again
		if err := os.Remove(d.Path + lockSuffix); !errors.Is(err, os.ErrNotExist) { // another test may have done it
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, d.lock.Close())...)
}

// killAll kills until nothing is left: what is killed may just have started
// something.
func (d *Dir) killAll() error {
	deadline := time.Now().Add(killTimeout)
	for {
		processes, err := d.Processes()
		if err != nil {
			return err
		}
		processes = slices.DeleteFunc(processes, func(p Process) bool { return !d.started(p) })
		if len(processes) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("killed processes live on: %+v", processes)
		}
		for _, p := range processes {
			d.kill(p)
		}
		time.Sleep(pollInterval)
	}
}

// kill kills a process if its id is still its own.
func (d *Dir) kill(p Process) {
	handle, err := os.FindProcess(p.PID) // a pidfd: it does not pass to another process
	if err != nil {
		return
	}
	defer handle.Release()
	if d.started(p) {
		_ = handle.Kill() // gone is as good
	}
}

// started reports whether a process comes from this directory's server, and is
// not one that only looks at its files.
func (d *Dir) started(p Process) bool {
	proc := filepath.Join("/proc", strconv.Itoa(p.PID))
	if exe, err := os.Readlink(filepath.Join(proc, "exe")); err == nil && d.contains(exe) {
		return true
	}
	if environ, err := os.ReadFile(filepath.Join(proc, "environ")); err == nil &&
		slices.ContainsFunc(bytes.Split(environ, []byte{0}), func(v []byte) bool { return string(v) == "HOME="+d.Path }) {
		return true
	}
	return p.IsQEMU() && d.holds(p.PID)
}

// unmountAll takes off what tests have mounted in the directory.
func (d *Dir) unmountAll() error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	var points []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && d.contains(fields[4]) {
			points = append(points, fields[4])
		}
	}
	errs := []error{lines.Err()}
	for _, point := range slices.Backward(points) { // the last mount is the topmost
		errs = append(errs, unix.Unmount(point, 0))
	}
	return errors.Join(errs...)
}

// removeControlGroups removes the server's control groups, leaves first.
func (d *Dir) removeControlGroups() error {
	var errs []error
	for _, top := range d.controlGroups() {
		var groups []string
		err := filepath.WalkDir(top, func(name string, e os.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				groups = append(groups, name)
			}
			return err
		})
		errs = append(errs, err)
		for _, g := range slices.Backward(groups) {
			errs = append(errs, removeGroup(g))
		}
	}
	return errors.Join(errs...)
}

// removeGroup removes a control group. A killed process keeps it busy until its
// parent has waited for it.
func removeGroup(name string) error {
	deadline := time.Now().Add(killTimeout)
	for {
		err := os.Remove(name)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pollInterval)
	}
}
