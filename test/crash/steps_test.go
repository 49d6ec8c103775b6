package crash

import (
	"slices"
	"testing"

	"skerry.dev/skerry"
)

// TestServerKilledInOperation kills the server at every step of stop, pause,
// start and resume, and its successor at the same step if it comes there. The
// operation is then finished or taken back, no flushed file is lost, memory only
// with the machine, and the sandbox does everything again.
func TestServerKilledInOperation(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	k := w.keep("keeper")
	running, stopped, paused := skerry.StatusRunning, skerry.StatusStopped, skerry.StatusPaused
	for _, tt := range []struct {
		action skerry.Action
		from   skerry.Status
		step   string
		want   []skerry.Status
	}{
		{skerry.Stop, running, "stop.shut_down", []skerry.Status{stopped}},
		{skerry.Stop, running, "keep.recorded", []skerry.Status{stopped}},
		{skerry.Stop, running, "delete.killed", []skerry.Status{stopped}},
		{skerry.Pause, running, "pause.saved", []skerry.Status{paused}},
		{skerry.Pause, running, "keep.recorded", []skerry.Status{paused}},
		{skerry.Pause, running, "delete.killed", []skerry.Status{paused}},
		{skerry.Start, stopped, "start.directory", []skerry.Status{running}},
		{skerry.Start, stopped, "start.started", []skerry.Status{running}},
		{skerry.Start, stopped, "start.recorded", []skerry.Status{running, stopped}},
		{skerry.Start, stopped, "start.activated", []skerry.Status{running}},
		{skerry.Resume, paused, "start.directory", []skerry.Status{running}},
		{skerry.Resume, paused, "start.started", []skerry.Status{running}},
		{skerry.Resume, paused, "start.recorded", []skerry.Status{running, paused}},
		{skerry.Resume, paused, "start.activated", []skerry.Status{running}},
	} {
		t.Run(string(tt.action)+"/"+tt.step, func(t *testing.T) {
			w := w.with(t)
			w.bring(k, tt.from)
			w.crashTwice(tt.step, func() { w.must(w.ask(k, tt.action)) })
			sb := w.rest(k.id)
			t.Logf("after the restart: %s, %q", sb.Status, sb.Reason)
			if !slices.Contains(tt.want, sb.Status) {
				t.Fatalf("%s (%s), want one of %s; end of the log:\n%s", sb.Status, sb.Reason, tt.want, w.logTail(20))
			}
			switch {
			case sb.Status == stopped && tt.action == skerry.Stop:
				k.memory = nil
				if sb.Reason != "" {
					t.Errorf("it was stopped in order, but has the reason %q", sb.Reason)
				}
			case sb.Status == tt.from && sb.Reason == "":
				t.Error("was taken back without a reason")
			}
			w.bring(k, running)
			w.wantFiles(k)
			w.wantNothingHalf(k)
			w.wantOnly(w.rest(k.id))
		})
	}
	w.works(k)
}
