package control

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

func seconds(n int) *int { return &n }

func act(a skerry.TimerAction) *skerry.TimerAction { return &a }

// running returns a sandbox with a policy that started to run now.
func (w *world) running(name string, persistent bool, p skerry.LifecyclePolicy) store.Sandbox {
	w.t.Helper()
	s := w.putChanged(name, skerry.StatusBooting, func(s *store.Sandbox) { s.Persistent, s.Lifecycle.LifecyclePolicy = persistent, p })
	w.say(s.ID, bus.Event{Status: skerry.StatusRunning})
	return w.row(s.ID)
}

// pass lets time pass, with a runner that is heard of, and fires what is due
// whenever the timers are to be called.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	end := w.clock.Now().Add(d)
	for next := w.tick(); w.clock.Now().Before(end); next = w.tick() {
		w.clock.advance(min(end.Sub(w.clock.Now()), next.Sub(w.clock.Now())))
		w.keepAlive()
	}
}

// at lets the time until just before what is due pass, checks that nothing
// happens, then lets it come.
func (w *world) at(id skerry.SandboxID, d time.Duration, before, after skerry.Status) {
	w.t.Helper()
	w.pass(d - time.Microsecond)
	w.wantStatus(id, before)
	w.pass(time.Microsecond)
	w.wantStatus(id, after)
}

func timeout(n int, a skerry.TimerAction) skerry.LifecyclePolicy {
	return skerry.LifecyclePolicy{TimeoutSeconds: n, OnTimeout: a}
}

func idle(n int, a skerry.TimerAction) skerry.LifecyclePolicy {
	return skerry.LifecyclePolicy{IdleExpirySeconds: n, OnIdleTimeout: a}
}

func TestTimeout(t *testing.T) {
	for _, restart := range []bool{false, true} {
		for action, want := range map[skerry.TimerAction]skerry.Status{"delete": "deleting", "stop": "stopping", "pause": "pausing"} {
			t.Run(fmt.Sprintf("%s, restart=%v", action, restart), func(t *testing.T) {
				w := newWorld(t)
				s := w.running("s", true, timeout(600, action))
				if got := s.Lifecycle.TimeoutAt; got == nil || !got.Equal(w.clock.Now().Add(600*time.Second)) {
					t.Errorf("timeout at %v", got)
				}
				w.Control.Activity(s.ID) // does not extend it
				w.pass(300 * time.Second)
				_, err := w.TouchSandbox(t.Context(), "s") // nor does this
				must(t, err)
				if restart {
					w.open()
				}
				w.at(s.ID, 300*time.Second, skerry.StatusRunning, want)
				w.takeOutbox()
				if restart {
					w.open()
				}
				w.pass(time.Minute) // it does not fire again
				if commands := w.takeCommands(); len(commands) != 0 {
					t.Errorf("fired again: %+v", commands)
				}
			})
		}
	}
}

// TestTimeoutInEveryStatus: a delete timeout fires in any state but while the
// sandbox is being created, another only while it runs.
func TestTimeoutInEveryStatus(t *testing.T) {
	for _, action := range []skerry.TimerAction{"delete", "stop"} {
		w := newWorld(t)
		rows := map[skerry.Status]store.Sandbox{}
		for _, status := range skerry.Statuses() {
			rows[status] = w.putChanged(string(status), status, func(s *store.Sandbox) {
				s.Persistent, s.Lifecycle.LifecyclePolicy = true, timeout(60, action)
				s.CreateDeadline = s.CreateDeadline.Add(time.Hour)
				s.Lifecycle.TimeoutAt = after(*s.Lifecycle.LastActivityAt, 60)
			})
		}
		w.pass(time.Minute)
		for status, s := range rows {
			want := status
			switch {
			case s.StartedAt == nil || status == skerry.StatusDeleted: // being created, or never was
			case action == skerry.ActionDelete:
				want = skerry.StatusDeleting
			case status == skerry.StatusRunning:
				want = skerry.StatusStopping
			}
			w.wantStatus(s.ID, want)
		}
	}
}

