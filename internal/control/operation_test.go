package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// do does an action to a sandbox, with the simplest request.
func (w *world) do(ctx context.Context, a skerry.Action, ref string) (err error) {
	switch a {
	case skerry.Stop:
		_, err = w.StopSandbox(ctx, ref)
	case skerry.Start:
		_, err = w.StartSandbox(ctx, ref)
	case skerry.Pause:
		_, err = w.PauseSandbox(ctx, ref)
	case skerry.Resume:
		_, err = w.ResumeSandbox(ctx, ref)
	case skerry.Fork:
		_, err = w.ForkSandbox(ctx, ref, skerry.ForkRequest{})
	case skerry.CaptureImage:
		_, err = w.CaptureImage(ctx, ref, skerry.CaptureRequest{})
	case skerry.CreateSnapshot:
		_, err = w.CreateSnapshot(ctx, ref, skerry.RandomToken(10))
	case skerry.Touch:
		_, err = w.TouchSandbox(ctx, ref)
	case skerry.UpdateLifecycle:
		seconds := 600
		_, err = w.UpdateLifecycle(ctx, ref, skerry.PolicyRequest{TimeoutSeconds: &seconds})
	case skerry.Reclaim:
		_, err = w.ReclaimSandbox(ctx, ref)
	case skerry.Delete:
		_, err = w.DeleteSandbox(ctx, ref)
	default:
		err = fmt.Errorf("no method for %s", a)
	}
	return err
}

// operations are the actions that take a while and exclude one another.
var operations = []skerry.Action{skerry.Stop, skerry.Start, skerry.Pause, skerry.Resume, skerry.Fork, skerry.CaptureImage, skerry.CreateSnapshot}

// TestActionTable tries every action in every status, for both kinds of
// sandboxes. "yes" are the cells of Daytona's "Sandboxes" page, "Lifecycle
// states", and of its "Linux Sandboxes" page.
func TestActionTable(t *testing.T) {
	const any = "queued pending assigned booting running stopping stopped pausing paused deleting deleted failed lost"
	live := strings.TrimSpace(strings.NewReplacer("deleting ", "", "deleted ", "").Replace(any))
	yes := map[skerry.Action]struct{ persistent, ephemeral string }{
		skerry.Stop:            {"running", ""},
		skerry.Start:           {"stopped paused", ""},
		skerry.Pause:           {"running", ""},
		skerry.Resume:          {"paused", "paused"},
		skerry.Fork:            {"running stopped paused", ""},
		skerry.CaptureImage:    {"running stopped", "running stopped"},
		skerry.CreateSnapshot:  {"running", "running"},
		skerry.Touch:           {live, live},
		skerry.UpdateLifecycle: {live, live},
		skerry.Reclaim:         {live, live},
		skerry.Delete:          {any, any},
	}
	w := newWorld(t)
	for action, cells := range yes {
		for _, persistent := range []bool{true, false} {
			cell := cells.ephemeral
			if persistent {
				cell = cells.persistent
			}
			for _, status := range skerry.Statuses() {
				if !persistent && (status == "paused" || status == "stopped") {
					continue // an ephemeral sandbox is never that
				}
				name := fmt.Sprintf("%s-%s-%v", action, status, persistent)
				s := w.putChanged(name, status, func(s *store.Sandbox) { s.Persistent, s.Spot = persistent, true })
				w.takeOutbox()
				err := w.do(t.Context(), action, name)
				if strings.Contains(cell, string(status)) {
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
					continue
				}
				want := skerry.CodeConflict
				if status == skerry.StatusDeleted {
					want = skerry.CodeGone
				}
				wantCode(t, name, err, want)
				if got := w.row(s.ID); got.Version != 1 || len(w.takeOutbox()) > 0 {
					t.Errorf("%s: was refused, and changed the sandbox to %+v", name, got)
				}
			}
		}
	}
	for _, action := range skerry.Actions() {
		if _, ok := yes[action]; !ok && action != skerry.Toolbox {
			t.Errorf("no cells for %s", action)
		}
		if action != skerry.Toolbox {
			wantCode(t, string(action), w.do(t.Context(), action, "none"), skerry.CodeNotFound)
		}
	}
}

