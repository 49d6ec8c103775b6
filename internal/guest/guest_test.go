package guest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/guesttest"
	"skerry.dev/skerry/internal/guest/guesttest/run"
	"skerry.dev/skerry/internal/guestapi"
)

// programs builds the agent and the image's program once.
var programs = sync.OnceValue(func() (p struct{ dir, agent, prog string }) {
	dir, err := os.MkdirTemp("", "skerry-guest-test-")
	if err != nil {
		panic(err)
	}
	p.dir = dir
	p.agent = guesttest.Build(dir, "internal/guest/guesttest/agent")
	p.prog = guesttest.Build(dir, "internal/guest/guesttest/prog")
	return p
})

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(programs().dir)
	os.Exit(code)
}

// layer makes a directory with files: names that end in a slash are
// directories, contents that begin with "-> " symlinks.
func layer(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		target, link := strings.CutPrefix(content, "-> ")
		switch {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		case link:
			err = os.Symlink(target, path)
		case content == "/prog":
			var out []byte
			if out, err = exec.Command("cp", programs().prog, path).CombinedOutput(); err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
		default:
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// distroless is an image with nothing but a program.
var distroless = map[string]string{"prog": "/prog"}

func TestSandbox(t *testing.T) {
	layers := []string{layer(t, distroless)}
	vm := guesttest.Boot(t, guesttest.Options{Agent: programs().agent, Layers: layers, VCPUs: 2})
	t.Logf("boot to hello %v", vm.BootTime)
	if err := vm.Control(t.Context(), guestapi.PathTune, guestapi.Tuning{MemoryMiB: 512}, nil); skerry.CodeOf(err) != skerry.CodeConflict {
		t.Errorf("tune before activation: %v, want a conflict", err)
	}
	a := vm.Activation()
	a.Time = time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
	t.Logf("activated: %+v", vm.Activate(a))
	if err := vm.Control(t.Context(), guestapi.PathActivate, a, nil); skerry.CodeOf(err) != skerry.CodeConflict {
		t.Errorf("second activation: %v, want a conflict", err)
	}

	t.Run("identity", func(t *testing.T) { testIdentity(t, vm, a) })
	t.Run("system", func(t *testing.T) { testSystem(t, vm) })
	t.Run("timer slack", func(t *testing.T) { testTimerSlack(t, vm) })
	t.Run("processes", func(t *testing.T) { testProcesses(t, vm) })
	t.Run("dial", func(t *testing.T) { testDial(t, vm) })
	t.Run("reconnect", func(t *testing.T) { testReconnect(t, vm) })
	t.Run("link loss", func(t *testing.T) { testLinkLoss(t, vm) })
	t.Run("freeze", func(t *testing.T) { testFreeze(t, vm) })
	t.Run("pressure", func(t *testing.T) { testPressure(t, vm) })
	t.Run("out of memory", func(t *testing.T) { testOutOfMemory(t, vm) })
	t.Run("fork bomb and shutdown", func(t *testing.T) { testForkBomb(t, vm) })
}

func testIdentity(t *testing.T, vm *guesttest.VM, a guestapi.Activation) {
	eventually(t, "the hardware address", func() (string, bool) {
		got := vm.Output("cat", "/sys/class/net/eth0/address")
		return got, got == a.MAC+"\n"
	})
	for path, want := range map[string]string{
		"/etc/hostname":                   a.Hostname + "\n",
		"/proc/sys/kernel/hostname":       a.Hostname + "\n",
		"/etc/machine-id":                 a.MachineID + "\n",
		"/proc/sys/kernel/random/boot_id": a.BootID + "\n",
		"/sys/class/net/eth0/mtu":         "1500\n",
		"/etc/resolv.conf":                "nameserver 10.0.2.3\n",
	} {
		if got := vm.Output("cat", path); got != want {
			t.Errorf("%s = %q, want %q", path, got, want)
		}
	}
	if got := vm.Output("cat", "/etc/hosts"); !strings.Contains(got, "10.0.2.15 "+a.Hostname+"\n") {
		t.Errorf("/etc/hosts = %q", got)
	}
	var facts struct{ UnixNano int64 }
	if err := json.Unmarshal([]byte(vm.Output("facts")), &facts); err != nil {
		t.Fatal(err)
	}
	if since := time.Unix(0, facts.UnixNano).Sub(a.Time); since < 0 || since > time.Hour {
		t.Errorf("clock is %v past the time it was set to", since)
	}
}

func testSystem(t *testing.T, vm *guesttest.VM) {
	mounts := vm.Output("cat", "/proc/mounts")
	for _, want := range []string{
		"overlay / overlay rw", "proc /proc proc", "sysfs /sys sysfs", "devtmpfs /dev devtmpfs",
		"devpts /dev/pts devpts", "tmpfs /dev/shm tmpfs", "mqueue /dev/mqueue mqueue",
		"tmpfs /run tmpfs", "cgroup2 /sys/fs/cgroup cgroup2",
	} {
		if !strings.Contains(mounts, want) {
			t.Errorf("no mount %q in\n%s", want, mounts)
		}
	}
	if got := vm.Output("stat", "/tmp", "/dev/null", "/dev/fd"); got !=
		"/tmp dtrwxrwxrwx\n/dev/null Dcrw-rw-rw-\n/dev/fd Lrwxrwxrwx\n" {
		t.Errorf("stat = %q", got)
	}
	if got := vm.Output("nproc"); got != "2\n" {
		t.Errorf("nproc = %q, want the machine's 2", got)
	}
	if got := vm.Output("cat", "/proc/self/cgroup"); !strings.HasPrefix(got, "0::/prc_") {
		t.Errorf("cgroup = %q, want one of its own at the top", got)
	}
	for _, name := range []string{"cpu", "memory", "pids", "io"} {
		if got := vm.Output("cat", "/sys/fs/cgroup/cgroup.subtree_control"); !strings.Contains(got, name) {
			t.Errorf("controller %s is not enabled: %s", name, got)
		}
	}
	// The disk is in use, but the kernel came that far only because it had the
	// module loaded, on an image without modprobe.
	res, err := vm.Run(run.Request{Argv: []string{"/prog", "mount", "/dev/vda", "/tmp", "squashfs"}})
	if err != nil || !strings.Contains(res.Output, "device or resource busy") {
		t.Errorf("mount squashfs: %+v, %v; want its module to be loaded", res, err)
	}
	if got := vm.Output("cat", "/proc/modules"); !strings.Contains(got, "squashfs ") {
		t.Error("squashfs is not loaded")
	}
	vm.Output("write", "/tmp/f", "text")
	if got := vm.Output("cat", "/tmp/f"); got != "text" {
		t.Errorf("file = %q", got)
	}
	var stats guestapi.Stats
	if err := vm.Control(t.Context(), guestapi.PathStats, nil, &stats); err != nil {
		t.Fatal(err)
	}
	if stats.MemoryTotalMiB < 200 || stats.MemoryTotalMiB > 256 || stats.DiskTotalMiB < 400 ||
		stats.MemoryUsedMiB <= 0 || stats.DiskUsedMiB > 100 {
		t.Errorf("stats = %+v", stats)
	}
	if err := vm.Control(t.Context(), guestapi.PathTune, guestapi.Tuning{MemoryMiB: 320}, nil); err != nil {
		t.Error(err)
	}
	if got := vm.Output("cat", "/sys/fs/cgroup/memory.max"); got != fmt.Sprintln((320-320/64-96)<<20) {
		t.Errorf("memory.max = %q", got)
	}
}

// testTimerSlack checks that the agent's monitor thread is late, and that no
// process of the sandbox is.
func testTimerSlack(t *testing.T, vm *guesttest.VM) {
	if got, want := vm.Output("cat", "/proc/self/timerslack_ns"), "50000\n"; got != want {
		t.Errorf("timer slack of a process = %q, want %q", got, want)
	}
	var tids []int
	for name := range strings.FieldsSeq(vm.Output("ls", "/proc/1/task")) {
		tid, err := strconv.Atoi(name)
		if err != nil {
			t.Fatal(err)
		}
		tids = append(tids, tid)
	}
	slices.Sort(tids)
	if got, want := vm.Output("cat", fmt.Sprintf("/proc/%d/timerslack_ns", tids[1])), "4000000\n"; got != want {
		t.Errorf("timer slack of the monitor of the agent's threads %d = %q, want %q", tids, got, want)
	}
}

// testProcesses is case "orphans are never reaped": exit codes are right while
// the one reaper also collects strangers.
func testProcesses(t *testing.T, vm *guesttest.VM) {
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 25 {
				want := (worker*25 + i) % 256
				res, err := vm.Run(run.Request{Argv: []string{"/prog", "exit", strconv.Itoa(want)}})
				if err != nil || res.Error != "" || res.ExitCode != want || !res.Empty {
					t.Errorf("exit %d: %+v, %v", want, res, err)
				}
			}
		})
	}
	wg.Go(func() {
		for range 10 {
			vm.Output("orphans", "20")
		}
	})
	wg.Wait()
	eventually(t, "zombies to go", func() (string, bool) {
		got := vm.Output("zombies")
		return got, got == "0\n"
	})
	eventually(t, "control groups to go, but for those kept for the next processes", func() (string, bool) {
		got := vm.Output("ls", "/sys/fs/cgroup")
		return got, strings.Count(got, "prc_") <= 16
	})
	res, err := vm.Run(run.Request{Argv: []string{"/nothing"}})
	if err != nil || !strings.Contains(res.Error, "no such file") {
		t.Errorf("missing program: %+v, %v", res, err)
	}
	res, err = vm.Run(run.Request{Argv: []string{"/prog", "write", "/f", "x"}, UID: 1000})
	if err != nil || res.ExitCode != 1 || !strings.Contains(res.Output, "permission denied") {
		t.Errorf("write as user: %+v, %v", res, err)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() (string, bool)) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		got, done := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: %s", what, got)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func testDial(t *testing.T, vm *guesttest.VM) {
	if _, err := vm.DialGuest(t.Context(), "tcp", "127.0.0.1:81"); skerry.CodeOf(err) != skerry.CodeUnavailable {
		t.Errorf("nobody listens: %v", err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { vm.Output("listen", "127.0.0.1:80") })
	var conn net.Conn
	eventually(t, "listener", func() (string, bool) {
		c, err := vm.DialGuest(t.Context(), "tcp", "127.0.0.1:80")
		conn = c
		return fmt.Sprint(err), err == nil
	})
	defer conn.Close()
	want := strings.Repeat("0123456789", 100_000)
	wg.Go(func() {
		_, _ = io.WriteString(conn, want)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	})
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != want {
		t.Errorf("echo of %d bytes: %d bytes, %v", len(want), len(got), err)
	}
}

