package control

import (
	"fmt"
	"slices"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

func TestReport(t *testing.T) {
	w := newWorld(t)
	const deleted, removed = bus.CommandDeleteSandbox, bus.CommandRemoveMachine
	tests := []struct {
		name         string
		persistent   bool
		status       skerry.Status // as recorded, claimed in epoch 1
		lists        skerry.Status // what the runner says in epoch 2, "" if it does not list it
		wrongMachine bool
		want         skerry.Status
		command      string // what is ordered for the machine that is listed
	}{
		{name: "running as recorded", status: "running", lists: "running", want: "running"},
		{name: "booted meanwhile", status: "assigned", lists: "running", want: "running"},
		{name: "still boots", status: "booting", lists: "booting", want: "booting"},
		{name: "failed meanwhile", status: "running", lists: "failed", want: "failed"},
		{name: "listed as deleted", status: "running", lists: "deleted", want: "lost"},
		{name: "assigned, missing", status: "assigned", want: "pending"},
		{name: "booting, missing", status: "booting", want: "pending"},
		{name: "running, missing", status: "running", want: "lost"},
		{name: "deleting, missing", status: "deleting", want: "deleted"},
		{name: "failed, missing", status: "failed", want: "failed"},
		{name: "lost, missing", status: "lost", want: "lost"},
		{name: "deleting, there", status: "deleting", lists: "running", want: "deleting", command: deleted},
		{name: "deleted, there", status: "deleted", lists: "running", want: "deleted", command: deleted},
		{name: "lost, there", status: "lost", lists: "running", want: "lost", command: removed},
		{name: "failed, there", status: "failed", lists: "running", want: "failed"},
		{name: "another machine", status: "running", lists: "running", wrongMachine: true, want: "lost", command: removed},

		{name: "persistent, running", persistent: true, status: "running", lists: "running", want: "running"},
		{name: "persistent, machine ended", persistent: true, status: "running", lists: "stopped", want: "stopped"},
		{name: "persistent, stopped meanwhile", persistent: true, status: "stopping", lists: "stopped", want: "stopped"},
		{name: "persistent, stopped", persistent: true, status: "stopped", lists: "stopped", want: "stopped"},
		{name: "persistent, paused meanwhile", persistent: true, status: "pausing", lists: "paused", want: "paused"},
		{name: "persistent, ended while it was paused", persistent: true, status: "pausing", lists: "stopped", want: "stopped"},
		{name: "persistent, paused", persistent: true, status: "paused", lists: "paused", want: "paused"},
		{name: "persistent, paused unasked", persistent: true, status: "running", lists: "paused", want: "paused"},
		{name: "persistent, memory gone", persistent: true, status: "paused", lists: "stopped", want: "stopped"},
		{name: "persistent, lost and stopped", persistent: true, status: "lost", lists: "stopped", want: "stopped"},
		{name: "persistent, lost and paused", persistent: true, status: "lost", lists: "paused", want: "paused"},
		{name: "persistent, lost and running", persistent: true, status: "lost", lists: "running", want: "running"},
		{name: "persistent, running, missing", persistent: true, status: "running", want: "lost"},
		{name: "persistent, stopped, missing", persistent: true, status: "stopped", want: "lost"},
		{name: "persistent, paused, missing", persistent: true, status: "paused", want: "lost"},
		{name: "persistent, stopping, missing", persistent: true, status: "stopping", want: "lost"},
		{name: "persistent, assigned, missing", persistent: true, status: "assigned", want: "pending"},
		{name: "persistent, deleting, stopped", persistent: true, status: "deleting", lists: "stopped", want: "deleting", command: deleted},
		{name: "persistent, deleted, paused", persistent: true, status: "deleted", lists: "paused", want: "deleted", command: deleted},
		{name: "persistent, deleting, an earlier machine", persistent: true, status: "deleting", lists: "stopped", wrongMachine: true, want: "deleting", command: deleted},
		{name: "persistent, an earlier machine, stopped", persistent: true, status: "running", lists: "stopped", wrongMachine: true, want: "stopped"},
		{name: "persistent, an earlier machine, paused", persistent: true, status: "paused", lists: "paused", wrongMachine: true, want: "paused"},
		{name: "persistent, lost, an earlier machine", persistent: true, status: "lost", lists: "stopped", wrongMachine: true, want: "stopped"},
		{name: "persistent, an earlier machine runs", persistent: true, status: "running", lists: "running", wrongMachine: true, want: "lost", command: removed},
	}
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := w.putChanged(fmt.Sprint("s", i), test.status, func(s *store.Sandbox) { s.Persistent = test.persistent })
			w.takeOutbox()
			machine := s.Machine
			if test.wrongMachine {
				machine = skerry.NewMachineID()
			}
			var machines []bus.MachineReport
			if test.lists != "" {
				machines = append(machines, bus.MachineReport{SandboxID: s.ID, MachineID: machine, Status: test.lists, Reason: "why"})
			}
			for range 2 {
				w.report(runnerA, 2, machines...)
				w.wantStatus(s.ID, test.want)
			}
			var got string
			for _, c := range w.takeCommands() {
				if c.MachineID == machine {
					got = c.Kind
				}
			}
			if got != test.command {
				t.Errorf("command %q, want %q", got, test.command)
			}
			if reason := w.row(s.ID).Reason; (test.want == "lost" || test.want == "failed") && test.status != test.want && reason == "" {
				t.Error("no reason")
			}
			if m := w.row(s.ID).Machine; test.lists != "" && (test.want == "stopped" || test.want == "paused") && m != machine {
				t.Errorf("machine %s, want %s, which the runner has", m, machine)
			}
		})
	}
	unknown := store.Sandbox{Sandbox: skerry.Sandbox{ID: skerry.NewSandboxID(), Machine: skerry.NewMachineID()}}
	w.takeOutbox()
	w.report(runnerA, 2, bus.MachineReport{SandboxID: unknown.ID, MachineID: unknown.Machine, Status: "running"})
	if commands := w.takeOutbox(); !slices.Contains(commands, deleteCommand(unknown)) {
		t.Errorf("unknown machine: commands %q", commands)
	}
}

