package control

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
)

// TestInterruptedCreate: a create whose runner is killed, wherever that is, is
// finished after the restart, with the same id and nothing left of the first try;
// also if the control plane is killed with it, and the message store is lost.
func TestInterruptedCreate(t *testing.T) {
	w := newWorld(t)
	p := w.byHand()
	snapshot := w.readySnapshot(p)
	for kind, create := range map[string]func(name string) (skerry.Sandbox, error){
		"ephemeral": func(name string) (skerry.Sandbox, error) {
			s, _, err := w.CreateSandbox(t.Context(), request(name))
			return s, err
		},
		"persistent": func(name string) (skerry.Sandbox, error) {
			req := request(name)
			req.Persistent = true
			s, _, err := w.CreateSandbox(t.Context(), req)
			return s, err
		},
		"restore": func(name string) (skerry.Sandbox, error) {
			s, _, err := w.RestoreSnapshot(t.Context(), snapshot, skerry.RestoreRequest{Name: name})
			return s, err
		},
	} {
		for what, restart := range map[string]func(){
			"runner":   p.restartRunner,
			"server":   func() { p.restartControl(); p.restartRunner() },
			"messages": func() { p.orders, p.events = nil, nil; p.restartControl(); p.restartRunner() },
		} {
			for step, killed := 1, true; killed; step++ {
				name := fmt.Sprint(kind, "-", what, "-", step)
				t.Run(name, func(t *testing.T) {
					s, err := create(name)
					must(t, err)
					killed = p.killRunner(step)
					restart()
					p.drain()
					if got := w.row(s.ID); got.Status != skerry.StatusRunning || got.Reason != "" {
						t.Errorf("%s (%s)", got.Status, got.Reason)
					}
					p.wantOneMachine(w.row(s.ID).Sandbox)
				})
			}
		}
	}
}

// readySnapshot returns the name of a memory snapshot that can be restored.
func (w *world) readySnapshot(p *post) string {
	w.t.Helper()
	req := request("source")
	req.Persistent = true
	_, _, err := w.CreateSandbox(w.t.Context(), req)
	must(w.t, err)
	p.drain()
	_, err = w.CreateSnapshot(w.t.Context(), "source", "saved")
	must(w.t, err)
	p.drain()
	return "saved"
}

// killRunner delivers orders until the runner has crashed at its n-th step, and
// returns false if it came to the end of its work before.
func (p *post) killRunner(n int) (killed bool) {
	p.w.t.Helper()
	p.runner.crash = func() error {
		if n--; n <= 0 {
			return errCrash
		}
		return nil
	}
	p.publish()
	for len(p.orders) > 0 {
		err := p.deliverOrder(0)
		if errors.Is(err, errCrash) {
			return true
		}
		must(p.w.t, err)
	}
	return false
}

// wantOneMachine: the host has just the machine of s, and a disk as it should be.
func (p *post) wantOneMachine(s skerry.Sandbox) {
	p.w.t.Helper()
	machines, err := p.runner.machines()
	must(p.w.t, err)
	var of []skerry.MachineID
	for machine, id := range machines {
		if id == s.ID {
			of = append(of, machine)
		}
	}
	if len(of) != 1 || of[0] != s.Machine {
		p.w.t.Errorf("machines %q, want just %s", of, s.Machine)
	}
	if disk, ok := p.runner.disk(s.ID); ok != s.Persistent || ok && (disk.Machine != s.Machine || disk.Status != s.Status) {
		p.w.t.Errorf("disk %v: %+v", ok, disk)
	}
}

// TestInterruptedCreateIsLate: what is offered again keeps its create deadline,
// can be deleted, and is not disturbed by what is said of its first machine.
func TestInterruptedCreateIsLate(t *testing.T) {
	w := newWorld(t)
	late, deleted, old := w.create("late"), w.create("deleted"), w.create("old")
	first := map[skerry.SandboxID]skerry.MachineID{}
	for _, s := range []skerry.Sandbox{late, deleted, old} {
		first[s.ID] = w.claimAs(s.ID, 1)
	}
	w.takeOutbox()
	w.report(runnerA, 2)
	for _, s := range []skerry.Sandbox{late, deleted, old} {
		got := w.row(s.ID)
		if got.Status != skerry.StatusPending || got.Machine != "" || got.Runner != "" || !got.CreateDeadline.Equal(s.CreateDeadline) {
			t.Errorf("%+v", got)
		}
	}
	if again := w.takeOutbox(); len(again) != 3 {
		t.Errorf("offered again: %q", again)
	}
	must(t, w.do(t.Context(), skerry.Delete, "deleted"))
	w.wantStatus(deleted.ID, skerry.StatusDeleted)
	w.claimAs(old.ID, 2)
	for _, status := range []skerry.Status{"booting", "running", "failed", "deleted"} {
		must(t, w.event(t.Context(), bus.Event{Kind: bus.EventSandbox, RunnerID: runnerA, SandboxID: old.ID, MachineID: first[old.ID], Status: status}))
		w.wantStatus(old.ID, skerry.StatusAssigned)
	}
	w.say(old.ID, bus.Event{Status: skerry.StatusRunning})
	w.clock.advance(time.Hour)
	must(t, w.heartbeat(t.Context(), newReport(runnerA, 2).Heartbeat))
	_, err := w.fireTimers(t.Context())
	must(t, err)
	w.wantStatus(old.ID, skerry.StatusRunning)
	if got := w.row(late.ID); got.Status != skerry.StatusDeleted || !strings.Contains(got.Reason, "create deadline") {
		t.Errorf("late: %s (%s)", got.Status, got.Reason)
	}
}