// testReconnect drops the host without a word and comes back at once.
func testReconnect(t *testing.T, vm *guesttest.VM) {
	for i := range 20 {
		vm.Close()
		vm.Dial(t.Context())
		if err := vm.Control(t.Context(), guestapi.PathHello, nil, &vm.Hello); err != nil {
			t.Fatalf("reconnect %d: %v", i, err)
		}
	}
}

// testPressure: while the host may plug more, a program that takes too much is
// slowed down and the host is told; it is killed when the host has no more.
func testPressure(t *testing.T, vm *guesttest.VM) {
	var p guestapi.Pressure
	if err := vm.Control(t.Context(), guestapi.PathPressure, guestapi.PressureWait{Millis: 1}, &p); err != nil || p.Short || p.UsedMiB > 64 {
		t.Errorf("before: %+v, %v", p, err)
	}
	tune := func(in guestapi.Tuning) {
		t.Helper()
		if err := vm.Control(t.Context(), guestapi.PathTune, in, nil); err != nil {
			t.Fatal(err)
		}
	}
	tune(guestapi.Tuning{MemoryMiB: 256})
	limit := guestapi.UserMemoryMiB(256)
	if got := vm.Output("cat", "/sys/fs/cgroup/memory.high"); got != fmt.Sprintln((limit-limit/8)<<20) {
		t.Errorf("memory.high = %q", got)
	}
	done := make(chan run.Result, 1)
	go func() {
		res, err := vm.Run(run.Request{Argv: []string{"/prog", "hog"}})
		if err != nil {
			res.Error = err.Error()
		}
		done <- res
	}()
	if err := vm.Control(t.Context(), guestapi.PathPressure, guestapi.PressureWait{}, &p); err != nil || !p.Short || p.UsedMiB < limit/2 {
		t.Errorf("under pressure: %+v, %v", p, err)
	}
	select {
	case res := <-done:
		t.Fatalf("not slowed down: %+v", res)
	default:
	}
	tune(guestapi.Tuning{MemoryMiB: 256, FixedMemory: true})
	if res := <-done; res.Signal != 9 || !res.OOMKilled {
		t.Errorf("hog without hope: %+v; want it killed for want of memory", res)
	}
	if got := vm.Output("cat", "/sys/fs/cgroup/memory.high"); got != "max\n" {
		t.Errorf("memory.high = %q", got)
	}
}

