package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/machine/machinetest"
)

// script is a stand-in for QEMU that answers --version and then does body.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qemu")
	text := "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'QEMU emulator version 7.2.0'; exit; fi\n" + body + "\n"
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// emptyBoot is a boot of files that need not be a kernel.
func emptyBoot(t *testing.T) *machine.Boot {
	t.Helper()
	path := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return &machine.Boot{KernelPath: path, InitrdPath: path}
}

var smallShape = machine.Shape{VCPUs: 1, BaseMiB: 64, MaxMemMiB: 64}

// leftovers is what a failed start must not change.
func leftovers(t *testing.T) string {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	children, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var pids string
	for _, path := range children {
		text, _ := os.ReadFile(path) // its thread may have ended
		pids += string(text)
	}
	return fmt.Sprintf("%d descriptors, children [%s]", len(fds), pids)
}

// TestBrokenQEMU: a QEMU that is missing, ends, hangs or talks nonsense is a
// clear error that names the step and QEMU's own words, and leaves nothing.
func TestBrokenQEMU(t *testing.T) {
	for _, c := range []struct {
		name, binary string
		code         skerry.Code
		want         string
	}{
		{"missing", "/absent/qemu", skerry.CodeUnavailable, "package qemu-system-x86"},
		{"ends at once", script(t, "echo 'no such machine' >&2; exit 1"), skerry.CodeUnavailable, "no such machine"},
		{"crashes", script(t, "kill -SEGV $$"), skerry.CodeUnavailable, "segmentation fault"},
		{"hangs", script(t, "exec sleep 600"), skerry.CodeTimeout, "start machine"},
		{"is no QEMU", script(t, "echo hello >&3; exec sleep 600"), skerry.CodeUnavailable, "greeting"},
	} {
		t.Run(c.name, func(t *testing.T) {
			boot, dir := emptyBoot(t), t.TempDir()
			before := leftovers(t)
			d := New(Options{Binary: c.binary, PortName: "p", StartTimeout: 300 * time.Millisecond})
			if c.code != skerry.CodeTimeout {
				d.o.StartTimeout = time.Minute
			}
			_, err := d.Start(t.Context(), machine.Config{Shape: smallShape, Dir: dir, Boot: boot})
			var e *skerry.Error
			if !errors.As(err, &e) || e.Code != c.code || !strings.Contains(e.Message, c.want) {
				t.Errorf("got %v (code %s), want code %s and %q", err, skerry.CodeOf(err), c.code, c.want)
			}
			if got := leftovers(t); got != before {
				t.Errorf("left over: got %s, want %s", got, before)
			}
			if _, err := os.Stat(filepath.Join(dir, controlSocket)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("control.sock: got %v, want it removed", err)
			}
		})
	}
}

// TestCancelledStart: the caller's own cancellation ends the start.
func TestCancelledStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	marker := filepath.Join(t.TempDir(), "started")
	d := New(Options{Binary: script(t, "touch "+marker+"; exec sleep 600"), PortName: "p"})
	go func() {
		machinetest.Wait(t, "QEMU started", func() bool { _, err := os.Stat(marker); return err == nil })
		cancel()
	}()
	_, err := d.Start(ctx, machine.Config{Shape: smallShape, Dir: t.TempDir(), Boot: emptyBoot(t)})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// rawState starts a real QEMU on a template that consists of a given state and
