package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/machine/machinetest"
)

// smallDisk is a directory on a file system of so many bytes.
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("only root can make a file system that gets full: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestFullHost: a save or a copy that finds no room leaves a machine that goes
// on, and no files; so does one of another shape that is started from a save.
func TestFullHost(t *testing.T) {
	dir := smallDisk(t, "size=1m")
	d := New(Options{PortName: "org.skerry.agent", UID: 65534, GID: 65534})
	boot := machinetest.Guest(t)
	shape := machine.Shape{VCPUs: 1, BaseMiB: 256, MaxMemMiB: 512}
	v := machinetest.Start(t, d, machine.Config{Shape: shape, Boot: &boot, Image: machinetest.Image(t), Scratch: machinetest.Disk(t, 32<<20)})
	v.Hello()
	v.Do("work 16")
	req := machine.SaveRequest{StatePath: filepath.Join(dir, "state"), RAMPath: filepath.Join(dir, "ram")}
	for _, final := range []bool{false, true} {
		req.Final = final
		if _, err := v.Save(t.Context(), req); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("save, final %t: got %v, want %v", final, err, unix.ENOSPC)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("save, final %t: left %v, %v", final, left, err)
		}
		v.Works(3)
	}
	for range 3 {
		copyToFull(t, v, dir)
	}
	dir = t.TempDir()
	req = machine.SaveRequest{StatePath: filepath.Join(dir, "state"), RAMPath: filepath.Join(dir, "ram")}
	if _, err := v.Save(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	template := machinetest.Load(t, machinetest.Implementation{Driver: d, Load: LoadTemplate}, req.RAMPath, req.StatePath)
	shape.MaxMemMiB = 1024
	_, err := d.Start(t.Context(), machine.Config{Shape: shape, Dir: t.TempDir(), Template: template})
	if skerry.CodeOf(err) != skerry.CodeUnavailable || !strings.Contains(err.Error(), "start machine") {
		t.Errorf("start with another shape: got %v, want code %s", err, skerry.CodeUnavailable)
	}
}

// copyToFull copies the disk to where no room is left when the guest writes:
// after the cut its writes wait for the copy, which cannot be made.
func copyToFull(t *testing.T, v *machinetest.VM, dir string) {
	t.Helper()
	dst, err := os.Create(filepath.Join(dir, "copy"))
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dst.Name())
	defer dst.Close()
	dc, err := v.CopyScratch(t.Context(), dst)
	if err != nil { // no room for what is there already
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("copy: got %v, want %v", err, unix.ENOSPC)
		}
		v.Works(3)
		return
	}
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(filler.Name())
	defer filler.Close()
	for err == nil {
		_, err = filler.Write(make([]byte, pageBytes))
	}
	if err := dc.Cut(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = dc.Wait(t.Context())
	t.Logf("copy without room: %v", err)
	if err := dc.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	v.Works(20)
}
