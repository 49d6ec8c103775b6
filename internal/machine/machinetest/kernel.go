package machinetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/u-root/u-root/pkg/cpio"

	"skerry.dev/skerry/internal/machine"
)

// KernelDirEnv names a directory with an unpacked Debian kernel package:
// boot/vmlinuz-* and lib/modules/*. Without it $XDG_CACHE_HOME/skerry/kernel
// is used, which "make setup" fills.
const KernelDirEnv = "SKERRY_TEST_KERNEL_DIR"

// modules are what the guest needs, in the order in which they load.
var modules = []string{
	"drivers/virtio/virtio_ring.ko", "drivers/virtio/virtio.ko",
	"drivers/virtio/virtio_pci_modern_dev.ko", "drivers/virtio/virtio_pci_legacy_dev.ko", "drivers/virtio/virtio_pci.ko",
	"drivers/char/virtio_console.ko", "drivers/block/virtio_blk.ko",
	"net/core/failover.ko", "drivers/net/net_failover.ko", "drivers/net/virtio_net.ko",
	"drivers/virtio/virtio_balloon.ko", "drivers/virtio/virtio_mem.ko",
}

// Guest is the kernel and an initramfs with guestinit, in t's directory.
func Guest(t testing.TB) machine.Boot {
	t.Helper()
	dir, err := kernelDir()
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := single(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil {
		t.Fatal(err)
	}
	tree, err := single(filepath.Join(dir, "lib", "modules", "*", "kernel"))
	if err != nil {
		t.Fatal(err)
	}
	initrd, err := writeInitramfs(t.TempDir(), tree)
	if err != nil {
		t.Fatal(err)
	}
	return machine.Boot{KernelPath: kernel, InitrdPath: initrd,
		Args: "console=ttyS0 panic=-1 memhp_default_state=online_movable swiotlb=noforce mitigations=off"}
}

// ReadyMarker is what the guest writes to its console when it is up.
const ReadyMarker = "guestinit: ready"

func kernelDir() (string, error) {
	if dir := os.Getenv(KernelDirEnv); dir != "" {
		return dir, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "skerry", "kernel"), nil
}

func single(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("no guest kernel: %d files match %s; type \"make setup\", or set %s to a directory in which a Debian linux-image package was unpacked (dpkg-deb -x)",
			len(found), pattern, KernelDirEnv)
	}
	return found[0], nil
}

func writeInitramfs(dir, tree string) (string, error) {
	bin := filepath.Join(dir, "init")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", bin, "skerry.dev/skerry/internal/machine/machinetest/guestinit")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build guestinit: %w: %s", err, out)
	}
	var records []cpio.Record
	for _, d := range []string{"dev", "proc", "sys", "modules"} {
		records = append(records, cpio.Directory(d, 0o755))
	}
	init, err := os.ReadFile(bin)
	if err != nil {
		return "", err
	}
	records = append(records, cpio.StaticFile("init", string(init), 0o755), cpio.CharDev("dev/console", 0o600, 5, 1))
	for i, m := range modules {
		b, err := os.ReadFile(filepath.Join(tree, m))
		if err != nil {
			return "", err
		}
		records = append(records, cpio.StaticFile(fmt.Sprintf("modules/%02d-%s", i, filepath.Base(m)), string(b), 0o644))
	}
	path := filepath.Join(dir, "initrd.cpio")
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	w := cpio.Newc.Writer(f)
	if err := cpio.WriteRecords(w, records); err != nil {
		return "", err
	}
	return path, cpio.WriteTrailer(w)
}