// TestClaimLostInAPowerFailure: what a runner has of a sandbox whose claim is
// not recorded any more is taken over.
func TestClaimLostInAPowerFailure(t *testing.T) {
	w := newWorld(t)
	for _, test := range []struct {
		persistent bool
		lists      skerry.Status
	}{{false, "running"}, {true, "running"}, {true, "stopped"}, {true, "paused"}} {
		for _, status := range []skerry.Status{"queued", "pending"} {
			s := w.putChanged(fmt.Sprint(test, status), status, func(s *store.Sandbox) { s.Persistent = test.persistent })
			m := skerry.NewMachineID()
			w.takeOutbox()
			w.report(runnerA, 2, bus.MachineReport{SandboxID: s.ID, MachineID: m, Status: test.lists})
			got := w.row(s.ID)
			if commands := w.takeCommands(); len(commands) > 0 || got.Status != test.lists || got.Machine != m || got.Runner != runnerA || got.StartedAt == nil {
				t.Errorf("%s, listed as %s: %+v, commands %+v", status, test.lists, got, commands)
			}
		}
	}
}

// TestReportsOutOfTime: a report says nothing of what was claimed after it.
func TestReportsOutOfTime(t *testing.T) {
	w := newWorld(t)
	w.report(runnerA, 2)
	s := w.create("a")
	w.claimAs(s.ID, 2)
	w.report(runnerA, 2) // as asked for, written before the claim was answered
	w.wantStatus(s.ID, skerry.StatusAssigned)
	w.report(runnerA, 1) // of the start before, delivered again
	w.wantStatus(s.ID, skerry.StatusAssigned)
	w.report(runnerB, 9) // of another runner
	w.wantStatus(s.ID, skerry.StatusAssigned)
	_, err := w.DeleteSandbox(t.Context(), "a")
	must(t, err)
	w.takeOutbox()
	w.report(runnerA, 2)
	w.wantStatus(s.ID, skerry.StatusDeleting)
	if commands := w.takeOutbox(); !slices.Contains(commands, deleteCommand(w.row(s.ID))) {
		t.Errorf("the delete is not asked for again: %q", commands)
	}
	w.report(runnerA, 3)
	w.wantStatus(s.ID, skerry.StatusDeleted)
}
