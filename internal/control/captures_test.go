package control

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

func TestCapture(t *testing.T) {
	w := newWorld(t)
	s := w.source("s")
	i, err := w.CaptureImage(t.Context(), "s", skerry.CaptureRequest{Name: "env"})
	must(t, err)
	c := w.oneCommand(bus.CommandCapture)
	if c.SandboxID != s.ID || c.MachineID != s.Machine || c.ImageID != i.ID || c.Capture == nil || c.Capture.BaseDigest != "sha256:1" || !strings.Contains(c.Capture.Comment, "s") {
		t.Errorf("command %+v, capture %+v", c, c.Capture)
	}
	if i.Name != "env" || i.Status != skerry.ImagePending || i.Anonymous || i.ExpiresAt != nil || i.IdleExpirySeconds != 0 || i.SourceSandbox != s.ID || i.Source != "sandbox s" {
		t.Errorf("image %+v", i)
	}
	w.imageEvents(i, bus.ImageReport{Status: skerry.ImageBuilding})
	w.wantImage(i.ID, skerry.ImageBuilding)
	w.wantOperation(s.ID, skerry.StatusRunning, skerry.CaptureImage)
	w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.CaptureImage})
	w.wantOperation(s.ID, skerry.StatusRunning, "") // and other operations may begin
	must(t, w.do(t.Context(), skerry.Stop, "s"))
	w.say(s.ID, bus.Event{Status: skerry.StatusStopped})
	w.imageEvents(i, bus.ImageReport{Status: skerry.ImageReady, Digest: "sha256:3", LayerCount: 2, Config: skerry.ImageConfig{User: "alice"}})
	if got := w.wantImage(i.ID, skerry.ImageReady); got.Digest != "sha256:3" || got.Default {
		t.Errorf("image %+v", got)
	}
	req := request("clone")
	req.Image = "env"
	if s, _, err := w.CreateSandbox(t.Context(), req); err != nil || s.User != "alice" {
		t.Errorf("created %+v, %v", s, err)
	}
	// A stopped one can be captured too.
	_, err = w.CaptureImage(t.Context(), "s", skerry.CaptureRequest{})
	must(t, err)
	w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.CaptureImage, Reason: "no room"})
	if got := w.row(s.ID); got.Status != skerry.StatusStopped || got.Operation != "" || got.Reason != "no room" {
		t.Errorf("refused capture: %s, operation %q (%s)", got.Status, got.Operation, got.Reason)
	}
	images, err := w.ListImages(t.Context())
	if err != nil || images[0].Status != skerry.ImageFailed || images[0].Error != "no room" {
		t.Errorf("refused capture: %+v, %v", images[0], err)
	}
}

func TestCaptureRefusals(t *testing.T) {
	w := newWorld(t)
	w.source("s")
	for what, req := range map[string]skerry.CaptureRequest{
		"window and name": {Name: "a", IdleExpirySeconds: seconds(-1)},
		"no window":       {IdleExpirySeconds: seconds(0)},
		"below -1":        {IdleExpirySeconds: seconds(-2)},
		"over 7 days":     {IdleExpirySeconds: seconds(7*86400 + 1)},
		"reserved name":   {Name: "build-a"},
	} {
		_, err := w.CaptureImage(t.Context(), "s", req)
		wantCode(t, what, err, skerry.CodeInvalid)
	}
	_, err := w.CaptureImage(t.Context(), "s", skerry.CaptureRequest{Name: "debian"})
	wantCode(t, "a name in use", err, skerry.CodeConflict)
}

// anonymous returns a ready anonymous image with an idle window.
func (w *world) anonymous(s store.Sandbox, window *int) skerry.Image {
	w.t.Helper()
	i, err := w.CaptureImage(w.t.Context(), s.Name, skerry.CaptureRequest{IdleExpirySeconds: window})
	must(w.t, err)
	w.pass(time.Hour) // a slow capture does not count
	w.imageEvents(i, bus.ImageReport{Status: skerry.ImageReady, Digest: "sha256:4"})
	return w.wantImage(i.ID, skerry.ImageReady)
}

func (w *world) wantNoImage(id skerry.ImageID) {
	w.t.Helper()
	if _, err := w.Image(w.t.Context(), string(id)); skerry.CodeOf(err) != skerry.CodeNotFound {
		w.t.Errorf("image is still there: %v", err)
	}
}

