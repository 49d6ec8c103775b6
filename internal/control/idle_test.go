package control

import (
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
)

// answer has run_a answer the one question in the outbox.
func (w *world) answer(id skerry.SandboxID, e bus.Event) {
	w.t.Helper()
	if c := w.oneCommand(bus.CommandActivity); c.SandboxID != id || c.MachineID != w.row(id).Machine {
		w.t.Errorf("asked of %s %s", c.SandboxID, c.MachineID)
	}
	e.Kind = bus.EventActivity
	w.say(id, e)
}

// TestIdle: an idle timer asks the runner before it fires, no more often than
// needed, and only an answer of now counts.
func TestIdle(t *testing.T) {
	for action, want := range map[skerry.TimerAction]skerry.Status{"delete": "deleting", "stop": "stopping", "pause": "pausing"} {
		t.Run(string(action), func(t *testing.T) {
			w := newWorld(t)
			s := w.running("s", true, idle(120, action))
			w.takeOutbox()
			w.pass(120*time.Second - time.Microsecond)
			if commands := w.takeCommands(); len(commands) != 0 {
				t.Errorf("asked early: %+v", commands)
			}
			w.pass(time.Microsecond)
			w.answer(s.ID, bus.Event{Busy: true}) // counts as activity now
			w.pass(120*time.Second - time.Microsecond)
			if commands := w.takeCommands(); len(commands) != 0 {
				t.Errorf("asked early: %+v", commands)
			}
			w.pass(time.Microsecond)
			w.answer(s.ID, bus.Event{LastActive: w.clock.Now().Add(-20 * time.Second)}) // when a command ended
			w.wantStatus(s.ID, skerry.StatusRunning)
			w.pass(100 * time.Second)
			w.answer(s.ID, bus.Event{LastActive: w.clock.Now().Add(-120 * time.Second)})
			w.wantStatus(s.ID, want)
			for _, e := range []bus.Event{{}, {Busy: true}} { // delivered again
				e.Kind = bus.EventActivity
				w.say(s.ID, e)
			}
			w.wantStatus(s.ID, want)
		})
	}
}

func TestIdleAnswers(t *testing.T) {
	w := newWorld(t)
	s := w.running("s", false, idle(60, skerry.ActionDelete))
	w.takeOutbox()
	say := func(e bus.Event) {
		t.Helper()
		e.Kind = bus.EventActivity
		w.say(s.ID, e)
		w.wantStatus(s.ID, skerry.StatusRunning)
	}
	w.pass(59 * time.Second)
	say(bus.Event{}) // was not asked for
	w.pass(time.Second)
	w.oneCommand(bus.CommandActivity)
	w.pass(answerWithin - time.Second)
	if commands := w.takeCommands(); len(commands) != 0 {
		t.Errorf("asked again at once: %+v", commands)
	}
	w.clock.advance(time.Second)
	say(bus.Event{}) // too late
	w.keepAlive()
	w.tick()
	w.oneCommand(bus.CommandActivity) // asked again
	must(t, w.event(t.Context(), bus.Event{Kind: bus.EventActivity, RunnerID: runnerA, SandboxID: s.ID, MachineID: skerry.NewMachineID()}))
	must(t, w.event(t.Context(), bus.Event{Kind: bus.EventActivity, RunnerID: runnerB, SandboxID: s.ID, MachineID: s.Machine}))
	w.wantStatus(s.ID, skerry.StatusRunning)

	// The gateway has seen a request since.
	w.Control.Activity(s.ID)
	say(bus.Event{})
	w.pass(60 * time.Second)
	w.oneCommand(bus.CommandActivity)
	// A clock that is ahead.
	say(bus.Event{LastActive: w.clock.Now().Add(time.Hour)})
	if got := w.row(s.ID).Lifecycle.LastActivityAt; !got.Equal(w.clock.Now()) {
		t.Errorf("last activity %v, it is %v", got, w.clock.Now())
	}
	w.pass(60 * time.Second)
	w.answerSilently(s.ID)
	w.wantStatus(s.ID, skerry.StatusDeleting)
	if reason := w.row(s.ID).Reason; reason == "" {
		t.Error("no reason")
	}
}

