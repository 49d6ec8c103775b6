package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testimage"
)

// identity is what the probe of that name prints.
type identity struct {
	Random      string `json:"random"`
	UUID        string `json:"uuid"`
	BootID      string `json:"boot_id"`
	MachineID   string `json:"machine_id"`
	Hostname    string `json:"hostname"`
	UnixNano    int64  `json:"unix_nano"`
	MonotonicNS int64  `json:"monotonic_ns"`
	CPUs        int    `json:"cpus"`
	MemTotalKiB int64  `json:"mem_total_kib"`
}

// TestClonesDiffer is cases 31 and 32: of sandboxes made at once, the first
// command finds its own randomness and names, and the right time.
func TestClonesDiffer(t *testing.T) {
	const clones = 3
	var ids [clones]identity
	var wg sync.WaitGroup
	for i := range clones {
		wg.Go(func() {
			sb, err := server.Client.CreateSandbox(t.Context(), client.CreateSandbox{Image: testimage.Shell})
			if err == nil {
				t.Cleanup(func() { remove(t, sb.ID) })
				sb, err = server.Client.WaitSandbox(t.Context(), string(sb.ID), time.Minute, skerry.StatusRunning)
			}
			if err != nil {
				t.Error(err)
				return
			}
			before := time.Now()
			r, err := server.Client.Toolbox(sb.ID).Execute(t.Context(), skerry.ExecuteRequest{Argv: []string{"probe", "identity"}})
			after := time.Now()
			if err != nil || r.ExitCode != 0 {
				t.Errorf("%+v, %v", r, err)
				return
			}
			ids[i] = decode[identity](t, r.Stdout)
			wantTime(t, ids[i], before, after)
		})
	}
	wg.Wait()
	wantDistinct(t, ids[:])
}

// wantTime fails unless the clock was right when it was asked, between before
// and after.
func wantTime(t *testing.T, id identity, before, after time.Time) {
	t.Helper()
	const tolerance = 500 * time.Millisecond
	if now := time.Unix(0, id.UnixNano); now.Before(before.Add(-tolerance)) || now.After(after.Add(tolerance)) {
		t.Errorf("clock is %v, asked between %v and %v", now, before, after)
	}
}

// wantDistinct fails unless all that must differ between machines does.
func wantDistinct(t *testing.T, ids []identity) {
	t.Helper()
	for name, value := range map[string]func(identity) string{
		"getrandom":  func(id identity) string { return id.Random },
		"uuid":       func(id identity) string { return id.UUID },
		"boot_id":    func(id identity) string { return id.BootID },
		"machine-id": func(id identity) string { return id.MachineID },
		"hostname":   func(id identity) string { return id.Hostname },
	} {
		seen := map[string]bool{}
		for _, id := range ids {
			if v := value(id); v == "" || seen[v] {
				t.Errorf("%s %q is empty or there twice", name, v)
			} else {
				seen[v] = true
			}
		}
	}
}

// TestClock checks that a second in the sandbox is a second.
func TestClock(t *testing.T) {
	sb := create(t, clientCreate(testimage.Shell))
	wantSecond(t, sb)
}

// wantSecond fails unless a second in the sandbox is a second.
func wantSecond(t *testing.T, sb sandbox) {
	t.Helper()
	start := time.Now()
	got := decode[map[string]int64](t, sb.mustRoot(t, "probe", "pause", "1s"))
	outside := time.Since(start)
	for name, ns := range got {
		if d := time.Duration(ns); d < time.Second || d > outside+10*time.Millisecond {
			t.Errorf("%s: 1 s lasted %v, outside at most %v", name, d, outside)
		}
	}
}

// TestSize checks that programs see the size of the sandbox.
func TestSize(t *testing.T) {
	sb := create(t, client.CreateSandbox{Image: testimage.Shell, Resources: &skerry.ResourcesRequest{CPU: pointer(2.0), Memory: pointer(0.5)}})
	if got := strings.TrimSpace(sb.mustRoot(t, "nproc")); got != "2" {
		t.Errorf("nproc is %s, want 2", got)
	}
	total := memTotalMiB(t, sb)
	if total > 512 || total < 512*8/10 {
		t.Errorf("memory is %d MiB, want at most 512 and not much less", total)
	}
	id := decode[identity](t, sb.mustRoot(t, "probe", "identity"))
	if id.CPUs != 2 {
		t.Errorf("affinity is %d CPUs", id.CPUs)
	}
}