// TestOneOperationAtATime: while an operation is under way, every other one is
// refused with its name, in whatever order they come; a delete is not.
func TestOneOperationAtATime(t *testing.T) {
	w := newWorld(t)
	for _, first := range operations {
		status := skerry.StatusRunning
		if first == skerry.Start || first == skerry.Resume {
			status = skerry.StatusPaused
		}
		for _, second := range operations {
			name := fmt.Sprintf("%s-%s", first, second)
			s := w.putPersistent(name, status)
			must(t, w.do(t.Context(), first, name))
			err := w.do(t.Context(), second, name)
			wantCode(t, name, err, skerry.CodeConflict)
			if err != nil && !strings.Contains(err.Error(), "under way: "+string(first)) {
				t.Errorf("%s: error %q does not name the operation under way", name, err)
			}
			if got := w.row(s.ID); got.Operation != first {
				t.Errorf("%s: operation %q", name, got.Operation)
			}
		}
		s := w.putPersistent("delete-"+string(first), status)
		must(t, w.do(t.Context(), first, s.Name))
		for range 2 {
			must(t, w.do(t.Context(), skerry.Delete, s.Name))
		}
		w.wantStatus(s.ID, skerry.StatusDeleting)
		w.say(s.ID, bus.Event{Status: skerry.StatusDeleted})
		if got := w.row(s.ID); got.Status != skerry.StatusDeleted || got.Operation != "" {
			t.Errorf("deleted during %s: %s, operation %q", first, got.Status, got.Operation)
		}
	}
}

// TestConcurrentOperations: of all operations begun at the same time, one wins.
func TestConcurrentOperations(t *testing.T) {
	w := newWorld(t)
	for round := range 5 {
		s := w.putPersistent(fmt.Sprint("s", round), skerry.StatusRunning)
		w.takeOutbox()
		var group sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for range 3 {
			for _, a := range operations {
				group.Go(func() {
					err := w.do(t.Context(), a, s.Name)
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						won++
					} else if skerry.CodeOf(err) != skerry.CodeConflict {
						t.Errorf("%s: %v", a, err)
					}
				})
			}
		}
		group.Wait()
		if commands := w.takeCommands(); won != 1 || len(commands) != 1 {
			t.Errorf("%d operations won, %d commands, want one", won, len(commands))
		}
	}
}

// TestStopStart follows a sandbox through its operations, and looks at what is
// ordered and recorded.
func TestStopStart(t *testing.T) {
	w := newWorld(t)
	req := request("s")
	req.Persistent, req.Env = true, map[string]string{"A": "B"}
	created, _, err := w.CreateSandbox(t.Context(), req)
	must(t, err)
	id := created.ID
	m1 := w.claimAs(id, 1)
	w.say(id, bus.Event{Status: skerry.StatusRunning})
	first := *w.row(id).StartedAt
	w.takeOutbox()

	must(t, w.do(t.Context(), skerry.Stop, "s"))
	if c := w.oneCommand(bus.CommandStop); c.SandboxID != id || c.MachineID != m1 {
		t.Errorf("command %+v", c)
	}
	w.wantOperation(id, skerry.StatusStopping, skerry.Stop)
	w.say(id, bus.Event{Status: skerry.StatusStopped})
	w.say(id, bus.Event{Kind: bus.EventOperation, Operation: skerry.Stop})
	w.wantOperation(id, skerry.StatusStopped, "")

	w.clock.advance(time.Hour * 3) // its create deadline is no matter any more
	w.keepAlive()
	must(t, w.do(t.Context(), skerry.Start, "s"))
	c := w.oneCommand(bus.CommandStart)
	if c.SandboxID != id || c.MachineID == m1 || c.MachineID != w.row(id).Machine || c.Job == nil || !c.Job.Persistent ||
		c.Job.Digest != "sha256:1" || c.Job.Env["A"] != "B" || !c.Job.Deadline.After(w.clock.Now()) {
		t.Errorf("command %+v, job %+v", c, c.Job)
	}
	w.wantOperation(id, skerry.StatusBooting, skerry.Start)
	w.tick()
	w.wantOperation(id, skerry.StatusBooting, skerry.Start)
	// What is said of the machine before counts no more.
	must(t, w.event(t.Context(), bus.Event{Kind: bus.EventSandbox, RunnerID: runnerA, SandboxID: id, MachineID: m1, Status: skerry.StatusStopped}))
	w.wantOperation(id, skerry.StatusBooting, skerry.Start)
	w.say(id, bus.Event{Status: skerry.StatusBooting})
	w.say(id, bus.Event{Status: skerry.StatusRunning})
	w.wantOperation(id, skerry.StatusRunning, "")
	if got := w.row(id); !got.StartedAt.After(first) {
		t.Errorf("started at %v, before at %v", got.StartedAt, first)
	}

	must(t, w.do(t.Context(), skerry.Pause, "s"))
	w.oneCommand(bus.CommandPause)
	w.say(id, bus.Event{Status: skerry.StatusRunning}) // said before
	w.wantOperation(id, skerry.StatusPausing, skerry.Pause)
	w.say(id, bus.Event{Status: skerry.StatusRunning, Reason: "no room"})
	w.wantOperation(id, skerry.StatusRunning, "")
	if got := w.row(id); got.Reason != "no room" {
		t.Errorf("reason %q", got.Reason)
	}
	must(t, w.do(t.Context(), skerry.Pause, "s"))
	w.oneCommand(bus.CommandPause)
	w.say(id, bus.Event{Status: skerry.StatusPaused})
	w.wantOperation(id, skerry.StatusPaused, "")
	if got := w.row(id); got.Reason != "" {
		t.Errorf("reason %q after a success", got.Reason)
	}

	for _, a := range []skerry.Action{skerry.Resume, skerry.Start} {
		for _, e := range []bus.Event{{Status: skerry.StatusPaused, Reason: "busy"}, {Kind: bus.EventOperation, Operation: a, Reason: "busy"}} {
			must(t, w.do(t.Context(), a, "s"))
			w.oneCommand(bus.CommandStart)
			w.say(id, e)
			w.wantOperation(id, skerry.StatusPaused, "")
			if got := w.row(id); got.Reason != "busy" {
				t.Errorf("reason %q", got.Reason)
			}
		}
	}
	must(t, w.do(t.Context(), skerry.Resume, "s"))
	w.say(id, bus.Event{Status: skerry.StatusRunning})
	w.wantOperation(id, skerry.StatusRunning, "")

	// A stop that does not work stays under way, and is ordered again.
	must(t, w.do(t.Context(), skerry.Stop, "s"))
	w.say(id, bus.Event{Kind: bus.EventOperation, Operation: skerry.Stop, Reason: "stuck"})
	w.wantOperation(id, skerry.StatusStopping, skerry.Stop)
	w.takeOutbox()
	w.report(runnerA, 1, bus.MachineReport{SandboxID: id, MachineID: w.row(id).Machine, Status: skerry.StatusRunning})
	w.oneCommand(bus.CommandStop)
}

