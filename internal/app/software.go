package app

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/guestapi"
	"skerry.dev/skerry/internal/host"
	"skerry.dev/skerry/internal/hypervisor"
	"skerry.dev/skerry/internal/image"
	"skerry.dev/skerry/internal/kernel"
	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/machine/qemu"
	"skerry.dev/skerry/internal/programs"
	"skerry.dev/skerry/internal/runner"
	"skerry.dev/skerry/internal/shim"
)

// platformFormat is raised when the initramfs or the platform partition are
// made differently from the same kernel and agent.
const platformFormat = "1"

// software finds, and makes where it can, what machines are started from: the
// hypervisor, the guest's kernel, the initramfs with the agent, the platform
// partition.
type software struct {
	cfg Config
	log *slog.Logger
	dir string // of all kernels

	mu    sync.Mutex
	accel *accelResult // guarded by mu; nil before the probe
}

type accelResult struct {
	name   string // kvm, tcg
	detail string // why not KVM, or ""
}

func newSoftware(cfg Config) *software {
	return &software{cfg: cfg, log: cfg.Logger, dir: filepath.Join(cfg.DataDir, "kernel")}
}

// prepare implements runner.Config.Prepare.
func (s *software) prepare(ctx context.Context) (runner.Prepared, error) {
	k, err := s.kernel(ctx)
	if err != nil {
		return runner.Prepared{}, err
	}
	guest, err := s.guest(ctx, k)
	if err != nil {
		return runner.Prepared{}, fmt.Errorf("guest software: %w", err)
	}
	accel, err := s.accelerator(ctx, guest)
	if err != nil {
		return runner.Prepared{}, err
	}
	spec := shim.DriverSpec{Binary: s.cfg.QEMU, Accel: accel.name}
	version, err := hypervisor.New(spec).Version(ctx)
	if err != nil {
		return runner.Prepared{}, err
	}
	return runner.Prepared{Guest: guest, Driver: spec, Hypervisor: version}, nil
}

// kernel opens the user's kernel, or Debian's, which is fetched and unpacked
// first if it is not there.
func (s *software) kernel(ctx context.Context) (*kernel.Kernel, error) {
	if s.cfg.Kernel != "" {
		return kernel.New(s.cfg.Kernel, s.cfg.Modules)
	}
	dir := filepath.Join(s.dir, "debian")
	k, err := kernel.Open(dir)
	if err == nil {
		return k, nil
	}
	if _, serr := os.Stat(dir); serr == nil {
		return nil, skerry.Errorf(skerry.CodeUnavailable, "guest kernel: %w; remove %s to fetch it anew", err, dir)
	}
	s.log.Info("fetching the guest kernel", "dir", dir)
	if k, err = FetchKernel(ctx, dir, ""); err != nil {
		return nil, skerry.Errorf(skerry.CodeUnavailable, "guest kernel: %w", err)
	}
	return k, nil
}

// FetchKernel unpacks Debian's kernel package into dir, which must not exist:
// the package file deb, or the one that apt-get downloads if deb is "".
func FetchKernel(ctx context.Context, dir, deb string) (*kernel.Kernel, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return nil, err
	}
	if deb == "" {
		tmp, err := os.MkdirTemp(filepath.Dir(dir), "download-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(tmp)
		if deb, err = kernel.Fetch(ctx, runtime.GOARCH, tmp); err != nil {
			return nil, err
		}
	}
	return kernel.Unpack(ctx, deb, dir)
}

// guest makes initramfs and platform partition, once for a kernel and agent.
func (s *software) guest(ctx context.Context, k *kernel.Kernel) (runner.Guest, error) {
	agent, err := programs.Guest(runtime.GOARCH)
	if err != nil {
		return runner.Guest{}, skerry.Errorf(skerry.CodeUnavailable, "%w", err)
	}
	key, err := guestKey(k, agent)
	if err != nil {
		return runner.Guest{}, err
	}
	dir := filepath.Join(s.dir, "guest-"+key)
	g := runner.Guest{KernelPath: k.ImagePath, InitrdPath: filepath.Join(dir, "initramfs"),
		PlatformPath: filepath.Join(dir, "platform.erofs"), Key: key}
	if err := s.removeStale(filepath.Base(dir)); err != nil {
		return g, err
	}
	if _, err := os.Stat(dir); err == nil {
		return g, nil
	}
	tmp, err := os.MkdirTemp(s.dir, "new-")
	if err != nil {
		return g, err
	}
	defer os.RemoveAll(tmp)
	if err := writeInitramfs(k, agent, filepath.Join(tmp, "initramfs")); err != nil {
		return g, err
	}
	if err := writePlatform(ctx, k, filepath.Join(tmp, "platform.erofs")); err != nil {
		return g, err
	}
	return g, os.Rename(tmp, dir)
}

