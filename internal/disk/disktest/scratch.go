//go:build linux

package disktest

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// WithScratch mounts a disk that this machine itself made, calls use with the
// root of its file system, then frozen, which may be nil, while the file system
// is frozen, and unmounts it. The test is skipped if this machine cannot.
func WithScratch(t testing.TB, disk string, use, frozen func(root string)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "ext4", "-o", "loop,rw,noatime", disk, dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	defer command(t, "umount", dir)
	use(dir)
	if frozen == nil {
		return
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const fiFreeze, fiThaw = 0xC0045877, 0xC0045878 // linux/fs.h
	if err := unix.IoctlSetInt(int(f.Fd()), fiFreeze, 0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.IoctlSetInt(int(f.Fd()), fiThaw, 0); err != nil {
			t.Error(err)
		}
	}()
	frozen(dir)
}

func command(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Errorf("%s %v: %v: %s", name, args, err, out)
	}
}
