package scenario

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
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testimage"
)

// TestGrowth: a program that takes several times what is guaranteed, as fast as
// it can, gets it; one that takes more than the limit is told so; afterwards the
// memory goes back.
func TestGrowth(t *testing.T) {
	sb := create(t, client.CreateSandbox{Image: testimage.Shell, Resources: &skerry.ResourcesRequest{Memory: pointer(0.5), MemoryMax: pointer(2.0)}})
	if total := memTotalMiB(t, sb); total > 512 {
		t.Errorf("before anything is wanted it has %d MiB", total)
	}
	if r := sb.root(t, "probe", "eat", "1300"); r.ExitCode != 0 || r.OOMKilled {
		t.Errorf("two and a half times what is guaranteed: %+v", r)
	}
	if total := memTotalMiB(t, sb); total < 1300 || total > 2048 {
		t.Errorf("afterwards it has %d MiB", total)
	}
	if r := sb.root(t, "probe", "eat", "2500"); r.ExitCode != 137 || !r.OOMKilled {
		t.Errorf("more than the limit: %+v", r)
	}
	if got := sb.shell(t, "dmesg | grep -c ' Out of memory: '; true"); got != "0\n" {
		t.Errorf("the machine itself was out of memory %s times", strings.TrimSpace(got))
	}
	if total := memTotalMiB(t, sb); total < 1800 || total > 2048 {
		t.Errorf("at the limit it has %d MiB", total)
	}
	eventually(t, 3*time.Minute, func() string {
		// A little may stay where something lies in it that cannot be moved.
		if total := memTotalMiB(t, sb); total > 600 {
			return fmt.Sprintf("it still has %d MiB", total)
		}
		return ""
	})
}

// TestDedicated: as much as was asked for, and no more.
func TestDedicated(t *testing.T) {
	sb := create(t, client.CreateSandbox{Image: testimage.Shell, Mode: skerry.Dedicated,
		Resources: &skerry.ResourcesRequest{CPU: pointer(0.5), Memory: pointer(0.5)}})
	want := skerry.Resources{Mode: skerry.Dedicated, CPU: 0.5, MemoryMiB: 512, DiskMiB: 10240, CPUMax: 0.5, MemoryMaxMiB: 512, DiskMaxMiB: 10240}
	if sb.Resources != want {
		t.Errorf("resources %+v, want %+v", sb.Resources, want)
	}
	if got := strings.TrimSpace(sb.mustRoot(t, "nproc")); got != "1" {
		t.Errorf("nproc is %s", got)
	}
	if r := sb.root(t, "probe", "eat", "600"); r.ExitCode != 137 || !r.OOMKilled {
		t.Errorf("more than it has: %+v", r)
	}
	if len(sb.Unenforced) > 0 {
		t.Skipf("this host cannot hold it to its share of a processor: %v are unenforced", sb.Unenforced)
	}
	sb.mustRoot(t, "sh", "-c", "(while :; do :; done) >/dev/null 2>&1 & sleep 1")
	_, qemu, err := server.MachineProcesses(string(sb.Machine))
	if err != nil {
		t.Fatal(err)
	}
	begin, used := time.Now(), processorTime(t, qemu)
	sb.mustRoot(t, "sleep", "3")
	if ratio := (processorTime(t, qemu) - used).Seconds() / time.Since(begin).Seconds(); ratio > 0.5*1.2 {
		t.Errorf("a busy loop uses %.2f of a processor, the limit is 0.5", ratio)
	} else {
		t.Logf("a busy loop uses %.2f of a processor, the limit is 0.5", ratio)
	}
}

// processorTime is what a process has used, user and system (proc_pid_stat(5)).
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	var ticks int
	for _, f := range strings.Fields(rest)[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	const tick = time.Second / 100 // USER_HZ
	return time.Duration(ticks) * tick
}

// TestLimitsShow: programs see the limit of processors and of the disk.
func TestLimitsShow(t *testing.T) {
	sb := create(t, client.CreateSandbox{Image: testimage.Shell, Resources: &skerry.ResourcesRequest{CPUMax: pointer(1.5), DiskMax: pointer(2.0)}})
	if got := strings.TrimSpace(sb.mustRoot(t, "nproc")); got != "2" {
		t.Errorf("nproc is %s with a limit of 1.5 cores, want 2", got)
	}
	fields := strings.Fields(sb.shell(t, "df -Pm / | tail -1"))
	if total, err := strconv.Atoi(fields[1]); err != nil || total < 2048*9/10 || total > 2048 {
		t.Errorf("/ has %s MiB, want about 2048", fields[1])
	}
}

// TestControlGroupsVersion2 runs the tests of the control groups where there are
// some of version 2 for certain: in a sandbox, as root and as a user to whom a
// group was delegated.
func TestControlGroupsVersion2(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "cgroup.test")
	build := exec.Command("go", "test", "-c", "-o", bin, "skerry.dev/skerry/internal/runner/cgroup")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	sb := create(t, clientCreate(testimage.Shell))
	if c := cli(t, "sandbox", "cp", bin, sb.Name+":/tmp/cgroup.test"); c.code != 0 {
		t.Fatalf("%+v", c)
	}
	const check = "exec /tmp/cgroup.test -test.v 2>&1"
	// Nobody else may be in the group.
	const delegate = `g=/sys/fs/cgroup/delegated; mkdir $g && chown app $g $g/cgroup.procs $g/cgroup.subtree_control && echo $$ >$g/cgroup.procs && exec su app -c '` + check + `'`
	for who, command := range map[string]string{"root": check, "a user": delegate} {
		r := sb.root(t, "sh", "-c", command)
		if r.ExitCode != 0 || !strings.Contains(r.Stdout, "--- PASS: TestQuota") || !strings.Contains(r.Stdout, "--- PASS: TestPlace ") {
			t.Errorf("as %s: %+v", who, r)
		}
	}
}