func TestAnonymousImages(t *testing.T) {
	w := newWorld(t)
	s := w.running("s", true, skerry.LifecyclePolicy{})
	for _, window := range []*int{nil, seconds(-1), seconds(7 * 86400)} {
		i, err := w.CaptureImage(t.Context(), "s", skerry.CaptureRequest{IdleExpirySeconds: window})
		must(t, err)
		if !i.Anonymous || i.Name != string(i.ID) || i.IdleExpirySeconds != 7*86400 || i.ExpiresAt != nil {
			t.Errorf("image %+v", i)
		}
		w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.CaptureImage})
	}
	i := w.anonymous(s, seconds(1000))
	if !i.ExpiresAt.Equal(w.clock.Now().Add(1000 * time.Second)) {
		t.Errorf("expires at %v", i.ExpiresAt)
	}
	// A create begins the window again, and while a sandbox uses it, it stays.
	w.pass(999 * time.Second)
	w.open()
	req := request("user")
	req.Image = string(i.ID)
	_, _, err := w.CreateSandbox(t.Context(), req)
	must(t, err)
	if got := w.wantImage(i.ID, skerry.ImageReady); !got.ExpiresAt.Equal(w.clock.Now().Add(1000 * time.Second)) {
		t.Errorf("expires at %v", got.ExpiresAt)
	}
	w.pass(2000 * time.Second)
	w.wantImage(i.ID, skerry.ImageReady)
	w.takeOutbox()
	must(t, w.do(t.Context(), skerry.Delete, "user"))
	w.open()
	w.keepAlive()
	w.tick() // unused, and its window has passed
	w.wantNoImage(i.ID)
	if c := w.oneCommand(bus.CommandDeleteImage); c.ImageID != i.ID {
		t.Errorf("command %+v", c)
	}
	w.tick()

	// So does a snapshot of such a sandbox keep it.
	i = w.anonymous(s, seconds(100))
	req = request("user2")
	req.Image = string(i.ID)
	user, _, err := w.CreateSandbox(t.Context(), req)
	must(t, err)
	w.claimAs(user.ID, 1)
	w.say(user.ID, bus.Event{Status: skerry.StatusRunning})
	n := w.saved(w.row(user.ID), "saved")
	must(t, w.do(t.Context(), skerry.Delete, "user2"))
	w.say(user.ID, bus.Event{Status: skerry.StatusDeleted})
	w.pass(200 * time.Second)
	w.wantImage(i.ID, skerry.ImageReady)
	must(t, w.DeleteSnapshot(t.Context(), n.Name))
	w.tick()
	w.wantNoImage(i.ID)

	// One that nobody used, one that failed.
	i = w.anonymous(s, seconds(100))
	failed, err := w.CaptureImage(t.Context(), "s", skerry.CaptureRequest{IdleExpirySeconds: seconds(100)})
	must(t, err)
	w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.CaptureImage, Reason: "no room"})
	w.pass(100*time.Second - time.Microsecond)
	w.wantImage(i.ID, skerry.ImageReady)
	w.wantImage(failed.ID, skerry.ImageFailed)
	w.pass(time.Microsecond)
	w.wantNoImage(i.ID)
	w.wantNoImage(failed.ID)
}

// TestCapturesOfAReport: a capture that a restarted runner does not know is begun
// again if its sandbox still has the same machine and is free, else it failed.
func TestCapturesOfAReport(t *testing.T) {
	for what, test := range map[string]struct {
		prepare func(w *world, s store.Sandbox)
		again   bool
	}{
		"under way": {func(*world, store.Sandbox) {}, true},
		"source's part over": {func(w *world, s store.Sandbox) {
			w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.CaptureImage})
		}, true},
		"source busy": {func(w *world, s store.Sandbox) {
			w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.CaptureImage})
			must(w.t, w.do(w.t.Context(), skerry.CreateSnapshot, "s"))
		}, false},
		"source deleted": {func(w *world, s store.Sandbox) {
			w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.CaptureImage})
			must(w.t, w.do(w.t.Context(), skerry.Delete, "s"))
		}, false},
		"source started again": {func(w *world, s store.Sandbox) {
			w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.CaptureImage})
			must(w.t, w.do(w.t.Context(), skerry.Stop, "s"))
			w.say(s.ID, bus.Event{Status: skerry.StatusStopped})
			must(w.t, w.do(w.t.Context(), skerry.Start, "s"))
			w.say(s.ID, bus.Event{Status: skerry.StatusRunning})
		}, false},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			s := w.source("s")
			i, err := w.CaptureImage(t.Context(), "s", skerry.CaptureRequest{Name: "env"})
			must(t, err)
			test.prepare(w, s)
			w.takeOutbox()
			r := newReport(runnerA, 2, bus.MachineReport{SandboxID: s.ID, MachineID: w.row(s.ID).Machine, Status: skerry.StatusRunning})
			r.Images = []bus.ImageReport{{ImageID: s.ImageID, Status: skerry.ImageReady}}
			must(t, w.Control.report(t.Context(), r))
			captures := 0
			for _, c := range w.takeCommands() {
				if c.Kind == bus.CommandCapture && c.ImageID == i.ID {
					captures++
				}
			}
			want, status := 0, skerry.ImageFailed
			if test.again {
				want, status = 1, skerry.ImagePending
				w.wantOperation(s.ID, skerry.StatusRunning, skerry.CaptureImage)
			}
			if captures != want {
				t.Errorf("%d commands to capture, want %d", captures, want)
			}
			if got := w.wantImage(i.ID, status); (got.Error != "") == test.again {
				t.Errorf("error %q", got.Error)
			}
		})
	}
}