func (w *world) wantOperation(id skerry.SandboxID, status skerry.Status, operation skerry.Action) {
	w.t.Helper()
	if s := w.row(id); s.Status != status || s.Operation != operation {
		w.t.Errorf("sandbox %s is %s (%s), operation %q, want %s, %q", s.Name, s.Status, s.Reason, s.Operation, status, operation)
	}
}

// TestStrayMachine: a machine that is started although it was given up is
// removed.
func TestStrayMachine(t *testing.T) {
	w := newWorld(t)
	s := w.putPersistent("s", skerry.StatusRunning)
	w.takeOutbox()
	stray := skerry.NewMachineID()
	must(t, w.event(t.Context(), bus.Event{Kind: bus.EventSandbox, RunnerID: runnerA, SandboxID: s.ID, MachineID: stray, Status: skerry.StatusRunning}))
	if c := w.oneCommand(bus.CommandRemoveMachine); c.MachineID != stray {
		t.Errorf("removes %s, want %s", c.MachineID, stray)
	}
}

// TestLostStart: a runner that was given up during a start, and comes back,
// is taken at its word.
func TestLostStart(t *testing.T) {
	w := newWorld(t)
	s := w.putPersistent("s", skerry.StatusStopped)
	must(t, w.do(t.Context(), skerry.Start, "s"))
	ordered := w.row(s.ID).Machine
	must(t, w.giveUpRunner(t.Context(), runnerA))
	w.wantOperation(s.ID, skerry.StatusLost, "")
	w.takeOutbox()
	w.report(runnerA, 1, bus.MachineReport{SandboxID: s.ID, MachineID: s.Machine, Status: skerry.StatusStopped})
	w.wantOperation(s.ID, skerry.StatusStopped, "")
	if c := w.oneCommand(bus.CommandRemoveMachine); c.MachineID != ordered {
		t.Errorf("removes %s, want %s, which was ordered", c.MachineID, ordered)
	}
	if got := w.row(s.ID).Machine; got != s.Machine {
		t.Errorf("machine %s, want %s", got, s.Machine)
	}
}

// crashPoints are ways to be cut off between two steps.
var crashPoints = map[string]func(*post){
	"nothing": func(*post) {},
	"control": (*post).restartControl,
	"runner":  (*post).restartRunner,
	"both":    func(p *post) { p.restartRunner(); p.restartControl() },
	"messages": func(p *post) { // a power failure that took the message store
		p.orders, p.events = nil, nil
		p.restartControl()
		p.restartRunner()
	},
	"unrecorded": func(p *post) { // control was killed between publishing and recording that
		p.cutOff = true
		_, err := p.w.flushOutbox(p.w.t.Context())
		if p.cutOff = false; err != nil && !errors.Is(err, errCrash) {
			p.w.t.Error(err)
		}
		p.restartControl()
	},
}

