package machinetest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
)

// checkImage reads the marks at the start of each extent, and that the image
// cannot be written.
func checkImage(t *testing.T, v *VM) {
	t.Helper()
	for sector, want := range map[int]string{0: "first", 64: "second"} {
		if got := v.Do(fmt.Sprintf("read vda %d", sector)); got != want {
			t.Errorf("image sector %d: got %q, want %q", sector, got, want)
		}
	}
	if got, want := v.Do("size vda"), fmt.Sprint(128*512); got != want {
		t.Errorf("image size: got %s, want %s", got, want)
	}
	if got := v.Try("write vda 0 x"); !strings.HasPrefix(got, "error") {
		t.Errorf("write to the image: got %q, want an error", got)
	}
}

// checkScratch writes mark to the writable disk, finds it in the file on the
// host, and fails to write beyond its end.
func checkScratch(t *testing.T, v *VM, disk *os.File, mark string) {
	t.Helper()
	fi, err := disk.Stat()
	if err != nil {
		t.Fatal(err)
	}
	size := fi.Size()
	if got, want := v.Do("size vdb"), fmt.Sprint(size); got != want {
		t.Errorf("size of vdb: got %s, want %s", got, want)
	}
	last := size/512 - 1
	v.Do(fmt.Sprintf("write vdb %d %s", last, mark))
	got := make([]byte, len(mark))
	if _, err := disk.ReadAt(got, last*512); err != nil || string(got) != mark {
		t.Errorf("host file: got %q, %v, want %q", got, err, mark)
	}
	if got := v.Try(fmt.Sprintf("write vdb %d %s", last+1, mark)); !strings.HasPrefix(got, "error") {
		t.Errorf("write beyond the end: got %q, want an error", got)
	}
	if fi, err = disk.Stat(); err != nil || fi.Size() != size {
		t.Errorf("file after a write beyond its end: got %d bytes, %v, want %d", fi.Size(), err, size)
	}
}

// testSiblings: two clones at once answer, see the image, and write each to
// its own disk. The template stays as it was.
func testSiblings(t *testing.T, s *suite) {
	before := digest(t, s.template.RAM)
	disks := []*os.File{Disk(t, 32<<20), Disk(t, 64<<20)}
	var vms []*VM
	for _, d := range disks {
		vms = append(vms, Start(t, s.Driver, machine.Config{Shape: shape, Image: s.image, Scratch: d, Template: s.template}))
	}
	for _, v := range vms {
		v.Resume()
		v.Hello()
	}
	for i, v := range vms {
		checkImage(t, v)
		checkScratch(t, v, disks[i], fmt.Sprintf("clone%d", i))
		v.Do("check")
	}
	if digest(t, s.template.RAM) != before {
		t.Error("the template's memory was changed")
	}
}

// testSetScratch: the placeholder is replaced on a paused machine, once; freed
// blocks go back to the host.
func testSetScratch(t *testing.T, s *suite) {
	v := Start(t, s.Driver, machine.Config{Shape: shape, Image: s.image, Template: s.template})
	disk := Disk(t, 32<<20)
	if err := v.SetScratch(t.Context(), disk); err != nil {
		t.Fatal(err)
	}
	if err := v.SetScratch(t.Context(), Disk(t, 32<<20)); skerry.CodeOf(err) != skerry.CodeConflict {
		t.Errorf("second time: got %v, want code %s", err, skerry.CodeConflict)
	}
	v.Resume()
	v.Hello()
	checkScratch(t, v, disk, "swapped")
	if allocated(t, disk) == 0 {
		t.Fatal("the write took no block of the file")
	}
	v.Do(fmt.Sprintf("discard vdb 0 %d", 32<<20))
	if got := allocated(t, disk); got != 0 {
		t.Errorf("after a discard: %d bytes allocated, want 0", got)
	}
}