func memTotalMiB(t *testing.T, sb sandbox) int {
	t.Helper()
	kib, err := strconv.Atoi(strings.TrimSpace(sb.mustRoot(t, "awk", "/^MemTotal:/ {print $2}", "/proc/meminfo")))
	if err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}

// TestWantOfMemory is case 30: a program that takes too much is killed, says so,
// and everything else goes on.
func TestWantOfMemory(t *testing.T) {
	sb := create(t, client.CreateSandbox{Image: testimage.Shell, Resources: &skerry.ResourcesRequest{Memory: pointer(0.5), MemoryMax: pointer(0.5)}})
	r := sb.root(t, "probe", "eat", "2000")
	if r.ExitCode != 137 || !r.OOMKilled || r.Signal != "KILL" {
		t.Errorf("a program that takes too much: %+v", r)
	}
	if got := sb.mustRoot(t, "echo", "still here"); got != "still here\n" {
		t.Errorf("afterwards: %q", got)
	}
	// Many that take a little each; whichever of them is killed.
	const many = "mkfifo /tmp/never; for i in $(seq 40); do probe eat 20 hold <>/tmp/never >/dev/null 2>&1 & done; sleep 5"
	sb.root(t, "sh", "-c", many)
	sb.root(t, "killall", "probe")
	c := cli(t, "sandbox", "exec", sb.Name, "--", "probe", "eat", "2000")
	if c.code != 137 || !strings.Contains(c.stderr, "memory") {
		t.Errorf("command line: %+v", c)
	}
	// It was the limit of the user's processes that was hit, not the end of the
	// machine's memory, where the kernel looks for a victim among all.
	if got := sb.shell(t, "dmesg | grep -c ' Out of memory: '; true"); got != "0\n" {
		t.Errorf("the machine itself was out of memory %s times", strings.TrimSpace(got))
	}
	wantStatus(t, sb.ID, skerry.StatusRunning)
}

func wantStatus(t *testing.T, id skerry.SandboxID, want skerry.Status) {
	t.Helper()
	sb, err := server.Client.Sandbox(t.Context(), string(id))
	if err != nil || sb.Status != want {
		t.Errorf("sandbox %s is %s (%s), want %s; %v", id, sb.Status, sb.Reason, want, err)
	}
}

// TestForkStorm is the other part of case 30: whatever bounds the processes,
// what comes after them works.
func TestForkStorm(t *testing.T) {
	sb := create(t, clientCreate(testimage.Shell))
	// Each waits for a writer that never comes; the shell gives up if it cannot
	// fork any more.
	storm, err := sb.Run(t.Context(), client.RunOptions{User: "root", Timeout: 10 * time.Second,
		ShellCommand: "mkfifo /p; while :; do (read x </p) >/dev/null 2>&1 & done"})
	if err != nil || (storm.ExitCode != nil && *storm.ExitCode == 0) {
		t.Errorf("fork storm: %+v, %v", storm, err)
	}
	t.Logf("fork storm: %+v", storm)
	if got := sb.mustRoot(t, "echo", "still here"); got != "still here\n" {
		t.Errorf("afterwards: %q", got)
	}
	// The classic, which never ends by itself: only a timeout does.
	bomb, err := sb.Run(t.Context(), client.RunOptions{ShellCommand: "f() { f | f & }; f; sleep 60", User: "root", Timeout: 2 * time.Second})
	if err != nil || bomb.Reason != skerry.ReasonTimedOut {
		t.Errorf("fork bomb: %+v, %v", bomb, err)
	}
	if got := sb.mustRoot(t, "echo", "still here"); got != "still here\n" {
		t.Errorf("after the fork bomb: %q", got)
	}
	eventually(t, 10*time.Second, func() string {
		if n := strings.TrimSpace(sb.mustRoot(t, "sh", "-c", "ps | wc -l")); len(n) > 2 {
			return n + " processes are left"
		}
		return ""
	})
}

