package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"skerry.dev/skerry/internal/machine"
)

// KVMReason says why KVM is not usable.
type KVMReason string

// The reasons.
const (
	KVMUsable       KVMReason = ""              // it is usable
	KVMNoDevice     KVMReason = "no_device"     // there is no /dev/kvm
	KVMNoPermission KVMReason = "no_permission" // this user may not open it
	KVMTimeout      KVMReason = "timeout"       // a kernel does not get through its boot
	KVMFailed       KVMReason = "failed"        // QEMU or the boot ended with an error
)

// KVMStatus is the answer of a probe.
type KVMStatus struct {
	Reason KVMReason `json:"reason"`
	Detail string    `json:"detail"` // for people, "" if usable
}

// Usable tells whether machines can run with KVM.
func (s KVMStatus) Usable() bool { return s.Reason == KVMUsable }

// KVMProbe finds out whether KVM runs the guest kernel. That /dev/kvm can be
// opened proves nothing: hosts whose module runs only paravirtual guests hang
// for ever with an ordinary kernel. So the probe boots it and waits for a sign.
type KVMProbe struct {
	Options Options // of the driver the answer is for; KVM is implied
	Boot    machine.Boot
	Device  string        // "/dev/kvm"
	Marker  string        // on the console; default: the kernel starts init
	Timeout time.Duration // 15 s
	// CachePath, or "", is a file that remembers the answer for this boot
	// of the host, this kernel and this QEMU.
	CachePath string
}

// kernelStartsInit is the kernel's last word before it runs the initramfs.
const kernelStartsInit = "Run /init as init process"

type kvmCache struct {
	Key    string    `json:"key"`
	Status KVMStatus `json:"status"`
}

// Run probes, or recalls the answer. An error means that there is no answer,
// because ctx ended or QEMU is missing, and is not remembered.
func (p KVMProbe) Run(ctx context.Context) (KVMStatus, error) {
	if p.Device == "" {
		p.Device = "/dev/kvm"
	}
	if p.Marker == "" {
		p.Marker = kernelStartsInit
	}
	if p.Timeout == 0 {
		p.Timeout = 15 * time.Second
	}
	f, err := os.OpenFile(p.Device, os.O_RDWR, 0)
	if err != nil {
		return deviceStatus(err), nil // cheap, and a user can change it: not remembered
	}
	f.Close()
	p.Options.KVM = true
	d := New(p.Options)
	key, err := p.key(ctx, d)
	if err != nil {
		return KVMStatus{}, err
	}
	if s, ok := p.recall(key); ok {
		return s, nil
	}
	s, err := p.boot(ctx, d)
	if err != nil {
		return KVMStatus{}, err
	}
	return s, p.remember(kvmCache{Key: key, Status: s})
}

func deviceStatus(err error) KVMStatus {
	reason := KVMFailed
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.ENODEV):
		reason = KVMNoDevice
	case errors.Is(err, os.ErrPermission):
		reason = KVMNoPermission
	}
	return KVMStatus{Reason: reason, Detail: err.Error()}
}

// boot starts the kernel and waits for the marker.
func (p KVMProbe) boot(ctx context.Context, d *Driver) (KVMStatus, error) {
	dir, err := os.MkdirTemp("", "skerry-kvm-")
	if err != nil {
		return KVMStatus{}, fmt.Errorf("probe kvm: %w", err)
	}
	defer os.RemoveAll(dir)
	probe, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	m, err := d.Start(probe, machine.Config{
		Shape: machine.Shape{VCPUs: 1, BaseMiB: 256, MaxMemMiB: 256}, Dir: dir, Boot: &p.Boot,
	})
	if err == nil {
		err = awaitMarker(probe, m, filepath.Join(dir, consoleLog), p.Marker)
		m.Kill()
	}
	switch {
	case err == nil:
		return KVMStatus{}, nil
	case ctx.Err() != nil:
		return KVMStatus{}, fmt.Errorf("probe kvm: %w", context.Cause(ctx))
	case probe.Err() != nil:
		return KVMStatus{KVMTimeout, fmt.Sprintf("the guest kernel did not start within %s", p.Timeout)}, nil
	case strings.Contains(err.Error(), "Permission denied"):
		return KVMStatus{KVMNoPermission, err.Error()}, nil
	default:
		return KVMStatus{KVMFailed, err.Error()}, nil
	}
}

// awaitMarker waits until the console log holds the marker.
func awaitMarker(ctx context.Context, m machine.Machine, path, marker string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		text, err := os.ReadFile(path) // of bounded size
		if err != nil {
			return err
		}
		if bytes.Contains(text, []byte(marker)) {
			return nil
		}
		select {
		case <-tick.C:
		case <-m.Done():
			return fmt.Errorf("the machine ended during its boot: %w", errors.Join(m.Err()))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// key is what an answer is good for.
func (p KVMProbe) key(ctx context.Context, d *Driver) (string, error) {
	version, err := d.Version(ctx)
	if err != nil {
		return "", err
	}
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("probe kvm: %w", err)
	}
	fi, err := os.Stat(p.Boot.KernelPath)
	if err != nil {
		return "", fmt.Errorf("probe kvm: %w", err)
	}
	return fmt.Sprintf("%s; %s %d %d; uid %d; %s", strings.TrimSpace(string(bootID)),
		p.Boot.KernelPath, fi.Size(), fi.ModTime().UnixNano(), p.Options.UID, version), nil
}

// recall reads the remembered answer. An unreadable one is no answer.
func (p KVMProbe) recall(key string) (KVMStatus, bool) {
	var c kvmCache
	b, err := os.ReadFile(p.CachePath)
	if err != nil || json.Unmarshal(b, &c) != nil || c.Key != key {
		return KVMStatus{}, false
	}
	return c.Status, true
}

func (p KVMProbe) remember(c kvmCache) error {
	if p.CachePath == "" {
		return nil
	}
	b, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("probe kvm: %w", err)
	}
	temp := p.CachePath + ".new"
	if err := os.WriteFile(temp, b, 0o600); err != nil {
		return fmt.Errorf("probe kvm: %w", err)
	}
	if err := os.Rename(temp, p.CachePath); err != nil {
		return fmt.Errorf("probe kvm: %w", err)
	}
	return nil
}