func TestPush(t *testing.T) {
	w := newWorld(t)
	w.takeOutbox()
	push := skerry.PushRequest{Reference: "registry.test/a:1", Auth: &skerry.RegistryAuth{Password: "secret"}}
	i, err := w.PushImage(t.Context(), "debian", push)
	must(t, err)
	if c := w.oneCommand(bus.CommandPushImage); c.ImageID != i.ID || c.Push == nil || c.Push.Auth.Password != "secret" {
		t.Errorf("command %+v", c)
	}
	report := func(p skerry.PushProgress) {
		w.imageEvents(i, bus.ImageReport{Status: skerry.ImageReady, Push: &p})
	}
	want := func(status skerry.ImageStatus, done int64) {
		t.Helper()
		if got := w.wantImage(i.ID, skerry.ImageReady); got.Push == nil || got.Push.Status != status || got.Push.DoneBytes != done {
			t.Errorf("push %+v, want %s, %d bytes", got.Push, status, done)
		}
	}
	want(skerry.ImagePending, 0)
	_, err = w.PushImage(t.Context(), "debian", push)
	wantCode(t, "push twice", err, skerry.CodeConflict)
	report(skerry.PushProgress{Reference: "other", Status: skerry.ImageFailed})
	want(skerry.ImagePending, 0)
	report(skerry.PushProgress{Reference: push.Reference, Status: skerry.ImageBuilding, DoneBytes: 5, TotalBytes: 9})
	want(skerry.ImageBuilding, 5)

	w.report(runnerA, 2) // a restarted runner does not know of it
	w.oneCommand(bus.CommandPushImage)
	report(skerry.PushProgress{Reference: push.Reference, Status: skerry.ImageReady, Digest: "sha256:9", DoneBytes: 9})
	want(skerry.ImageReady, 9)
	report(skerry.PushProgress{Reference: push.Reference, Status: skerry.ImageFailed})
	want(skerry.ImageReady, 9)
	must(t, w.db.View(t.Context(), func(r store.Reader) error {
		row, err := r.Image(t.Context(), i.ID)
		if len(row.PushCommand) > 0 {
			t.Errorf("the login is kept: %s", row.PushCommand)
		}
		return err
	}))
	_, err = w.PushImage(t.Context(), "debian", push)
	must(t, err)
	must(t, w.giveUpRunner(t.Context(), runnerA))
	want(skerry.ImageFailed, 0)

	for what, req := range map[string]skerry.PushRequest{"none": {}, "long": {Reference: strings.Repeat("x", maxReferenceLength+1)}} {
		_, err := w.PushImage(t.Context(), "debian", req)
		wantCode(t, what, err, skerry.CodeInvalid)
	}
	w = newWorld(t)
	pulling, err := w.PullImage(t.Context(), skerry.PullRequest{Reference: "pulling"})
	must(t, err)
	_, err = w.PushImage(t.Context(), pulling.Name, push)
	wantCode(t, "not ready", err, skerry.CodeConflict)
	_, err = w.PushImage(t.Context(), "none", push)
	wantCode(t, "unknown", err, skerry.CodeNotFound)
}