func testOutOfMemory(t *testing.T, vm *guesttest.VM) {
	if err := vm.Control(t.Context(), guestapi.PathTune, guestapi.Tuning{MemoryMiB: 256, FixedMemory: true}, nil); err != nil {
		t.Fatal(err)
	}
	res, err := vm.Run(run.Request{Argv: []string{"/prog", "hog"}})
	if err != nil || res.Signal != 9 || !res.OOMKilled {
		t.Errorf("hog: %+v, %v; want it killed for want of memory", res, err)
	}
	if got := vm.Output("exit", "0"); got != "" {
		t.Errorf("after the hog: %q", got)
	}
}

// testForkBomb shows that the agent answers and ends the sandbox in order while
// the sandbox's processes fork as fast as they can.
func testForkBomb(t *testing.T, vm *guesttest.VM) {
	vm.Output("write", "/survives", "written before the end")
	bomb := make(chan run.Result, 1)
	go func() {
		res, err := vm.Run(run.Request{Argv: []string{"/prog", "forkbomb"}})
		if err != nil {
			res.Error = err.Error()
		}
		bomb <- res
	}()
	eventually(t, "the bomb", func() (string, bool) {
		res, err := vm.Run(run.Request{Argv: []string{"/prog", "cat", "/sys/fs/cgroup/pids.current"}})
		threads, _ := strconv.Atoi(strings.TrimSpace(res.Output))
		// Many threads, or so many that nothing can be started or lives long.
		return fmt.Sprint(res, err), err == nil && (threads > 100 || res.Error != "" || res.OOMKilled)
	})
	if err := vm.Control(t.Context(), guestapi.PathStats, nil, new(guestapi.Stats)); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := vm.Control(ctx, guestapi.PathShutdown, guestapi.Shutdown{GraceMillis: 50}, nil); err != nil {
		t.Fatalf("%v\nconsole:\n%s", err, vm.Console())
	}
	if res := <-bomb; res.Signal == 0 || res.Error != "" {
		t.Errorf("bomb ended with %+v, want a signal", res)
	}
	vm.CheckScratch()
}