// TestTimeoutAnchors: the timeout counts from each start, and from an update; a
// timer whose work is done by a stop is done.
func TestTimeoutAnchors(t *testing.T) {
	w := newWorld(t)
	s := w.running("s", true, timeout(600, skerry.ActionStop))
	w.at(s.ID, 600*time.Second, skerry.StatusRunning, skerry.StatusStopping)
	w.say(s.ID, bus.Event{Status: skerry.StatusStopped})
	if got := w.row(s.ID).Lifecycle.TimeoutAt; got != nil {
		t.Errorf("stopped, timeout at %v", got)
	}
	w.pass(time.Hour)
	w.wantStatus(s.ID, skerry.StatusStopped)
	must(t, w.do(t.Context(), skerry.Start, "s"))
	w.pass(20 * time.Minute) // of a slow start do not count
	w.say(s.ID, bus.Event{Status: skerry.StatusRunning})
	w.pass(599 * time.Second)
	w.wantStatus(s.ID, skerry.StatusRunning)
	l, err := w.UpdateLifecycle(t.Context(), "s", skerry.PolicyRequest{TimeoutSeconds: seconds(300)})
	must(t, err)
	if !l.TimeoutAt.Equal(w.clock.Now().Add(300 * time.Second)) {
		t.Errorf("timeout at %v", l.TimeoutAt)
	}
	// Another field leaves the timeout where it was.
	w.pass(100 * time.Second)
	l, err = w.UpdateLifecycle(t.Context(), "s", skerry.PolicyRequest{IdleExpirySeconds: seconds(1), OnIdleTimeout: act("stop")})
	must(t, err)
	if !l.TimeoutAt.Equal(w.clock.Now().Add(200*time.Second)) || l.IdleExpirySeconds != 60 || l.TimeoutSeconds != 300 || l.OnTimeout != "stop" {
		t.Errorf("lifecycle %+v", l)
	}
	l, err = w.UpdateLifecycle(t.Context(), "s", skerry.PolicyRequest{OnTimeout: act("delete"), IdleExpirySeconds: seconds(0)})
	must(t, err)
	if l.IdleTimeoutAt != nil || l.OnIdleTimeout != "" {
		t.Errorf("idle timeout not cleared: %+v", l)
	}
	w.at(s.ID, 200*time.Second, skerry.StatusRunning, skerry.StatusDeleting)

	// At rest, one that is to delete counts from the update, not from a start
	// long ago; one that is to stop has nothing to do.
	s = w.running("rest", true, timeout(60, skerry.ActionStop))
	w.pass(60 * time.Second)
	w.say(s.ID, bus.Event{Status: skerry.StatusStopped})
	_, err = w.UpdateLifecycle(t.Context(), "rest", skerry.PolicyRequest{TimeoutSeconds: seconds(120)})
	must(t, err)
	w.pass(10 * time.Minute)
	w.wantStatus(s.ID, skerry.StatusStopped)
	_, err = w.UpdateLifecycle(t.Context(), "rest", skerry.PolicyRequest{OnTimeout: act("delete")})
	must(t, err)
	w.at(s.ID, 120*time.Second, skerry.StatusStopped, skerry.StatusDeleting)
}

func TestUpdateLifecycleRefusals(t *testing.T) {
	w := newWorld(t)
	w.running("s", false, timeout(600, skerry.ActionDelete))
	for what, req := range map[string]skerry.PolicyRequest{
		"clear the timeout":    {TimeoutSeconds: seconds(0)},
		"over the maximum":     {TimeoutSeconds: seconds(86401)},
		"stop of an ephemeral": {OnTimeout: act("stop")},
		"idle without action":  {IdleExpirySeconds: seconds(60)},
	} {
		_, err := w.UpdateLifecycle(t.Context(), "s", req)
		wantCode(t, what, err, skerry.CodeInvalid)
	}
	w.Control.cfg.Policy.MaxTimeoutSeconds = 900
	_, err := w.UpdateLifecycle(t.Context(), "s", skerry.PolicyRequest{TimeoutSeconds: seconds(901)})
	wantCode(t, "over the server's maximum", err, skerry.CodeInvalid)
	if got := w.row(mustID(w, "s")); got.Lifecycle.TimeoutSeconds != 600 || got.Version != 2 {
		t.Errorf("refused updates changed %+v", got)
	}
}

func mustID(w *world, name string) skerry.SandboxID {
	w.t.Helper()
	s, err := w.Sandbox(w.t.Context(), name)
	must(w.t, err)
	return s.ID
}

