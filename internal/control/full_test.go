package control

import (
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
)

// TestDiskFull: a sandbox that stands still because its host's disk is full says so
// and stays what it is, until its runner says that it goes on, be that in an event
// or in a report. Other words of a running sandbox change no reason.
func TestDiskFull(t *testing.T) {
	w := newWorld(t)
	s := w.putPersistent("full", skerry.StatusRunning)
	running := func(reason string) { w.say(s.ID, bus.Event{Status: skerry.StatusRunning, Reason: reason}) }
	report := func(reason string) {
		w.report(runnerA, 1, bus.MachineReport{SandboxID: s.ID, MachineID: s.Machine, Status: skerry.StatusRunning, Reason: reason})
	}
	for _, step := range []struct {
		what   string
		do     func()
		status skerry.Status
		reason string
	}{
		{"full", func() { running(bus.ReasonFull) }, skerry.StatusRunning, bus.ReasonFull},
		{"full, said again", func() { running(bus.ReasonFull) }, skerry.StatusRunning, bus.ReasonFull},
		{"goes on", func() { running("") }, skerry.StatusRunning, ""},
		{"full, by a report", func() { report(bus.ReasonFull) }, skerry.StatusRunning, bus.ReasonFull},
		{"goes on, by a report", func() { report("") }, skerry.StatusRunning, ""},
		{"anything else", func() { running("why") }, skerry.StatusRunning, ""},
		{"full before a pause, said late", func() { must(t, w.do(t.Context(), skerry.Pause, "full")); running(bus.ReasonFull) }, skerry.StatusPausing, ""},
		{"not paused", func() { running("it could not be paused") }, skerry.StatusRunning, "it could not be paused"},
		{"that is told on", func() { running("") }, skerry.StatusRunning, "it could not be paused"},
	} {
		step.do()
		if got := w.row(s.ID); got.Status != step.status || got.Reason != step.reason {
			t.Errorf("%s: got %s with reason %q, want %s with %q", step.what, got.Status, got.Reason, step.status, step.reason)
		}
	}
}