// TestEventLog: each step of each change is an event, in order, without what is
// secret.
func TestEventLog(t *testing.T) {
	w := newWorld(t)
	begin, err := w.Events(t.Context(), skerry.EventFilter{})
	must(t, err)
	last := begin[len(begin)-1].ID
	s := w.source("s")
	i, err := w.CaptureImage(t.Context(), "s", skerry.CaptureRequest{Name: "env"})
	must(t, err)
	for done := range 3 {
		w.imageEvents(i, bus.ImageReport{Status: skerry.ImageBuilding, Progress: &skerry.PullProgress{DoneBytes: int64(done)}})
	}
	w.imageEvents(i, bus.ImageReport{Status: skerry.ImageReady})
	n := w.saved(s, "saved")
	_, err = w.UpdateLifecycle(t.Context(), "s", skerry.PolicyRequest{TimeoutSeconds: seconds(60)})
	must(t, err)
	w.pass(time.Minute)
	w.say(s.ID, bus.Event{Status: skerry.StatusStopped})
	must(t, w.DeleteSnapshot(t.Context(), "saved"))
	must(t, w.DeleteImage(t.Context(), "env"))
	must(t, w.do(t.Context(), skerry.Delete, "s"))
	w.say(s.ID, bus.Event{Status: skerry.StatusDeleted})

	events, err := w.Events(t.Context(), skerry.EventFilter{After: last})
	must(t, err)
	var got []string
	name := map[string]string{string(s.ID): "s", string(i.ID): "env", string(n.ID): "saved"}
	for _, e := range events {
		got = append(got, fmt.Sprint(e.Type, " ", name[e.ObjectID], " ", e.Status))
		if e.ID <= last || e.Time.IsZero() {
			t.Errorf("event %d at %v after %d", e.ID, e.Time, last)
		}
		last = e.ID
		var object struct{ ID, Status, State string }
		if err := json.Unmarshal(e.Object, &object); err != nil || object.ID != e.ObjectID {
			t.Errorf("object %s: %v", e.Object, err)
		}
		if strings.Contains(string(e.Object), "secret") {
			t.Errorf("%s tells the environment", e.Object)
		}
	}
	want := []string{"sandbox.status s queued", "sandbox.status s pending", "sandbox.status s assigned", "sandbox.status s booting", "sandbox.status s running",
		"image.status env pending", "image.status env building", "image.status env ready",
		"snapshot.status saved pending", "snapshot.status saved ready",
		"sandbox.lifecycle s running", "sandbox.status s stopping", "sandbox.lifecycle s stopping", "sandbox.status s stopped",
		"snapshot.status saved deleted", "image.status env deleted", "sandbox.status s deleting", "sandbox.status s deleted"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	one, err := w.Events(t.Context(), skerry.EventFilter{ObjectID: string(n.ID), Limit: 2})
	if err != nil || len(one) != 2 || one[0].Status != "pending" {
		t.Errorf("of one object: %+v, %v", one, err)
	}
	_, err = w.Events(t.Context(), skerry.EventFilter{Limit: -1})
	wantCode(t, "limit", err, skerry.CodeInvalid)

	w.clock.advance(DefaultEventRetention)
	w.tick()
	if left, err := w.Events(t.Context(), skerry.EventFilter{}); err != nil || len(left) != 0 {
		t.Errorf("%d events after their retention, %v", len(left), err)
	}
	w.keepAlive()
	w.create("later")
	if left, err := w.Events(t.Context(), skerry.EventFilter{After: last}); err != nil || len(left) != 1 {
		t.Errorf("%d events after the last one, %v", len(left), err)
	}
}

func TestWaitEvents(t *testing.T) {
	w := newWorld(t)
	events, err := w.Events(t.Context(), skerry.EventFilter{})
	must(t, err)
	last := events[len(events)-1].ID
	wait := func(ctx context.Context, filter skerry.EventFilter) (<-chan []skerry.Event, <-chan error) {
		c, failed := make(chan []skerry.Event, 1), make(chan error, 1)
		go func() {
			events, err := w.WaitEvents(ctx, filter, time.Minute)
			failed <- err
			c <- events
		}()
		w.waitForTimer()
		return c, failed
	}
	c, failed := wait(t.Context(), skerry.EventFilter{After: last})
	w.create("a")
	if got := <-c; len(got) != 1 || got[0].Status != "queued" || <-failed != nil {
		t.Errorf("got %+v", got)
	}
	if got, err := w.WaitEvents(t.Context(), skerry.EventFilter{After: last}, time.Minute); err != nil || len(got) != 1 {
		t.Errorf("what is there already: %+v, %v", got, err)
	}
	c, failed = wait(t.Context(), skerry.EventFilter{ObjectID: "sbx_none"})
	w.create("b") // is not for it
	w.clock.advance(time.Minute)
	if got := <-c; len(got) != 0 || <-failed != nil {
		t.Errorf("at the timeout: %+v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, failed = wait(ctx, skerry.EventFilter{ObjectID: "sbx_none"})
	cancel()
	if err := <-failed; err == nil {
		t.Error("no error for an ended context")
	}
	_, failed = wait(t.Context(), skerry.EventFilter{ObjectID: "sbx_none"})
	w.Close()
	wantCode(t, "at Close", <-failed, skerry.CodeUnavailable)
}