// TestTouch: in any state but deleting and deleted, with and without an idle
// timeout, and never backwards.
func TestTouch(t *testing.T) {
	w := newWorld(t)
	s := w.running("s", false, skerry.LifecyclePolicy{TimeoutSeconds: 600, OnTimeout: "delete", IdleExpirySeconds: 60, OnIdleTimeout: "delete"})
	w.clock.advance(50 * time.Second)
	l, err := w.TouchSandbox(t.Context(), "s")
	must(t, err)
	if !l.IdleTimeoutAt.Equal(w.clock.Now().Add(time.Minute)) || !l.TimeoutAt.Equal(*s.Lifecycle.TimeoutAt) {
		t.Errorf("touched: %+v", l)
	}
	newest := w.clock.Now()
	w.clock.advance(-10 * time.Second)
	l, err = w.TouchSandbox(t.Context(), "s")
	must(t, err)
	if !l.LastActivityAt.Equal(newest) {
		t.Errorf("touched by a clock that goes backwards: %+v", l)
	}
	// A change of the policy is no activity.
	l, err = w.UpdateLifecycle(t.Context(), "s", skerry.PolicyRequest{IdleExpirySeconds: seconds(90), OnIdleTimeout: act("delete")})
	must(t, err)
	if !l.LastActivityAt.Equal(newest) || !l.IdleTimeoutAt.Equal(newest.Add(90*time.Second)) {
		t.Errorf("after an update: %+v", l)
	}
	w.running("plain", false, skerry.LifecyclePolicy{})
	l, err = w.TouchSandbox(t.Context(), "plain")
	if err != nil || l.IdleTimeoutAt != nil || l.TimeoutAt != nil {
		t.Errorf("without timers: %+v, %v", l, err)
	}
}

// TestTimePausedDoesNotCount: an idle timer stands still while the sandbox does
// not run, and a resume is activity.
func TestTimePausedDoesNotCount(t *testing.T) {
	w := newWorld(t)
	s := w.running("s", true, skerry.LifecyclePolicy{TimeoutSeconds: 3600, OnTimeout: "pause", IdleExpirySeconds: 60, OnIdleTimeout: "delete"})
	w.pass(50 * time.Second)
	must(t, w.do(t.Context(), skerry.Pause, "s"))
	w.say(s.ID, bus.Event{Status: skerry.StatusPaused})
	if got := w.row(s.ID); got.Lifecycle.IdleTimeoutAt != nil || !got.DueAt.IsZero() {
		t.Errorf("paused: %+v, due %v", got.Lifecycle, got.DueAt)
	}
	w.pass(2 * time.Hour)
	must(t, w.do(t.Context(), skerry.Resume, "s"))
	w.say(s.ID, bus.Event{Status: skerry.StatusRunning})
	got := w.row(s.ID)
	if !got.Lifecycle.IdleTimeoutAt.Equal(w.clock.Now().Add(time.Minute)) || !got.Lifecycle.TimeoutAt.Equal(w.clock.Now().Add(time.Hour)) {
		t.Errorf("resumed: %+v", got.Lifecycle)
	}
	want := skerry.LifecyclePolicy{TimeoutSeconds: 3600, OnTimeout: "pause", IdleExpirySeconds: 60, OnIdleTimeout: "delete"}
	if diff := cmp.Diff(want, got.Lifecycle.LifecyclePolicy); diff != "" {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
}

// TestTimersWaitForOperations: an action that another operation keeps from
// beginning begins when that is over; one that does not work is tried again.
func TestTimersWaitForOperations(t *testing.T) {
	w := newWorld(t)
	s := w.running("s", true, timeout(60, skerry.ActionPause))
	must(t, w.do(t.Context(), skerry.CreateSnapshot, "s"))
	w.pass(10 * time.Minute)
	w.wantOperation(s.ID, skerry.StatusRunning, skerry.CreateSnapshot)
	w.open()
	w.keepAlive()
	w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.CreateSnapshot})
	w.tick()
	w.wantOperation(s.ID, skerry.StatusPausing, skerry.Pause)
	for range 3 {
		w.say(s.ID, bus.Event{Status: skerry.StatusRunning, Reason: "no room"})
		w.at(s.ID, actionRetry, skerry.StatusRunning, skerry.StatusPausing)
	}
	w.say(s.ID, bus.Event{Status: skerry.StatusPaused})
	w.pass(time.Hour)
	w.wantOperation(s.ID, skerry.StatusPaused, "")

	// A delete does not wait.
	s = w.running("d", true, timeout(60, skerry.ActionDelete))
	must(t, w.do(t.Context(), skerry.CreateSnapshot, "d"))
	w.at(s.ID, time.Minute, skerry.StatusRunning, skerry.StatusDeleting)
}