// removeStale removes the software of earlier kernels and agents, and what a
// crash left half made. Machines that run have open what they need of it.
func (s *software) removeStale(keep string) error {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, os.ErrNotExist) {
		return os.MkdirAll(s.dir, 0o700)
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		stale := strings.HasPrefix(name, "new-") || strings.HasPrefix(name, "download-") ||
			(strings.HasPrefix(name, "guest-") && name != keep)
		if !stale {
			continue
		}
		if err := os.RemoveAll(filepath.Join(s.dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// guestKey names kernel and agent by content; modules go with the kernel.
func guestKey(k *kernel.Kernel, agent []byte) (string, error) {
	f, err := os.Open(k.ImagePath)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	fmt.Fprintln(h, platformFormat, k.Version, len(agent))
	h.Write(agent)
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:12]), nil
}

func writeInitramfs(k *kernel.Kernel, agent []byte, path string) error {
	var b bytes.Buffer
	if err := kernel.BuildInitramfs(k, agent, &b); err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

func writePlatform(ctx context.Context, k *kernel.Kernel, path string) error {
	tarPath := path + ".tar"
	f, err := os.Create(tarPath)
	if err != nil {
		return err
	}
	defer os.Remove(tarPath)
	defer f.Close()
	if err := kernel.WritePlatformTar(k, f); err != nil {
		return fmt.Errorf("platform: %w", err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, _, err := disk.BuildLayer(ctx, f, size, nil, path, disk.Limits{}); err != nil {
		return fmt.Errorf("platform: %w", err)
	}
	return nil
}

// accelerator is KVM where a probe boots the guest's kernel with it.
func (s *software) accelerator(ctx context.Context, g runner.Guest) (accelResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accel != nil {
		return *s.accel, nil
	}
	res := accelResult{name: "tcg", detail: "asked for by --accel"}
	if s.cfg.Accel != "tcg" {
		err := s.probeKVM(ctx, g)
		switch {
		case err == nil:
			res = accelResult{name: "kvm"}
		case ctx.Err() != nil:
			return res, ctx.Err()
		case s.cfg.Accel == "kvm":
			return res, skerry.Errorf(skerry.CodeUnavailable, "KVM is asked for by --accel and not usable: %w", err)
		default:
			res.detail = err.Error()
		}
	}
	s.accel = &res
	return res, nil
}

// probeKVM boots the guest's kernel with KVM; an error says why it is not usable.
func (s *software) probeKVM(ctx context.Context, g runner.Guest) error {
	status, err := qemu.KVMProbe{
		Options:   qemu.Options{Binary: s.cfg.QEMU, PortName: guestapi.PortName},
		Boot:      machine.Boot{KernelPath: g.KernelPath, InitrdPath: g.InitrdPath, Args: "console=ttyS0 panic=-1"},
		CachePath: filepath.Join(s.cfg.DataDir, "kvm-probe.json"),
	}.Run(ctx)
	if err == nil && !status.Usable() {
		err = errors.New(status.Detail)
	}
	return err
}

// anyMachineUID stands for the ids that hypervisors of a root server get.
const anyMachineUID = 0x70000000

// checks implements runner.Config.Checks.
func (s *software) checks(ctx context.Context) []skerry.Check {
	var uid uint32
	if os.Getuid() == 0 {
		uid = anyMachineUID
	}
	return host.Check(ctx, host.Config{DataDir: s.cfg.DataDir, MachineUID: uid, Hypervisor: s.checkHypervisor, Kernel: s.checkKernel,
		Accel: s.checkAccel, ImageBuild: checkImageBuild, CgroupsEnforced: s.cfg.cgroups.Enforced})
}

func (s *software) checkHypervisor(ctx context.Context) skerry.Check {
	c := skerry.Check{Name: "QEMU", Level: skerry.CheckOK}
	v, err := hypervisor.New(shim.DriverSpec{Binary: s.cfg.QEMU, Accel: "tcg"}).Version(ctx)
	if err != nil {
		c.Level, c.Detail, c.Fix = skerry.CheckFail, err.Error(), "sudo apt-get install qemu-system-x86"
		return c
	}
	c.Detail = v
	return c
}

func (s *software) checkKernel(context.Context) skerry.Check {
	c := skerry.Check{Name: "guest kernel", Level: skerry.CheckOK}
	var k *kernel.Kernel
	var err error
	if s.cfg.Kernel != "" {
		k, err = kernel.New(s.cfg.Kernel, s.cfg.Modules)
	} else {
		k, err = kernel.Open(filepath.Join(s.dir, "debian"))
	}
	switch {
	case err == nil:
		c.Detail = k.Version + " with its modules"
	case errors.Is(err, os.ErrNotExist) && s.cfg.Kernel == "":
		c.Level, c.Detail, c.Fix = skerry.CheckWarn, "not fetched yet; the server does so when it starts", "skerry kernel fetch"
	default:
		c.Level, c.Detail, c.Fix = skerry.CheckFail, err.Error(), "skerry kernel fetch"
	}
	return c
}

// checkImageBuild only warns: images can also be pulled and imported.
func checkImageBuild(ctx context.Context) skerry.Check {
	c := skerry.Check{Name: "mmdebstrap", Level: skerry.CheckOK, Detail: "can build the default image"}
	if err := image.CheckBuild(ctx); err != nil {
		c.Level, c.Detail = skerry.CheckWarn, "cannot build the default image: "+err.Error()
		var lack *image.BuildLack
		if errors.As(err, &lack) {
			c.Detail, c.Fix = "cannot build the default image: "+lack.What, lack.Fix
		}
	}
	return c
}

func (s *software) checkAccel(ctx context.Context) skerry.Check {
	c := skerry.Check{Name: "KVM", Level: skerry.CheckOK, Detail: "the guest kernel boots with it"}
	s.mu.Lock()
	res := s.accel
	s.mu.Unlock()
	if res == nil {
		p, err := s.prepare(ctx)
		if err != nil {
			return skerry.Check{Name: "KVM", Level: skerry.CheckWarn, Detail: "not probed: " + err.Error()}
		}
		if p.Driver.Accel == "kvm" {
			return c
		}
		s.mu.Lock()
		res = s.accel
		s.mu.Unlock()
	}
	if res.name != "kvm" {
		c.Level, c.Detail = skerry.CheckWarn, "software emulation is used, programs run many times slower: "+res.detail
		c.Fix = "on a host with virtualisation: sudo usermod -aG kvm $USER, then log in again"
	}
	return c
}