// empty memory.
func rawState(t *testing.T, state string) error {
	t.Helper()
	ram, err := newMemfd("ram", smallShape.BaseMiB<<20)
	if err != nil {
		t.Fatal(err)
	}
	if ram, err = sealed(ram, nil); err != nil {
		t.Fatal(err)
	}
	defer ram.Close()
	f, err := newMemfd("state", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(state); err != nil {
		t.Fatal(err)
	}
	m, err := New(Options{PortName: "p"}).Start(t.Context(), machine.Config{
		Shape: smallShape, Dir: t.TempDir(), Template: &machine.Template{RAM: ram, State: f},
	})
	if m != nil {
		m.Kill()
	}
	return err
}

// TestCorruptState: QEMU's refusal of a state is an error with its words.
func TestCorruptState(t *testing.T) {
	for name, state := range map[string]string{
		"empty": "", "garbage": strings.Repeat("garbage ", 1000), "cut after its header": "QEVM\x00\x00\x00\x03\x07",
		"cut before the devices": string(newHead("pc-q35-7.2", []ramBlock{{"ram", smallShape.BaseMiB << 20}}).start),
		"of another machine":     string(newHead("pc-i440fx-7.2", []ramBlock{{"ram", smallShape.BaseMiB << 20}}).start),
	} {
		before := leftovers(t)
		err := rawState(t, state)
		var e *skerry.Error
		if !errors.As(err, &e) || e.Code != skerry.CodeUnavailable {
			t.Errorf("%s: got %v, want code %s", name, err, skerry.CodeUnavailable)
		}
		if got := leftovers(t); got != before {
			t.Errorf("%s: left over: got %s, want %s", name, got, before)
		}
	}
}

// TestUnsealedMemory: memory that a clone could change is refused.
func TestUnsealedMemory(t *testing.T) {
	ram, err := newMemfd("ram", smallShape.BaseMiB<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer ram.Close()
	_, err = New(Options{PortName: "p"}).Start(t.Context(), machine.Config{
		Shape: smallShape, Dir: t.TempDir(), Template: &machine.Template{RAM: ram, State: ram},
	})
	if err == nil || !strings.Contains(err.Error(), "sealed") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// TestPosture reads what a live QEMU may do.
func TestPosture(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start QEMU as another user")
	}
	d := New(Options{PortName: "org.skerry.agent", UID: 65534, GID: 65534})
	boot := machinetest.Guest(t)
	v := machinetest.Start(t, d, machine.Config{
		Shape: machine.Shape{VCPUs: 1, BaseMiB: 256, MaxMemMiB: 512}, Boot: &boot,
		Image: machinetest.Image(t), Scratch: machinetest.Disk(t, 1<<20),
	})
	v.Hello()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", v.PID()))
	if err != nil {
		t.Fatal(err)
	}
	status := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		status[key] = strings.Join(strings.Fields(value), " ")
	}
	for key, want := range map[string]string{
		"Uid": "65534 65534 65534 65534", "Gid": "65534 65534 65534 65534", "Groups": "",
		"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapAmb": "0000000000000000",
		"NoNewPrivs": "1", "Seccomp": "2", "PPid": strconv.Itoa(os.Getpid()),
	} {
		if got := status[key]; got != want {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
	checkDescriptors(t, v.PID())
}

// checkDescriptors: QEMU has what it was given and what it made itself, and
// nothing else of this process.
func checkDescriptors(t *testing.T, pid int) {
	t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	ours := map[string]bool{}
	own, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range own {
		target, _ := os.Readlink(fd) // the listing's own is closed
		ours[target] = true
	}
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil {
			continue // closed meanwhile
		}
		known := false
		for _, prefix := range []string{"/dev/null", "socket:", "anon_inode:", "/memfd:ram", "/memfd:image.vmdk", "pipe:"} {
			known = known || strings.HasPrefix(target, prefix)
		}
		for _, suffix := range []string{"/first", "/second", "/scratch.img", "/empty", "vmlinuz", "initrd.cpio"} {
			known = known || strings.Contains(target, suffix)
		}
		known = known || strings.HasPrefix(target, "/memfd:/") // kernel and initramfs
		if !known {
			t.Errorf("descriptor %s: %s is not QEMU's business", filepath.Base(fd), target)
		}
		// QEMU makes pipes and sockets of its own. Of this process's it has
		// only the far ends, and stderr, whose two ends have one name.
		channel := strings.HasPrefix(target, "pipe:") || strings.HasPrefix(target, "socket:")
		if channel && ours[target] && filepath.Base(fd) != "2" {
			t.Errorf("descriptor %s: %s is this process's", filepath.Base(fd), target)
		}
	}
}

// TestDiesWithParent: a QEMU whose parent is killed dies too. The parent is
// this test binary, run again.
func TestDiesWithParent(t *testing.T) {
	if os.Getenv("QEMU_TEST_PARENT") != "" {
		parent(t)
		return
	}
	out, err := os.CreateTemp(t.TempDir(), "pid")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	self, err := os.StartProcess("/proc/self/exe", []string{"qemu.test", "-test.run=^TestDiesWithParent$"}, &os.ProcAttr{
		Env: append(os.Environ(), "QEMU_TEST_PARENT="+out.Name()), Files: []*os.File{nil, nil, nil},
	})
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	machinetest.Wait(t, "QEMU runs", func() bool {
		text, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		n, _ := fmt.Sscanf(string(text), "%d\n", &pid)
		return n == 1
	})
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("QEMU does not run: %v", err)
	}
	if err := self.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := self.Wait(); err != nil {
		t.Fatal(err)
	}
	machinetest.Wait(t, "QEMU is gone", func() bool { return gone(pid) })
}

// gone: no process, or one that only its new parent has not reaped yet.
func gone(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(text), ") Z ")
}

// parent starts a QEMU, tells its pid and waits to be killed.
func parent(t *testing.T) {
	boot := machinetest.Guest(t)
	m, err := New(Options{PortName: "p"}).Start(t.Context(), machine.Config{Shape: smallShape, Dir: t.TempDir(), Boot: &boot})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv("QEMU_TEST_PARENT"), fmt.Appendf(nil, "%d\n", m.PID()), 0o600); err != nil {
		t.Fatal(err)
	}
	<-m.Done()
}
