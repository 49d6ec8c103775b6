package qemu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/machine/machinetest"
)

func TestDeviceStatus(t *testing.T) {
	for _, c := range []struct {
		err  error
		want KVMReason
	}{
		{syscall.ENOENT, KVMNoDevice}, {syscall.ENXIO, KVMNoDevice}, {syscall.ENODEV, KVMNoDevice},
		{syscall.EACCES, KVMNoPermission}, {syscall.EPERM, KVMNoPermission}, {syscall.EBUSY, KVMFailed},
	} {
		err := &os.PathError{Op: "open", Path: "/dev/kvm", Err: c.err}
		if got := deviceStatus(err); got.Reason != c.want || got.Usable() || got.Detail == "" {
			t.Errorf("%v: got %+v, want %s", c.err, got, c.want)
		}
	}
}

// present is a file that can be opened, as /dev/kvm can on hosts where no
// kernel gets through its boot.
func present(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kvm")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestKVMProbe(t *testing.T) {
	for _, c := range []struct {
		name, device, body string
		want               KVMReason
	}{
		{"no device", "/absent/kvm", "", KVMNoDevice},
		{"hangs", present(t), "exec sleep 600", KVMTimeout},
		{"no permission of QEMU's user", present(t), "echo 'Could not access KVM kernel module: Permission denied' >&2; exit 1", KVMNoPermission},
		{"fails", present(t), "echo 'no' >&2; exit 1", KVMFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			timeout := time.Minute
			if c.want == KVMTimeout {
				timeout = 200 * time.Millisecond
			}
			p := KVMProbe{Options: Options{Binary: script(t, c.body), PortName: "p"}, Boot: *emptyBoot(t), Device: c.device, Timeout: timeout}
			got, err := p.Run(t.Context())
			if err != nil || got.Reason != c.want || got.Usable() {
				t.Errorf("got %+v, %v, want %s", got, err, c.want)
			}
		})
	}
}

// TestKVMProbeRemembers: one boot per kernel; a cancelled probe is no answer.
func TestKVMProbeRemembers(t *testing.T) {
	dir := t.TempDir()
	count := filepath.Join(dir, "count")
	p := KVMProbe{
		Options: Options{Binary: script(t, "echo x >>"+count+"; exit 1"), PortName: "p"}, Boot: *emptyBoot(t),
		Device: present(t), CachePath: filepath.Join(dir, "kvm.json"),
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Run(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	boots := func(want int) {
		t.Helper()
		if s, err := p.Run(t.Context()); err != nil || s.Reason != KVMFailed {
			t.Errorf("got %+v, %v", s, err)
		}
		text, err := os.ReadFile(count)
		if got := len(text) / 2; err != nil || got != want {
			t.Errorf("boots: got %d, %v, want %d", got, err, want)
		}
	}
	boots(1)
	boots(1)
	if err := os.WriteFile(p.Boot.KernelPath, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	boots(2)
	if err := os.WriteFile(p.CachePath, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	boots(3)
}

// TestAwaitMarker boots the real kernel, with software emulation since that is
// what every host has, and waits for what the probe waits for.
func TestAwaitMarker(t *testing.T) {
	boot := machinetest.Guest(t)
	v := machinetest.Start(t, New(Options{PortName: "p"}), smallBoot(boot))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	log := filepath.Join(v.Dir, consoleLog)
	if err := awaitMarker(ctx, v.Machine, log, kernelStartsInit); err != nil {
		t.Error(err)
	}
	v.Kill()
	if err := awaitMarker(ctx, v.Machine, log, "never written"); err == nil {
		t.Error("the machine ended: got nil, want an error")
	}
}

func smallBoot(boot machine.Boot) machine.Config {
	return machine.Config{Shape: machine.Shape{VCPUs: 1, BaseMiB: 256, MaxMemMiB: 256}, Boot: &boot}
}
