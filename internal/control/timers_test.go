package control

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
)

// tick does what is due, and returns when it is to come again, which must not be at
// once.
func (w *world) tick() time.Time {
	w.t.Helper()
	next, err := w.fireTimers(w.t.Context())
	must(w.t, err)
	if !next.After(w.clock.Now()) {
		w.t.Fatalf("timers are to be called again at %v, it is %v", next, w.clock.Now())
	}
	return next
}

func TestCreateDeadline(t *testing.T) {
	w := newWorld(t)
	ids := map[skerry.Status]skerry.SandboxID{}
	for _, s := range skerry.Statuses() {
		ids[s] = w.put(string(s), s).ID
	}
	late := w.put("late", skerry.StatusQueued)
	late.CreateDeadline = late.CreateDeadline.Add(time.Second)
	w.clock.advance(time.Hour - time.Microsecond)
	w.keepAlive()
	w.tick()
	for status, id := range ids {
		w.wantStatus(id, status)
	}
	w.clock.advance(time.Microsecond)
	w.tick()
	for status, id := range ids {
		want := status
		switch status {
		case skerry.StatusQueued, skerry.StatusPending:
			want = skerry.StatusDeleted
		case skerry.StatusAssigned, skerry.StatusBooting:
			want = skerry.StatusDeleting
		}
		w.wantStatus(id, want)
		if reason := w.row(id).Reason; (want != status) != strings.Contains(reason, "create deadline") {
			t.Errorf("%s: reason %q", status, reason)
		}
	}
}

// keepAlive lets the runner be heard of.
func (w *world) keepAlive() {
	w.t.Helper()
	must(w.t, w.heartbeat(w.t.Context(), bus.Heartbeat{Runner: skerry.Runner{ID: runnerA}, Region: DefaultRegion, Epoch: 1}))
}

func TestRetention(t *testing.T) {
	w := newWorld(t)
	s := w.create("a")
	_, err := w.DeleteSandbox(t.Context(), "a")
	must(t, err)
	w.clock.advance(DefaultRetention - time.Microsecond)
	w.tick()
	w.wantStatus(s.ID, skerry.StatusDeleted)
	w.clock.advance(time.Microsecond)
	w.tick()
	_, err = w.Sandbox(t.Context(), string(s.ID))
	wantCode(t, "pruned sandbox", err, skerry.CodeNotFound)
}

func TestRunnerGoesAway(t *testing.T) {
	w := newWorld(t)
	rows, persistent := map[skerry.Status]skerry.SandboxID{}, map[skerry.Status]skerry.SandboxID{}
	for _, s := range skerry.Statuses() {
		if skerry.StatusQueued.CanReach(s, false) {
			rows[s] = w.put(string(s), s).ID
		}
		persistent[s] = w.putPersistent("persistent-"+string(s), s).ID
	}
	pulling, err := w.PullImage(t.Context(), skerry.PullRequest{Reference: "pulling"})
	must(t, err)
	online := func(want bool) {
		t.Helper()
		runners, err := w.Runners(t.Context())
		must(t, err)
		if len(runners) != 1 || runners[0].Online != want {
			t.Errorf("runners %+v, want online %v", runners, want)
		}
	}
	online(true)
	w.clock.advance(offlineAfter - time.Microsecond)
	online(true)
	w.clock.advance(time.Microsecond)
	online(false)
	w.keepAlive()
	online(true)
	w.clock.advance(DefaultLostAfter - time.Microsecond)
	w.tick()
	w.wantStatus(rows["running"], skerry.StatusRunning)
	w.wantStatus(persistent["stopped"], skerry.StatusStopped)
	w.clock.advance(time.Microsecond)
	w.tick()
	w.tick() // changes nothing
	want := map[skerry.Status]skerry.Status{"queued": "queued", "pending": "pending", "deleting": "deleted", "deleted": "deleted", "failed": "failed"}
	for _, ids := range []map[skerry.Status]skerry.SandboxID{rows, persistent} {
		for status, id := range ids {
			end, ok := want[status]
			if !ok {
				end = skerry.StatusLost
			}
			w.wantStatus(id, end)
		}
	}
	w.wantImage(pulling.ID, skerry.ImageFailed)

	// It comes back: it is asked what it has, and loses what was given up. What
	// is persistent is there again.
	w.takeOutbox()
	w.keepAlive()
	online(true)
	if commands := w.takeOutbox(); len(commands) != 1 || !strings.Contains(commands[0], bus.CommandReport) {
		t.Errorf("commands %q", commands)
	}
	running := w.row(rows["running"])
	machines := []bus.MachineReport{{SandboxID: running.ID, MachineID: running.Machine, Status: skerry.StatusRunning}}
	for _, status := range []skerry.Status{"running", "stopped", "paused"} {
		s := w.row(persistent[status])
		machines = append(machines, bus.MachineReport{SandboxID: s.ID, MachineID: s.Machine, Status: status})
	}
	w.report(runnerA, 1, machines...)
	if commands := w.takeOutbox(); len(commands) != 1 || commands[0] != removeCommand(running) {
		t.Errorf("commands %q", commands)
	}
	for _, status := range []skerry.Status{"running", "stopped", "paused"} {
		w.wantStatus(persistent[status], status)
		if s := w.row(persistent[status]); s.Reason != "" {
			t.Errorf("%s again, with reason %q", status, s.Reason)
		}
	}
}

// TestDowntimeIsNoSilence: a control plane that was down for long gives its
// runners time to be heard of.
func TestDowntimeIsNoSilence(t *testing.T) {
	w := newWorld(t)
	s := w.put("a", skerry.StatusRunning)
	w.clock.advance(24 * time.Hour)
	w.open()
	must(t, w.recover(t.Context()))
	w.tick()
	w.wantStatus(s.ID, skerry.StatusRunning)
	if !strings.Contains(fmt.Sprint(w.takeOutbox()), bus.CommandReport) {
		t.Error("the runner is not asked for a report")
	}
	w.clock.advance(DefaultLostAfter)
	w.tick()
	w.wantStatus(s.ID, skerry.StatusLost)
}

func TestAlarm(t *testing.T) {
	clock := newFakeClock()
	a := newAlarm(clock)
	woke := make(chan struct{})
	sleep := func(d time.Duration) {
		next := clock.Now().Add(d)
		go func() { a.sleep(context.Background(), next); woke <- struct{}{} }()
		for asleep := false; !asleep; time.Sleep(time.Millisecond) {
			clock.mu.Lock()
			asleep = len(clock.timers) > 0
			clock.mu.Unlock()
		}
	}
	awake := func(what string) {
		t.Helper()
		select {
		case <-woke:
		case <-time.After(limit):
			t.Fatalf("does not wake: %s", what)
		}
	}
	sleep(10 * time.Second)
	clock.advance(10 * time.Second)
	awake("its time")

	sleep(time.Hour)
	clock.advance(maxSleep)
	awake("the longest sleep")

	sleep(20 * time.Second)
	a.by(clock.Now().Add(30 * time.Second)) // later: no reason to wake
	if len(a.wake) != 0 {
		t.Error("woken for a later time")
	}
	a.by(clock.Now().Add(5 * time.Second))
	awake("an earlier time")

	a.by(clock.Now().Add(time.Hour)) // while it is awake: it must look again
	a.sleep(context.Background(), clock.Now().Add(time.Hour))
}