// TestPolicyOfCreate: what the API resolved is kept, is part of what a create
// asks for, and counts from when the sandbox runs.
func TestPolicyOfCreate(t *testing.T) {
	w := newWorld(t)
	req := request("s")
	req.Policy, req.Spot = timeout(60, skerry.ActionDelete), true
	s, _, err := w.CreateSandbox(t.Context(), req)
	must(t, err)
	if s.Lifecycle.TimeoutAt != nil || s.Lifecycle.LastActivityAt == nil || !s.Spot || s.Persistent {
		t.Errorf("created %+v", s)
	}
	for name, change := range map[string]func(*skerry.SandboxRequest){
		"policy": func(r *skerry.SandboxRequest) { r.Policy.TimeoutSeconds = 61 },
		"kind":   func(r *skerry.SandboxRequest) { r.Persistent = true },
		"spot":   func(r *skerry.SandboxRequest) { r.Spot = false },
	} {
		other := req
		change(&other)
		_, _, err := w.CreateSandbox(t.Context(), other)
		wantCode(t, "another "+name, err, skerry.CodeConflict)
	}
	w.claimAs(s.ID, 1)
	w.pass(10 * time.Minute) // a slow create
	w.wantStatus(s.ID, skerry.StatusAssigned)
	w.say(s.ID, bus.Event{Status: skerry.StatusRunning})
	w.at(s.ID, time.Minute, skerry.StatusRunning, skerry.StatusDeleting)
}

func TestReclaim(t *testing.T) {
	w := newWorld(t)
	spot := func(persistent bool) func(*store.Sandbox) {
		return func(s *store.Sandbox) { s.Persistent, s.Spot = persistent, true }
	}
	reclaim := func(s store.Sandbox, status skerry.Status, operation skerry.Action) {
		t.Helper()
		w.clock.advance(time.Second)
		got, err := w.ReclaimSandbox(t.Context(), s.Name)
		must(t, err)
		if got.SpotEvictedAt == nil || !got.SpotEvictedAt.Equal(w.clock.Now()) {
			t.Errorf("%s: evicted at %v", s.Name, got.SpotEvictedAt)
		}
		w.wantOperation(s.ID, status, operation)
	}
	w.putPersistent("plain", skerry.StatusRunning)
	_, err := w.ReclaimSandbox(t.Context(), "plain")
	wantCode(t, "not spot", err, skerry.CodeConflict)
	reclaim(w.putChanged("ephemeral", skerry.StatusRunning, spot(false)), skerry.StatusDeleting, "")
	reclaim(w.putChanged("queued", skerry.StatusQueued, spot(false)), skerry.StatusDeleted, "")
	reclaim(w.putChanged("stopped", skerry.StatusStopped, spot(true)), skerry.StatusStopped, "")
	reclaim(w.putChanged("paused", skerry.StatusPaused, spot(true)), skerry.StatusPaused, "")

	s := w.putChanged("running", skerry.StatusRunning, spot(true))
	reclaim(s, skerry.StatusPausing, skerry.Pause)
	w.say(s.ID, bus.Event{Status: skerry.StatusRunning, Reason: "no room"})
	w.open()
	w.at(s.ID, actionRetry, skerry.StatusRunning, skerry.StatusPausing) // is still due
	w.say(s.ID, bus.Event{Status: skerry.StatusPaused})
	must(t, w.do(t.Context(), skerry.Resume, s.Name)) // and runs on when it is resumed
	w.say(s.ID, bus.Event{Status: skerry.StatusRunning})
	w.pass(10 * time.Minute)
	w.wantOperation(s.ID, skerry.StatusRunning, "")

	s = w.putChanged("captured", skerry.StatusRunning, spot(true))
	must(t, w.do(t.Context(), skerry.CaptureImage, s.Name))
	reclaim(s, skerry.StatusRunning, skerry.CaptureImage)
	w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.CaptureImage})
	w.tick()
	w.wantOperation(s.ID, skerry.StatusPausing, skerry.Pause)

	s = w.putChanged("booting", skerry.StatusBooting, spot(true))
	reclaim(s, skerry.StatusBooting, "")
	w.say(s.ID, bus.Event{Status: skerry.StatusRunning})
	w.tick()
	w.wantOperation(s.ID, skerry.StatusPausing, skerry.Pause)
}
