package guest_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/guesttest"
	"skerry.dev/skerry/internal/guestapi"
)

// tick is what /prog tick prints (guesttest/prog).
type tick struct {
	Seq                                                 int
	Random, UUID, MachineID, Hostname, HostFile, BootID string
	Wall, Monotonic                                     int64
}

func ticks(t *testing.T, vm *guesttest.VM, id skerry.ProcessID) []tick {
	t.Helper()
	var all []tick
	for line := range strings.Lines(vm.Log(id)) {
		var one tick
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if n := len(all); n > 0 && one.Seq != all[n-1].Seq+1 {
			t.Fatalf("line %d follows line %d", one.Seq, all[n-1].Seq)
		}
		all = append(all, one)
	}
	return all
}

// TestMemorySnapshot saves a machine in the middle of everything and goes on in
// copies of it: the first thing a process does there is not the same in two of
// them, and nothing it was doing is lost. Cases "wall clock is old after
// restore", "clones share random state".
func TestMemorySnapshot(t *testing.T) {
	const numbersTo = 40_000
	layers := []string{layer(t, distroless)}
	vm := guesttest.Boot(t, guesttest.Options{Agent: programs().agent, Layers: layers, Template: true})
	vm.Activate(vm.Activation())
	ticking := vm.StartProcess("tick")
	run := startRun(t, vm, t.Context(), "count", fmt.Sprint(numbersTo), "/tmp/go")
	defer run.body.Close()
	vm.Output("fill", "/tmp/big", "4")
	sum := vm.Output("sum", "/tmp/big")
	eventually(t, "ticks", func() (string, bool) {
		n := len(ticks(t, vm, ticking))
		return fmt.Sprint(n), n > 3
	})
	freeze(t, vm, guestapi.Freeze{Processes: true, Disk: true, DiskMillis: 60_000})
	var last tick
	eventually(t, "standstill", func() (string, bool) {
		before := last
		all := ticks(t, vm, ticking)
		last = all[len(all)-1]
		return fmt.Sprint(before.Seq, last.Seq), before.Seq == last.Seq
	})
	vm.CheckDisk()
	tpl := vm.CaptureLive(t.Context())

	seen := map[string]string{}
	for i := range 3 {
		name := fmt.Sprintf("copy-%d", i)
		copied := tpl.Restore(t.Context(), func() {})
		copied.Dial(t.Context())
		renewal := guestapi.Renewal{Time: time.Now(), Entropy: entropy(32)}
		if i < 2 {
			renewal.Identity = &guestapi.Activation{
				SandboxID: name, Hostname: name, MachineID: strings.Repeat(fmt.Sprint(i), 32),
				BootID: fmt.Sprintf("0000000%d-89ab-cdef-0123-456789abcdef", i), MAC: "5a:94:ef:00:01:0" + fmt.Sprint(i),
				Env: map[string]string{"COPY": name},
			}
		} else {
			renewal.Entropy = nil // cannot be reseeded
		}
		err := copied.Control(t.Context(), guestapi.PathRenew, renewal, nil)
		if renewal.Entropy == nil {
			testBroken(t, copied, err)
			continue
		}
		if err != nil {
			t.Fatalf("%v\nconsole:\n%s", err, copied.Console())
		}
		// The line after the last may have been begun before the freeze.
		var first tick
		eventually(t, "ticks", func() (string, bool) {
			all := ticks(t, copied, ticking)
			for _, one := range all {
				if one.Seq == last.Seq+2 {
					first = one
				}
			}
			return fmt.Sprint(len(all)), first.Seq > 0
		})
		for what, value := range map[string]string{"random": first.Random, "uuid": first.UUID, "machine-id": first.MachineID,
			"hostname": first.Hostname, "hostname file": first.HostFile, "boot id": first.BootID} {
			if other := seen[what+value]; other != "" {
				t.Errorf("%s: the first %s is that of %s: %s", name, what, other, value)
			}
			seen[what+value] = name
		}
		id := renewal.Identity
		if first.Hostname != id.Hostname || first.HostFile != id.Hostname || first.MachineID != id.MachineID || first.BootID != id.BootID {
			t.Errorf("%s is %+v", name, first)
		}
		if off := time.Unix(0, first.Wall).Sub(renewal.Time); off < 0 || off > time.Minute {
			t.Errorf("%s: the first clock read is %v after the time that was set", name, off)
		}
		if wall, mono := first.Wall-last.Wall, first.Monotonic-last.Monotonic; mono < 0 || mono > wall {
			t.Errorf("%s: the monotonic clock went %v, the wall clock %v", name, time.Duration(mono), time.Duration(wall))
		}
		if got := copied.Output("cat", "/etc/hosts"); !strings.Contains(got, id.Hostname+"\n") || strings.Contains(got, "skerry-test") {
			t.Errorf("hosts = %q", got)
		}
		env := copied.StartProcess("env")
		copied.Wait(env)
		if got := copied.Log(env); !strings.Contains(got, "COPY="+name+"\n") {
			t.Errorf("environment of a new command: %q", got)
		}
		eventually(t, "the hardware address", func() (string, bool) {
			got := copied.Output("cat", "/sys/class/net/eth0/address")
			return got, got == id.MAC+"\n"
		})
		// What ran goes on where it was.
		copied.Output("write", "/tmp/go", "")
		if r := copied.Wait(run.id); r.ExitCode == nil || *r.ExitCode != 0 || copied.Log(run.id) != numbers(numbersTo) {
			t.Errorf("%s: run %+v, %d bytes of output", name, r, len(copied.Log(run.id)))
		}
		if got := copied.Output("sum", "/tmp/big"); got != sum {
			t.Errorf("%s: file %s, was %s", name, got, sum)
		}
		if err := copied.Control(t.Context(), guestapi.PathShutdown, guestapi.Shutdown{GraceMillis: 500}, nil); err != nil {
			t.Error(err)
		}
		copied.CheckScratch()
	}
}

// testBroken: a copy that could not be renewed never runs anything.
func testBroken(t *testing.T, vm *guesttest.VM, err error) {
	if err == nil || !strings.Contains(err.Error(), "entropy") {
		t.Errorf("renewal without entropy: %v", err)
	}
	for _, path := range []string{guestapi.PathThaw, guestapi.PathRenew} {
		if err := vm.Control(t.Context(), path, guestapi.Renewal{Time: time.Now(), Entropy: entropy(32)}, nil); skerry.CodeOf(err) != skerry.CodeConflict {
			t.Errorf("%s: %v, want a conflict", path, err)
		}
	}
	if err := vm.Call("GET", "/processes", nil, nil); err == nil {
		t.Error("the toolbox answers")
	}
	if s := vm.Stats(); s.Processes != 2 {
		t.Errorf("stats = %+v, want the two processes that were saved, frozen", s)
	}
	if err := vm.Control(t.Context(), guestapi.PathShutdown, guestapi.Shutdown{GraceMillis: 500}, nil); err != nil {
		t.Error(err)
	}
	vm.CheckScratch()
}

func entropy(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}