func TestTemplate(t *testing.T) {
	layers := []string{layer(t, distroless)}
	vm := guesttest.Boot(t, guesttest.Options{Agent: programs().agent, Layers: layers, Template: true})
	t.Logf("boot to hello %v, %v of processor time", vm.BootTime, vm.CPU())
	tpl := vm.Capture(t.Context())
	seen := make(map[string]bool)
	for i := range 3 {
		start, cpu := time.Time{}, time.Duration(0)
		var clone *guesttest.VM
		step := func(what string) {
			now := clone.CPU()
			t.Logf("clone %d: %s: %v, %v of processor time", i, what, time.Since(start), now-cpu)
			start, cpu = time.Now(), now
		}
		clone = tpl.Restore(t.Context(), func() { start = time.Now() })
		clone.Dial(t.Context())
		step("dial")
		a := clone.Activation()
		a.Hostname = fmt.Sprintf("clone-%d", i)
		t.Log(clone.Activate(a))
		step("activate")
		facts := clone.Output("facts")
		step("first program")
		clone.Output("true")
		step("second program")
		var f struct {
			Random, Hostname string
			UnixNano         int64
		}
		if err := json.Unmarshal([]byte(facts), &f); err != nil {
			t.Fatal(err)
		}
		if f.Hostname != a.Hostname {
			t.Errorf("hostname = %q, want %q", f.Hostname, a.Hostname)
		}
		if seen[f.Random] {
			t.Error("two clones have the same random numbers")
		}
		seen[f.Random] = true
		uuid := clone.Output("cat", "/proc/sys/kernel/random/uuid")
		if seen[uuid] {
			t.Error("two clones have the same uuid")
		}
		seen[uuid] = true
		if off := time.Since(time.Unix(0, f.UnixNano)); off > 5*time.Second || off < -5*time.Second {
			t.Errorf("clock is off by %v", off)
		}
	}
}

