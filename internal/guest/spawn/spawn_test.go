package spawn_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/guest/spawn"
	"skerry.dev/skerry/internal/guest/toolbox/process"
)

// groups makes a directory for control groups of version 2, which needs root.
func groups(t *testing.T) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(root, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		dir := filepath.Join(root, fmt.Sprintf("skerry-spawn-test-%d", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("control groups: %v", err)
		}
		t.Cleanup(func() {
			// A group is busy until the last of its processes, which may just
			// have been killed, is gone.
			for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				entries, _ := os.ReadDir(dir)
				for _, e := range entries {
					if e.IsDir() {
						os.Remove(filepath.Join(dir, e.Name()))
					}
				}
				err := os.Remove(dir)
				if err == nil {
					return
				}
				if time.Now().After(deadline) {
					t.Errorf("left behind: %v", err)
					return
				}
			}
		})
		return dir
	}
	t.Skip("this host has no control groups of version 2")
	return ""
}

// newSpawner runs the reaper, which takes every child of this process: tests of
// this package start none by other means.
func newSpawner(t *testing.T) (*spawn.Spawner, string) {
	t.Helper()
	dir := groups(t)
	s, reaper := spawn.New(dir)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { reaper.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s, dir
}

func sh(t *testing.T, s *spawn.Spawner, script string) process.Child {
	t.Helper()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	child, err := s.Start(&process.Spec{ID: "prc_x", Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Dir: "/",
		Env: []string{"PATH=/usr/bin:/bin"}, Files: [3]*os.File{null, null, null}})
	if err != nil {
		t.Fatal(err)
	}
	return child
}

func count(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		if e.IsDir() {
			n++
		}
	}
	return n
}

// TestExitCodesBesideOrphans: each process's own code, while the reaper also
// takes orphans (which need PID 1, or a subreaper, to come here).
func TestExitCodesBesideOrphans(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	s, dir := newSpawner(t)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := range 100 {
		slots <- struct{}{}
		child := sh(t, s, fmt.Sprintf("(true &) ; exit %d", i))
		wg.Go(func() {
			defer func() { <-slots }()
			st, err := child.Wait()
			if err != nil || !st.Wait.Exited() || st.Wait.ExitStatus() != i {
				t.Errorf("exit %d: status %v, %v", i, st.Wait, err)
			}
			child.Release()
		})
	}
	wg.Wait()
	for count(t, dir) > 16 { // those still populated go when their orphans are reaped
		time.Sleep(time.Millisecond)
	}
}

func TestGroupsAreUsedAgain(t *testing.T) {
	s, dir := newSpawner(t)
	for range 5 {
		child := sh(t, s, "exit 0")
		if _, err := child.Wait(); err != nil {
			t.Fatal(err)
		}
		child.Release()
	}
	if n := count(t, dir); n != 1 {
		t.Errorf("five processes one after the other made %d control groups, want 1", n)
	}
	// One whose process made a group in it is not given to the next.
	child := sh(t, s, "mkdir "+dir+"/prc_1/nested")
	if st, err := child.Wait(); err != nil || st.Wait.ExitStatus() != 0 {
		t.Fatalf("%v, %v", st, err)
	}
	child.Release()
	if _, err := os.Stat(filepath.Join(dir, "prc_1")); err == nil {
		t.Error("a group with another in it was kept")
	}
}

// TestKillReachesEverything: also what left the session and ignores signals.
func TestKillReachesEverything(t *testing.T) {
	s, dir := newSpawner(t)
	child := sh(t, s, "trap '' TERM INT HUP; setsid sleep 600 & setsid sh -c 'trap \"\" TERM; sleep 601' & sleep 602")
	procs := filepath.Join(dir, "prc_1", "cgroup.procs")
	for {
		b, err := os.ReadFile(procs)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(b), "\n") >= 5 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := child.SignalAll(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	st, err := child.Wait()
	if err != nil || !st.Wait.Signaled() || st.Wait.Signal() != syscall.SIGKILL {
		t.Errorf("status %v, %v; want killed", st.Wait, err)
	}
	for !child.Empty() {
		time.Sleep(time.Millisecond)
	}
	child.Release()
}

// TestHold: no start begins while they are held back, and those that were
// waiting go on afterwards.
func TestHold(t *testing.T) {
	s, _ := newSpawner(t)
	s.Release() // nothing is held back
	s.Hold()
	s.Hold()
	var started atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			c := sh(t, s, "exit 0")
			started.Add(1)
			if _, err := c.Wait(); err != nil {
				t.Error(err)
			}
			c.Release()
		})
	}
	for range 100 {
		runtime.Gosched()
	}
	if n := started.Load(); n != 0 {
		t.Errorf("%d starts while they are held back", n)
	}
	s.Release()
	wg.Wait()
	if n := started.Load(); n != 4 {
		t.Errorf("%d starts of 4", n)
	}
}
