// Package qemu runs machines with QEMU from the distribution's package.
//
// QEMU gets a minimal machine, its full seccomp sandbox, and all it works with
// as open descriptors, so that it can run as a user that may open nothing. It
// is a child of this process and dies with it.
package qemu

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
)

// Options configure a Driver. Zero values mean the defaults named.
type Options struct {
	Binary string // "qemu-system-x86_64"
	// KVM uses /dev/kvm, which ProbeKVM must have found usable. Else
	// instructions are translated in software.
	KVM bool
	// PortName is the name of the agent's virtio-serial port. Required.
	PortName string
	// MAC is the address of the network interface, the same in every machine.
	MAC string // "52:54:00:12:34:56"
	// UID and GID are what QEMU runs as if this process is root; a zero UID
	// leaves it root.
	UID, GID uint32
	// StartTimeout bounds Start and each later request to QEMU.
	StartTimeout time.Duration // 20 s
}

// tcgCPU is the processor that software emulation shows.
const tcgCPU = "Nehalem"

// tbSizeMiB bounds the cache of translated code, which is private memory.
const tbSizeMiB = 128

// Driver starts QEMU processes. It implements machine.Driver.
type Driver struct {
	o   Options
	cpu string

	mu      sync.Mutex
	version string // of the binary with this identity
	binary  fileIdentity
}

var _ machine.Driver = (*Driver)(nil)

// fileIdentity changes when a file is replaced, as by a package upgrade.
type fileIdentity struct {
	path      string
	size      int64
	modMicros int64
}

// New returns a driver. It does not look for QEMU: Version and Start do.
func New(o Options) *Driver {
	if o.Binary == "" {
		o.Binary = "qemu-system-x86_64"
	}
	if o.MAC == "" {
		o.MAC = "52:54:00:12:34:56"
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = 20 * time.Second
	}
	d := &Driver{o: o, cpu: tcgCPU}
	if o.KVM {
		d.cpu = "host"
	}
	return d
}

// Accel is "kvm" or "tcg".
func (d *Driver) Accel() string {
	if d.o.KVM {
		return "kvm"
	}
	return "tcg"
}

// versionTimeout is how long QEMU may take to print its version, also on a busy
// host. Every create waits for that.
const versionTimeout = 10 * time.Second

// Version names everything of the hypervisor that a template depends on:
// QEMU's version, the processor, and a digest of the command line's layout.
// The answer is remembered until the binary is replaced.
func (d *Driver) Version(ctx context.Context) (string, error) {
	id, err := d.identify()
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.version != "" && d.binary == id {
		return d.version, nil
	}
	ask, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ask, id.path, "--version")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil && ask.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %v", versionTimeout)
	}
	if err != nil {
		return "", skerry.Errorf(codeOf(ask), "%s --version: %w", id.path, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	v := strings.TrimPrefix(first, "QEMU emulator version ")
	d.version = fmt.Sprintf("qemu %s; %s %s; %s", v, d.Accel(), d.cpuIdentity(), d.layoutDigest())
	d.binary = id
	return d.version, nil
}

func (d *Driver) identify() (fileIdentity, error) {
	path, err := exec.LookPath(d.o.Binary)
	if err != nil {
		return fileIdentity{}, skerry.Errorf(skerry.CodeUnavailable, "find qemu (package qemu-system-x86): %w", err)
	}
	fi, err := os.Stat(path)
	if err != nil {
		return fileIdentity{}, skerry.Errorf(skerry.CodeUnavailable, "find qemu: %w", err)
	}
	return fileIdentity{path: path, size: fi.Size(), modMicros: fi.ModTime().UnixMicro()}, nil
}

// cpuIdentity is the processor a template was captured on. With "host" that is
// the host's own, so its model belongs to it.
func (d *Driver) cpuIdentity() string {
	if !d.o.KVM {
		return d.cpu
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return d.cpu
	}
	h := sha256.New()
	for line := range strings.Lines(string(info)) {
		key, _, _ := strings.Cut(line, "\t")
		switch key {
		case "vendor_id", "cpu family", "model", "stepping", "microcode", "flags":
			h.Write([]byte(line))
		}
		if strings.TrimSpace(line) == "" {
			break // the first processor speaks for all
		}
	}
	return d.cpu + "-" + hex.EncodeToString(h.Sum(nil)[:6])
}

// layoutDigest changes whenever a change of argv could make a template
// unusable.
func (d *Driver) layoutDigest() string {
	l := d.layout(machine.Shape{VCPUs: 1, BaseMiB: 256, MaxMemMiB: 1024})
	l.restore = true
	sum := sha256.Sum256([]byte(strings.Join(l.argv(), "\x00")))
	return hex.EncodeToString(sum[:6])
}

// layout is the part of the command line that no Config changes.
func (d *Driver) layout(s machine.Shape) layout {
	return layout{
		accel: d.Accel(), cpu: d.cpu, tbSizeMiB: tbSizeMiB,
		portName: d.o.PortName, mac: d.o.MAC, shape: s,
		netFD: noFD, imageVMDK: noFD, scratchFD: noFD,
	}
}

// codeOf tells why ctx ended: by an error that has a code, a deadline, or else.
func codeOf(ctx context.Context) skerry.Code {
	var e *skerry.Error
	if errors.As(context.Cause(ctx), &e) {
		return e.Code
	}
	if ctx.Err() == context.DeadlineExceeded {
		return skerry.CodeTimeout
	}
	return skerry.CodeUnavailable
}