// Images without the usual directories, with usr merged or with symlinks where
// the agent binds its files.
func TestOddImage(t *testing.T) {
	base := layer(t, map[string]string{
		"prog":            "/prog",
		"usr/lib/os":      "text",
		"lib":             "-> usr/lib",
		"etc/resolv.conf": "-> ../run/systemd/resolve/stub-resolv.conf",
		"etc/machine-id":  "-> /nowhere/at/all",
		"etc/hosts":       "of the image",
		"var/run":         "-> /run",
		"var/lib/docker/": "",
		"shadowed":        "lower",
	})
	top := layer(t, map[string]string{"shadowed": "upper", "etc/extra": "text"})
	vm := guesttest.Boot(t, guesttest.Options{Agent: programs().agent, Layers: []string{base, top}})
	a := vm.Activation()
	if err := vm.Control(t.Context(), guestapi.PathPrepare, guestapi.Preparation{Entropy: a.Entropy, Time: a.Time, ScratchSectors: a.ScratchSectors, MemoryMiB: a.MemoryMiB}, nil); err != nil {
		t.Fatal(err)
	}
	vm.Activate(a)
	for path, want := range map[string]string{
		"/shadowed":        "upper",
		"/usr/lib/os":      "text",
		"/lib/os":          "text",
		"/etc/resolv.conf": "nameserver 10.0.2.3\n",
		"/etc/machine-id":  a.MachineID + "\n",
		"/nowhere/at/all":  a.MachineID + "\n",
		"/etc/hostname":    a.Hostname + "\n",
		"/etc/extra":       "text",
	} {
		if got := vm.Output("cat", path); got != want {
			t.Errorf("%s = %q, want %q", path, got, want)
		}
	}
	if got := vm.Output("ls", "/lib/modules/"+vm.Hello.Kernel); !strings.Contains(got, "modules.dep\n") {
		t.Errorf("kernel modules = %q", got)
	}
	if got := vm.Output("cat", "/proc/mounts"); !strings.Contains(got, "/dev/vdb /var/lib/docker ext4") {
		t.Errorf("docker's directory is not on the disk:\n%s", got)
	}
	// The end of the agent is the end of the machine.
	client := vm.HTTPClient(guestapi.StreamToolbox)
	defer client.CloseIdleConnections()
	if resp, err := client.Get("http://agent/panic"); err == nil {
		resp.Body.Close()
	}
	select {
	case <-vm.Exited():
	case <-time.After(time.Minute):
		t.Fatal("the agent panicked and the machine lives")
	}
	if got := vm.Console(); !strings.Contains(got, "panic: asked to") {
		t.Errorf("console does not say why:\n%s", got)
	}
}
