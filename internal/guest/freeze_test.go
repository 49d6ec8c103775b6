package guest_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/guesttest"
	"skerry.dev/skerry/internal/guest/guesttest/run"
	"skerry.dev/skerry/internal/guestapi"
)

func freeze(t *testing.T, vm *guesttest.VM, f guestapi.Freeze) {
	t.Helper()
	if err := vm.Control(t.Context(), guestapi.PathFreeze, f, nil); err != nil {
		t.Fatalf("%v\nconsole:\n%s", err, vm.Console())
	}
}

func thaw(t *testing.T, vm *guesttest.VM) {
	t.Helper()
	if err := vm.Control(t.Context(), guestapi.PathThaw, nil, nil); err != nil {
		t.Fatalf("%v\nconsole:\n%s", err, vm.Console())
	}
}

// lines returns how many lines a process has printed.
func lines(vm *guesttest.VM, id skerry.ProcessID) int { return strings.Count(vm.Log(id), "\n") }

// testFreeze stops processes and the disk, together and alone.
func testFreeze(t *testing.T, vm *guesttest.VM) {
	thaw(t, vm) // nothing is frozen
	tick := vm.StartProcess("tick")
	more := func(what string) {
		n := lines(vm, tick)
		eventually(t, what, func() (string, bool) {
			now := lines(vm, tick)
			return fmt.Sprint(now), now > n
		})
	}
	more("ticks")
	freeze(t, vm, guestapi.Freeze{Processes: true})
	freeze(t, vm, guestapi.Freeze{Processes: true})
	// A start waits; it must hold up neither the agent nor the thaw.
	var starts sync.WaitGroup
	for range 4 {
		starts.Go(func() {
			if res, err := vm.Run(run.Request{Argv: []string{"/prog", "true"}}); err != nil || res.ExitCode != 0 {
				t.Errorf("start while frozen: %+v, %v", res, err)
			}
		})
	}
	// The pipe is empty when the agent has answered requests after the freeze.
	eventually(t, "standstill", func() (string, bool) {
		n := lines(vm, tick)
		for range 20 {
			if !vm.Stats().Busy {
				t.Error("idle while a process is frozen")
			}
		}
		now := lines(vm, tick)
		return fmt.Sprint(n, now), n == now
	})
	thaw(t, vm)
	starts.Wait()
	more("ticks after the thaw")

	freeze(t, vm, guestapi.Freeze{Disk: true, DiskMillis: 600_000})
	freeze(t, vm, guestapi.Freeze{Disk: true, DiskMillis: 600_000})
	writer := vm.StartProcess("write", "/tmp/frozen", "text")
	var put sync.WaitGroup
	put.Go(func() {
		if err := vm.Call("POST", "/files/folder?path=/tmp/folder&mode=755", nil, nil); err != nil {
			t.Error(err)
		}
	})
	pid := vm.Process(writer).PID
	eventually(t, "the writer to wait for the disk", func() (string, bool) {
		res, err := vm.Run(run.Request{Argv: []string{"/prog", "waiting", fmt.Sprint(pid)}})
		return fmt.Sprintf("%+v %v", res, err), err == nil && res.Output == "true\n"
	})
	vm.CheckDisk() // consistent while the machine runs
	more("ticks while the disk is frozen")
	thaw(t, vm)
	put.Wait()
	if r := vm.Wait(writer); r.ExitCode == nil || *r.ExitCode != 0 {
		t.Errorf("writer: %+v", r)
	}
	// The host does not come back.
	freeze(t, vm, guestapi.Freeze{Processes: true, Disk: true, DiskMillis: 1})
	thaw(t, vm)
	freeze(t, vm, guestapi.Freeze{Disk: true, DiskMillis: 200})
	vm.Output("write", "/tmp/frozen", "more")
	if got := vm.Output("cat", "/tmp/frozen"); got != "more" {
		t.Errorf("file = %q", got)
	}
	vm.MustCall("POST", "/processes/"+string(tick)+"/signals", map[string]string{"signal": "KILL"}, nil)
	vm.Wait(tick)
	eventually(t, "the sandbox to be idle", func() (string, bool) {
		s := vm.Stats()
		return fmt.Sprintf("%+v", s), !s.Busy && s.IdleMillis > 0
	})
}
