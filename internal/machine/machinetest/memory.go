package machinetest

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"skerry.dev/skerry"
)

// allocated is the bytes a file takes on its file system.
func allocated(t testing.TB, f *os.File) int64 {
	t.Helper()
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return fi.Sys().(*syscall.Stat_t).Blocks * 512
}

// HostMiB is a process's share of the host's memory, its proportional set
// size (proc(5), smaps_rollup).
func HostMiB(t testing.TB, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "Pss: %d kB", &kib); n == 1 {
			return kib >> 10
		}
	}
	t.Fatal("smaps_rollup without Pss")
	return 0
}

// memoryIs waits until the guest has so much.
func memoryIs(t *testing.T, v *VM, want int64) {
	t.Helper()
	Wait(t, fmt.Sprintf("memory of %d MiB", want), func() bool {
		got, err := v.MemoryMiB(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return got == want
	})
}

// testPlugMemory: memory is plugged, used, and unplugged after it was freed,
// and then the host has it back.
func testPlugMemory(t *testing.T, s *suite) {
	v := s.restore(t, nil)
	memoryIs(t, v, shape.BaseMiB)
	for _, wrong := range []int64{shape.BaseMiB - 2, shape.MaxMemMiB + 2, shape.BaseMiB + 1} {
		if err := v.SetMemory(t.Context(), wrong); skerry.CodeOf(err) != skerry.CodeInvalid {
			t.Errorf("%d MiB: got %v, want code %s", wrong, err, skerry.CodeInvalid)
		}
	}
	if err := v.SetMemory(t.Context(), 1024); err != nil {
		t.Fatal(err)
	}
	memoryIs(t, v, 1024)
	small := HostMiB(t, v.PID())
	v.Do("free") // the pattern of the template
	v.Do("alloc 640 3")
	if got, want := v.Do("check"), "640"; got != want {
		t.Errorf("check: got %s, want %s", got, want)
	}
	big := HostMiB(t, v.PID())
	if big < small+512 {
		t.Errorf("host memory: %d MiB before, %d after 640 MiB were filled", small, big)
	}
	v.Do("free")
	if err := v.SetMemory(t.Context(), shape.BaseMiB); err != nil {
		t.Fatal(err)
	}
	memoryIs(t, v, shape.BaseMiB)
	Wait(t, "memory back on the host", func() bool { return HostMiB(t, v.PID()) < big-400 })
}

// testFreePageReporting: the host gets back what a guest has freed, without
// unplugging. It must not get it out of the template: a sibling that has not
// read a page yet must find it there. (QEMU punches a hole into the file under
// a reported page even when it maps the file privately.)
func testFreePageReporting(t *testing.T, s *suite) {
	before := digest(t, s.template.RAM)
	reporter, sibling := s.restore(t, nil), s.restore(t, nil)
	if err := reporter.SetMemory(t.Context(), shape.MaxMemMiB); err != nil {
		t.Fatal(err)
	}
	memoryIs(t, reporter, shape.MaxMemMiB)
	reporter.Do("free") // pages of the template
	reporter.Do("alloc 600 5")
	big := HostMiB(t, reporter.PID())
	reporter.Do("free")
	Wait(t, "reported memory back on the host", func() bool { return HostMiB(t, reporter.PID()) < big-400 })
	if got, want := sibling.Do("check"), fmt.Sprint(patternMiB); got != want {
		t.Errorf("sibling: checked %s MiB, want %s", got, want)
	}
	if digest(t, s.template.RAM) != before {
		t.Error("the template's memory was changed")
	}
}