func (w *world) answerSilently(id skerry.SandboxID) {
	w.t.Helper()
	w.answer(id, bus.Event{})
}

// TestIdleWhileTheRunnerIsAway: no answer, no deletion; it is asked when it is
// heard of again.
func TestIdleWhileTheRunnerIsAway(t *testing.T) {
	w := newWorld(t)
	s := w.running("s", true, idle(60, skerry.ActionDelete))
	w.takeOutbox()
	for range 20 { // over four minutes of silence
		w.clock.advance(12 * time.Second)
		w.tick()
	}
	w.wantStatus(s.ID, skerry.StatusRunning)
	if commands := w.takeCommands(); len(commands) > 0 {
		t.Errorf("asked a runner that is away: %+v", commands)
	}
	w.pass(answerWithin)
	w.answerSilently(s.ID)
	w.wantStatus(s.ID, skerry.StatusDeleting)
}

// TestIdleOverRestarts restarts control at each moment of an idle timer: it is
// neither forgotten nor fires twice, and not on an old answer.
func TestIdleOverRestarts(t *testing.T) {
	w := newWorld(t)
	s := w.running("s", true, idle(60, skerry.ActionStop))
	w.takeOutbox()
	restart := func() {
		w.open()
		w.keepAlive()
		w.tick()
	}
	w.pass(30 * time.Second)
	w.Control.Activity(s.ID)
	w.pass(activityDelay)
	restart()
	w.pass(57*time.Second - time.Microsecond)
	restart()
	if commands := w.takeCommands(); len(commands) > 0 {
		t.Errorf("asked early: %+v", commands)
	}
	w.pass(time.Microsecond)
	restart() // between question and answer
	w.oneCommand(bus.CommandActivity)
	w.clock.advance(10 * time.Minute) // control was down when the answer came
	w.open()
	w.say(s.ID, bus.Event{Kind: bus.EventActivity})
	w.wantStatus(s.ID, skerry.StatusRunning)
	restart()
	w.answerSilently(s.ID)
	w.wantStatus(s.ID, skerry.StatusStopping)
	w.oneCommand(bus.CommandStop)
	restart()
	w.say(s.ID, bus.Event{Status: skerry.StatusStopped})
	restart()
	w.pass(time.Hour)
	w.wantStatus(s.ID, skerry.StatusStopped)
	if commands := w.takeCommands(); len(commands) > 0 {
		t.Errorf("fired again: %+v", commands)
	}
}

// TestActivityIsWritten: once for many, at the end of Run too, never backwards,
// and not for what is gone.
func TestActivityIsWritten(t *testing.T) {
	w := newWorld(t)
	s := w.running("s", false, idle(60, skerry.ActionDelete))
	gone := w.put("gone", skerry.StatusDeleted)
	before := w.row(s.ID)
	w.clock.advance(time.Second)
	for range 100 {
		w.Control.Activity(s.ID)
		w.Control.Activity(gone.ID)
		w.Control.Activity(skerry.NewSandboxID())
	}
	w.tick()
	if got := w.row(s.ID); got.Version != before.Version {
		t.Errorf("written at once: %+v", got)
	}
	used := w.clock.Now()
	w.clock.advance(activityDelay)
	w.tick()
	got := w.row(s.ID)
	if got.Version != before.Version+1 || !got.Lifecycle.LastActivityAt.Equal(used) || !got.Lifecycle.IdleTimeoutAt.Equal(used.Add(time.Minute)) || !got.UpdatedAt.Equal(before.UpdatedAt) {
		t.Errorf("written %+v", got)
	}
	if w.row(gone.ID).Version != 1 || w.Control.activity.last(s.ID) != (time.Time{}) {
		t.Error("a deleted sandbox was changed, or activity is kept")
	}
	stop := w.run()
	w.clock.advance(time.Second)
	w.Control.Activity(s.ID)
	used = w.clock.Now()
	stop()
	if got := w.row(s.ID).Lifecycle.LastActivityAt; !got.Equal(used) {
		t.Errorf("at the end of Run: %v, want %v", got, used)
	}
}