// TestCrashAtEveryStep cuts off each operation after each of its steps, in each
// way; it is finished or rolled back then.
func TestCrashAtEveryStep(t *testing.T) {
	for _, action := range append(operations, skerry.Delete, "create", "restore", "push") {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			for name, crash := range crashPoints {
				for n := 0; ; n++ {
					if done := crashOperation(t, action, name, crash, n); done || t.Failed() {
						break
					}
				}
			}
		})
	}
}

// crashOperation returns true when the operation was over before step n.
func crashOperation(t *testing.T, action skerry.Action, name string, crash func(*post), n int) (done bool) {
	w := newWorld(t)
	p := w.byHand()
	req := request("s")
	req.Persistent = true
	s, _, err := w.CreateSandbox(t.Context(), req)
	must(t, err)
	p.drain()
	prepare, want := skerry.Action(""), skerry.StatusRunning
	switch action {
	case skerry.Start:
		prepare = skerry.Stop
	case skerry.Resume:
		prepare = skerry.Pause
	case skerry.Stop:
		want = skerry.StatusStopped
	case skerry.Pause:
		want = skerry.StatusPaused
	case skerry.Delete:
		want = skerry.StatusDeleted
	case "restore":
		_, err := w.CreateSnapshot(t.Context(), "s", "saved")
		must(t, err)
	}
	if prepare != "" {
		must(t, w.do(t.Context(), prepare, "s"))
	}
	p.drain()
	w.clock.advance(time.Second)
	must(t, w.begin(action))
	for range n {
		p.publish()
		switch {
		case len(p.orders) > 0:
			must(t, p.deliverOrder(0))
		case len(p.events) > 0:
			p.deliverEvent(true)
		default:
			return true
		}
	}
	crash(p)
	p.drain()
	what := fmt.Sprintf("%s, %s at step %d", action, name, n)
	if got := w.row(s.ID); got.Status != want || got.Operation != "" {
		t.Errorf("%s: is %s (%s), operation %q, want %s", what, got.Status, got.Reason, got.Operation, want)
	}
	w.checkBegun(what)
	return false
}

// begin begins one of the actions, or "create", "restore" or "push".
func (w *world) begin(action skerry.Action) (err error) {
	ctx := w.t.Context()
	switch action {
	case "create":
		_, _, err = w.CreateSandbox(ctx, request("made"))
	case "restore":
		_, _, err = w.RestoreSnapshot(ctx, "saved", skerry.RestoreRequest{Name: "made"})
	case "push":
		_, err = w.PushImage(ctx, "debian", skerry.PushRequest{Reference: "registry.test/a"})
	case skerry.Fork:
		_, err = w.ForkSandbox(ctx, "s", skerry.ForkRequest{Count: 2})
	default:
		err = w.do(ctx, action, "s")
	}
	return err
}

// checkBegun checks that all that was to be made is ready or failed.
func (w *world) checkBegun(what string) {
	w.t.Helper()
	ctx := w.t.Context()
	page, err := w.ListSandboxes(ctx, skerry.SandboxFilter{})
	must(w.t, err)
	for _, s := range page.Items {
		if s.Name != "s" && s.Status != skerry.StatusRunning && (s.Status != skerry.StatusFailed || s.Reason == "") {
			w.t.Errorf("%s: %s is %s (%s)", what, s.Name, s.Status, s.Reason)
		}
	}
	images, err := w.ListImages(ctx)
	must(w.t, err)
	for _, i := range images {
		if !settled(i.Status) || i.Push != nil && i.Push.Status != skerry.ImageReady {
			w.t.Errorf("%s: image %s is %s, push %+v", what, i.Name, i.Status, i.Push)
		}
	}
	snapshots, err := w.ListSnapshots(ctx)
	must(w.t, err)
	for _, s := range snapshots {
		if !settled(s.Status) {
			w.t.Errorf("%s: snapshot %s is %s", what, s.Name, s.Status)
		}
	}
}

// TestWaitEndsWithTheOperation: who waits for what an operation leads to is told
// when it did not work.
func TestWaitEndsWithTheOperation(t *testing.T) {
	w := newWorld(t)
	s := w.putPersistent("s", skerry.StatusRunning)
	must(t, w.do(t.Context(), skerry.Pause, "s"))
	done := make(chan skerry.Sandbox, 1)
	go func() {
		s, err := w.WaitSandbox(context.Background(), "s", []skerry.Status{skerry.StatusPaused}, time.Minute)
		if err != nil {
			t.Error(err)
		}
		done <- s
	}()
	w.waitForWaiters(s.ID, 1)
	w.say(s.ID, bus.Event{Status: skerry.StatusRunning, Reason: "no room"})
	select {
	case got := <-done:
		if got.Status != skerry.StatusRunning || got.Reason != "no room" {
			t.Errorf("wait ended with %s (%s)", got.Status, got.Reason)
		}
	case <-time.After(limit):
		t.Fatal("the wait does not end")
	}
}
