//go:build linux

package disktest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// MountLayer mounts a layer file read-only until the test ends. It skips the
// test, saying why, if this machine cannot.
func MountLayer(t testing.TB, path string) string {
	t.Helper()
	dir := t.TempDir()
	needMount(t)
	mount(t, dir, "-t", "erofs", "-o", "loop,ro", path, dir)
	return dir
}

// MountOverlay mounts the merged view of layer files, bottom first, as a guest
// does.
func MountOverlay(t testing.TB, layers ...string) string {
	t.Helper()
	needMount(t)
	// Not t.TempDir: the test's name may have characters that mean something
	// in mount options.
	base, err := os.MkdirTemp("", "overlay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	var lowers []string
	for i, layer := range layers {
		dir := filepath.Join(base, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		mount(t, dir, "-t", "erofs", "-o", "loop,ro", layer, dir)
		lowers = append([]string{dir}, lowers...)
	}
	// Overlayfs wants two lower directories, or one and an upper one.
	empty := filepath.Join(base, "empty")
	merged := filepath.Join(base, "merged")
	for _, dir := range []string{empty, merged} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	lowers = append(lowers, empty)
	mount(t, merged, "-t", "overlay", "-o", "ro,lowerdir="+strings.Join(lowers, ":"), "overlay", merged)
	return merged
}

func needMount(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		t.Fatal(err)
	}
	for _, fs := range []string{"erofs", "overlay"} {
		if !strings.Contains(string(known), "\t"+fs+"\n") {
			t.Skipf("this kernel has no %s", fs)
		}
	}
}

func mount(t testing.TB, dir string, args ...string) {
	t.Helper()
	if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
		t.Fatalf("mount %v: %v: %s", args, err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
}
