package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
)

// openForTest needs the right to make control groups.
func openForTest(t *testing.T) *Groups {
	t.Helper()
	g := Open(fmt.Sprintf("test-%d", os.Getpid()))
	if ok, why, fix := g.Enforced(); !ok {
		t.Skipf("needs the right to make control groups: %s; %s", why, fix)
	}
	t.Cleanup(g.Close)
	return g
}

// start runs a program until the test is over; then its groups can be removed.
func start(t *testing.T, g *Groups, id skerry.MachineID, argv ...string) *exec.Cmd {
	t.Helper()
	program := exec.Command(argv[0], argv[1:]...)
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		program.Process.Kill()
		program.Wait()
		if err := g.Remove(id); err != nil {
			t.Error(err)
		}
		if left := g.Machines(); len(left) > 0 {
			t.Errorf("groups are left: %v", left)
		}
	})
	return program
}

func TestPlace(t *testing.T) {
	g := openForTest(t)
	id := skerry.NewMachineID()
	program := start(t, g, id, "sleep", "60")
	r := skerry.Resources{CPU: 0.5, MemoryMiB: 1024, MemoryMaxMiB: 2048}
	for range 2 { // a second time changes nothing
		if unenforced, err := g.Place(id, program.Process.Pid, r, 1.5); err != nil || len(unenforced) > 0 {
			t.Fatalf("place: %v, unenforced %v", err, unenforced)
		}
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", program.Process.Pid))
	if err != nil || strings.Count(string(groups), string(id)) != len(g.all) {
		t.Errorf("the process is not in its %d groups: %v\n%s", len(g.all), err, groups)
	}
	want := map[string]string{"cpu.shares": "512", "cpu.cfs_quota_us": "30000", "memory.limit_in_bytes": strconv.Itoa((2048 + overheadMiB) << 20)}
	if g.v2 {
		want = map[string]string{"cpu.weight": "50", "cpu.max": "30000 20000", "memory.max": strconv.Itoa((2048 + overheadMiB) << 20)}
	}
	for file, value := range want {
		h := g.cpu
		if strings.HasPrefix(file, "memory") {
			if h = g.mem; h == nil {
				t.Logf("no right to set %s here", file)
				continue
			}
		}
		if got, err := os.ReadFile(filepath.Join(h.dir, string(id), file)); strings.TrimSpace(string(got)) != value {
			t.Errorf("%s = %q, %v, want %s", file, got, err, value)
		}
	}
	if got := g.Machines(); len(got) != 1 || got[0] != id {
		t.Errorf("machines = %v, want %s", got, id)
	}
}

// TestPlaceWithoutParent: the group above the machines' is empty between
// sandboxes, and something on the host may remove it then.
func TestPlaceWithoutParent(t *testing.T) {
	g := openForTest(t)
	for _, h := range g.all {
		if _, err := os.Stat(filepath.Join(h.dir, serverGroup)); err == nil {
			t.Skip("this process is in the group, which can then not be removed")
		}
		if err := os.Remove(h.dir); err != nil {
			t.Fatal(err)
		}
	}
	id := skerry.NewMachineID()
	program := start(t, g, id, "sleep", "60")
	if unenforced, err := g.Place(id, program.Process.Pid, skerry.Resources{CPU: 1, MemoryMiB: 512}, 1); err != nil || len(unenforced) > 0 {
		t.Errorf("place: %v, unenforced %v", err, unenforced)
	}
}

// TestQuota: a program that never sleeps gets no more of a processor than its
// limit, and is held back to it.
func TestQuota(t *testing.T) {
	g := openForTest(t)
	id := skerry.NewMachineID()
	program := start(t, g, id, "sh", "-c", "while :; do :; done")
	const limit = 0.25
	if _, err := g.Place(id, program.Process.Pid, skerry.Resources{CPU: 0.125, MemoryMiB: 512}, limit); err != nil {
		t.Fatal(err)
	}
	stat := filepath.Join(g.cpu.dir, string(id), "cpu.stat")
	begin, used := time.Now(), processorTime(t, program.Process.Pid)
	for throttled(t, stat) < 50 {
		if time.Since(begin) > time.Minute {
			t.Fatal("it was hardly ever held back")
		}
		time.Sleep(10 * time.Millisecond) // between looks at a condition
	}
	ratio := (processorTime(t, program.Process.Pid) - used).Seconds() / time.Since(begin).Seconds()
	if ratio > limit*1.2 {
		t.Errorf("it used %.3f of a processor, the limit is %v", ratio, limit)
	}
	t.Logf("it used %.3f of a processor, the limit is %v", ratio, limit)
}

// processorTime is what a process has used, user and system (proc_pid_stat(5)).
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	const tick = time.Second / 100 // USER_HZ, the same on all of Linux
	return time.Duration(ticks) * tick
}

func throttled(t *testing.T, stat string) int {
	t.Helper()
	text, err := os.ReadFile(stat)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "nr_throttled "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(v))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no nr_throttled in %q", text)
	return 0
}

// TestNothingPermitted: without groups every CPU limit is reported, and nothing
// fails.
func TestNothingPermitted(t *testing.T) {
	g := &Groups{name: "x"}
	if err := g.open(parseMounts("30 22 0:27 / / rw - ext4 /dev/vda rw\n"), "0::/\n"); err != nil {
		t.Fatal(err)
	}
	unenforced, err := g.Place("mch_x", 1, skerry.Resources{CPU: 1}, 1)
	if err != nil || strings.Join(unenforced, " ") != "resources.cpu resources.cpu_max" {
		t.Errorf("place = %v, %v", unenforced, err)
	}
}

// TestMissingFiles: a kernel without bandwidth control has shares but no quota.
func TestMissingFiles(t *testing.T) {
	dir := t.TempDir()
	h := &hierarchy{dir: dir}
	group := filepath.Join(dir, "mch_x")
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cpu.shares", "cgroup.procs"} {
		if err := os.WriteFile(filepath.Join(group, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	missing, err := h.place("mch_x", 7, append(cpuSettings(false, 1, 1), setting{"memory.limit_in_bytes", "1", ""}))
	if err != nil || strings.Join(missing, " ") != "resources.cpu_max" {
		t.Errorf("place = %v, %v, want resources.cpu_max once", missing, err)
	}
}
