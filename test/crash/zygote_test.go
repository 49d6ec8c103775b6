package crash

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testserver"
)

// forking is a server that forks machines as soon as there is a zygote.
var forking = testserver.Options{Args: []string{"--pool", "0"}}

// zygoteTime is how long a zygote may take to be made on a busy host.
const zygoteTime = 2 * time.Minute

// zygote waits until there is a zygote that is ready, or with made false one that
// is being made.
func (w *world) zygote(made bool) (z testserver.Machine) {
	w.t.Helper()
	w.eventually(zygoteTime, func() error {
		all, err := w.dir.AllMachines()
		if err != nil {
			return err
		}
		for _, m := range all {
			if m.Zygote && m.QEMU != 0 && (m.Phase == "frozen") == made {
				z = m
				return nil
			}
		}
		return fmt.Errorf("no zygote among %+v", all)
	})
	return z
}

// createForked makes a sandbox that must be forked.
func (w *world) createForked(name string) skerry.Sandbox {
	w.t.Helper()
	w.zygote(true)
	sb := w.create(name)
	m, err := w.dir.MachineOf(string(sb.Machine))
	w.must(err)
	if !m.Forked {
		w.t.Fatalf("%s was not forked", name)
	}
	return sb
}

// wantGone waits until nothing is left of a machine.
func (w *world) wantGone(m testserver.Machine) {
	w.t.Helper()
	w.eventually(20*time.Second, func() error {
		found, err := filepath.Glob(filepath.Join(w.dir.Data(), "machines", m.ID))
		if err != nil || len(found) > 0 {
			return fmt.Errorf("%q, %v", found, err)
		}
		for _, pid := range []int{m.Shim, m.QEMU} {
			if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
				return fmt.Errorf("process %d of the machine: %v", pid, err)
			}
		}
		return nil
	})
}

// TestZygoteKilled kills the shim, and the hypervisor, of a zygote, and then of
// what was forked from it. Each ends for itself; creates work all the time, and
// there is a new zygote for later ones.
func TestZygoteKilled(t *testing.T) {
	w := newWorld(t)
	w.start(forking)
	first := w.create("first") // restored
	for _, victim := range []string{"shim", "hypervisor"} {
		t.Run(victim, func(t *testing.T) {
			w := w.with(t)
			pid := func(m testserver.Machine) int {
				return map[string]int{"shim": m.Shim, "hypervisor": m.QEMU}[victim]
			}
			forked, other := w.createForked("forked-"+victim), w.createForked("other-"+victim)
			z := w.zygote(true)
			w.must(syscall.Kill(pid(z), syscall.SIGKILL))
			next := w.create("next-" + victim) // at once: by whatever way
			w.wantGone(z)
			for _, sb := range []skerry.Sandbox{first, forked, other, next} {
				w.wantAlive(sb)
			}
			m, err := w.dir.MachineOf(string(forked.Machine))
			w.must(err)
			w.must(syscall.Kill(pid(m), syscall.SIGKILL))
			w.wantFailed(forked.ID, 20*time.Second)
			w.eventually(20*time.Second, func() error {
				if err := syscall.Kill(m.QEMU, 0); err != syscall.ESRCH {
					return fmt.Errorf("the hypervisor of the forked machine: %v", err)
				}
				return nil
			})
			w.wantAlive(other)
			w.wantAlive(w.createForked("again-" + victim))
		})
	}
	w.restartAndClean()
}

// restartAndClean has the next server, without zygotes, find just the sandboxes.
func (w *world) restartAndClean() {
	w.t.Helper()
	w.stop()
	w.start(quiet)
	var want []skerry.Sandbox
	for sb, err := range w.server.Client.AllSandboxes(w.t.Context(), skerry.SandboxFilter{}) {
		w.must(err)
		if sb.Status == skerry.StatusRunning {
			want = append(want, sb)
			w.wantAlive(sb)
			continue
		}
		w.must(w.server.Delete(w.t.Context(), sb.ID))
	}
	w.wantOnly(want...)
}

// TestServerKilledWithZygotes kills the server while a zygote is made, when it is
// ready, and while a machine is forked from it. Nothing is left of the zygote, and
// the sandboxes are there; forked ones fail if their machine ends without a server.
func TestServerKilledWithZygotes(t *testing.T) {
	w := newWorld(t)
	w.start(forking)
	first := w.create("first")
	w.zygote(false)
	w.kill()
	w.start(forking)
	w.wantAlive(first)
	second := w.create("second")
	forked := w.createForked("forked")
	w.kill()
	m, err := w.dir.MachineOf(string(forked.Machine))
	w.must(err)
	w.must(syscall.Kill(m.Shim, syscall.SIGKILL))
	w.start(forking)
	w.wantFailed(forked.ID, 20*time.Second)
	w.must(w.server.Delete(t.Context(), forked.ID))
	w.wantAlive(second)
	w.create("wanted") // so that there is a zygote
	w.zygote(true)
	sb, err := w.server.Client.CreateSandbox(t.Context(), client.CreateSandbox{Name: "victim", WaitSeconds: new(int)})
	w.must(err)
	for deadline := time.Now().Add(patience); ; {
		all, err := w.dir.AllMachines()
		w.must(err)
		under := false
		for _, m := range all {
			under = under || m.Forked && m.ID != string(second.Machine)
		}
		if under {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no machine is forked: %+v", all)
		}
		time.Sleep(time.Millisecond)
	}
	w.kill()
	w.start(quiet)
	sb, err = w.server.Client.WaitSandbox(t.Context(), string(sb.ID), patience, skerry.StatusRunning, skerry.StatusFailed)
	if err != nil || sb.Status != skerry.StatusRunning {
		t.Fatalf("after the restart: %s (%s), %v; end of the log:\n%s", sb.Status, sb.Reason, err, w.server.LogTail(20))
	}
	w.wantAlive(sb)
	w.restartAndClean()
}

// TestImageOfZygoteDeleted deletes an image whose zygote is there, or is being
// made: it goes with its image.
func TestImageOfZygoteDeleted(t *testing.T) {
	w := newWorld(t)
	w.start(forking)
	for _, made := range []bool{true, false} {
		t.Run(fmt.Sprintf("made %t", made), func(t *testing.T) {
			w := w.with(t)
			sb := w.create("")
			z := w.zygote(made)
			w.must(w.server.Delete(t.Context(), sb.ID))
			w.must(w.server.Client.DeleteImage(t.Context(), "shell"))
			w.eventually(zygoteTime, func() error {
				if all, err := w.dir.AllMachines(); err != nil || len(all) > 0 {
					return fmt.Errorf("machines %+v, %v", all, err)
				}
				return nil
			})
			w.wantGone(z)
			w.wantOnly()
			w.must(w.server.Import(t.Context(), archive, "shell"))
			w.wantAlive(w.create(""))
			w.must(w.server.DeleteAll(t.Context()))
		})
	}
}