// TestDiskLimit fills the disk and tries to write behind its end.
func TestDiskLimit(t *testing.T) {
	sb := create(t, clientCreate(testimage.Shell))
	var mib int
	got := sb.mustRoot(t, "probe", "fill", "/fill")
	if _, err := fmt.Sscanf(got, "%d ENOSPC", &mib); err != nil || mib >= int(sb.Resources.DiskMiB) || mib < int(sb.Resources.DiskMiB)*8/10 {
		t.Errorf("wrote %q to a disk of %d MiB", got, sb.Resources.DiskMiB)
	}
	var size int64
	got = sb.mustRoot(t, "probe", "past-end", "/dev/vdb")
	if _, err := fmt.Sscanf(got, "%d", &size); err != nil || size != sb.Resources.DiskMiB<<20 || strings.Contains(got, "nil") {
		t.Errorf("behind the end of /dev/vdb: %q", got)
	}
	info, err := os.Stat(filepath.Join(server.Data(), "machines", string(sb.Machine), "scratch.img"))
	if err != nil || info.Size() > sb.Resources.DiskMiB<<20 {
		t.Errorf("the disk's file: %+v, %v", info, err)
	}
	sb.mustRoot(t, "rm", "/fill")
	sb.mustRoot(t, "sh", "-c", "echo fits >/again")
}

// TestLargerDisk asks for more than templates have: a little, and so much that
// the file system needs further blocks of descriptors.
func TestLargerDisk(t *testing.T) {
	for _, gib := range []int{12, 40} {
		sb := create(t, client.CreateSandbox{Image: testimage.Shell, Resources: &skerry.ResourcesRequest{Disk: pointer(float64(gib))}})
		fields := strings.Fields(sb.shell(t, "df -Pm / | tail -1; blockdev --getsize64 /dev/vdb"))
		total, err := strconv.Atoi(fields[1])
		if err != nil || total < gib*1024*9/10 || total > gib*1024 {
			t.Errorf("/ has %s MiB, want about %d", fields[1], gib*1024)
		}
		if got := fields[len(fields)-1]; got != fmt.Sprint(gib<<30) {
			t.Errorf("/dev/vdb has %s bytes", got)
		}
	}
}

// TestMemoryBeyondTheBase asks for more memory than the template's machine has,
// uses it, and watches it go back to the host.
func TestMemoryBeyondTheBase(t *testing.T) {
	sb := create(t, client.CreateSandbox{Image: testimage.Shell, Resources: &skerry.ResourcesRequest{Memory: pointer(1.5)}})
	eventually(t, 20*time.Second, func() string {
		if total := memTotalMiB(t, sb); total < 1536*8/10 {
			return fmt.Sprintf("the sandbox has %d MiB", total)
		}
		return ""
	})
	_, qemu, err := server.MachineProcesses(string(sb.Machine))
	if err != nil {
		t.Fatal(err)
	}
	const eaten = 1200
	before := residentMiB(t, qemu)
	if r := sb.root(t, "probe", "eat", fmt.Sprint(eaten)); r.ExitCode != 0 {
		t.Fatalf("%+v", r)
	}
	used := residentMiB(t, qemu)
	// What lies within the base does not go back (docs/ARCHITECTURE.md); the
	// half GiB beyond it does.
	eventually(t, 60*time.Second, func() string {
		now := residentMiB(t, qemu)
		if now > before+1024 {
			return fmt.Sprintf("resident %d MiB before, %d MiB when it was freed, %d MiB now", before, used, now)
		}
		return ""
	})
}

// residentMiB is the memory that a process has mapped and touched.
func residentMiB(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.Fields(v)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib / 1024
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// TestModules needs modules of the platform: one by name, one that a mount asks
// for, one that a network interface asks for.
func TestModules(t *testing.T) {
	sb := create(t, clientCreate(testimage.Shell))
	sb.shell(t, "ip link add dev d0 type dummy && ip link show d0")
	sb.shell(t, "modprobe loop && test -e /sys/module/loop")
	// An empty file is no file system; that the kernel knows the type is all
	// that is asked here.
	sb.shell(t, "truncate -s 1M /i; mount -t squashfs /i /tmp; grep -w squashfs /proc/filesystems")
	sb.shell(t, "mkdir -p /m/l /m/u /m/w /m/m && mount -t tmpfs t /m && mkdir /m/l /m/u /m/w /m/m && mount -t overlay -o lowerdir=/m/l,upperdir=/m/u,workdir=/m/w o /m/m && touch /m/m/f && test -e /m/u/f")
}
