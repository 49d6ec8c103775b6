package control

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// source returns a persistent sandbox that runs, of the image debian.
func (w *world) source(name string) store.Sandbox {
	w.t.Helper()
	req := request(name)
	req.Persistent, req.Env, req.Labels, req.User = true, map[string]string{"TOKEN": "secret"}, map[string]string{"team": "x"}, "alice"
	req.Policy = timeout(7200, skerry.ActionStop)
	s, _, err := w.CreateSandbox(w.t.Context(), req)
	must(w.t, err)
	w.claimAs(s.ID, 1)
	w.say(s.ID, bus.Event{Status: skerry.StatusRunning})
	w.takeOutbox()
	return w.row(s.ID)
}

func TestFork(t *testing.T) {
	w := newWorld(t)
	s := w.source("s")
	children, err := w.ForkSandbox(t.Context(), "s", skerry.ForkRequest{Count: 2, Names: []string{"a", "b"}, Labels: map[string]string{"run": "1"}})
	must(t, err)
	c := w.oneCommand(bus.CommandFork)
	if len(children) != 2 || len(c.Jobs) != 2 || c.SandboxID != s.ID || c.MachineID != s.Machine {
		t.Fatalf("children %+v, command %+v", children, c)
	}
	w.wantOperation(s.ID, skerry.StatusRunning, skerry.Fork)
	for i, name := range []string{"a", "b"} {
		got, job := w.row(children[i].ID), c.Jobs[i]
		want := s.Sandbox
		want.ID, want.Name, want.ForkedFrom, want.Status, want.State = got.ID, name, s.ID, "pending", "creating"
		want.Labels, want.Env = map[string]string{"run": "1", "name": name}, map[string]string{}
		want.Machine, want.StartedAt, want.Lifecycle.TimeoutAt = "", nil, nil
		if diff := cmp.Diff(want, got.Sandbox); diff != "" {
			t.Errorf("copy (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(got.Sandbox, children[i]); diff != "" {
			t.Errorf("returned and stored differ:\n%s", diff)
		}
		if job.SandboxID != got.ID || job.Name != name || job.Digest != "sha256:1" || !job.Persistent || len(job.Env) != 0 || job.User != "alice" {
			t.Errorf("job %+v", job)
		}
	}
	// Only the source's runner can have them.
	reply, err := w.claim(t.Context(), bus.ClaimRequest{SandboxID: children[0].ID, RunnerID: runnerB, MachineID: skerry.NewMachineID(), Epoch: 1})
	if err != nil || reply.OK {
		t.Errorf("claim by another runner: %+v, %v", reply, err)
	}
	w.claimAs(children[0].ID, 1)
	w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.Fork})
	w.wantOperation(s.ID, skerry.StatusRunning, "")
	w.claimAs(children[1].ID, 1)
	w.say(children[0].ID, bus.Event{Status: skerry.StatusRunning})
	w.say(children[1].ID, bus.Event{Status: skerry.StatusFailed, Reason: "no disk left"}) // the other lives
	w.wantStatus(children[0].ID, skerry.StatusRunning)
	if got := w.row(children[1].ID); got.Status != skerry.StatusFailed || got.Reason != "no disk left" {
		t.Errorf("the one that failed: %s (%s)", got.Status, got.Reason)
	}
	w.takeOutbox()
	_, err = w.ForkSandbox(t.Context(), "s", skerry.ForkRequest{InheritEnv: true})
	must(t, err)
	if c := w.oneCommand(bus.CommandFork); len(c.Jobs) != 1 || c.Jobs[0].Env["TOKEN"] != "secret" {
		t.Errorf("with the environment: %+v", c.Jobs)
	}
}

func TestForkRefusals(t *testing.T) {
	w := newWorld(t)
	s := w.source("s")
	for what, req := range map[string]skerry.ForkRequest{
		"too many":       {Count: 65},
		"negative":       {Count: -1},
		"too few names":  {Count: 2, Names: []string{"a"}},
		"a name twice":   {Count: 2, Names: []string{"a", "a"}},
		"not a name":     {Names: []string{"sbx_a"}},
		"not a label":    {Labels: map[string]string{"a=b": ""}},
		"too many names": {Names: []string{"a", "b"}},
	} {
		_, err := w.ForkSandbox(t.Context(), "s", req)
		wantCode(t, what, err, skerry.CodeInvalid)
	}
	_, err := w.ForkSandbox(t.Context(), "s", skerry.ForkRequest{Names: []string{"bad name"}})
	if err == nil || !strings.HasPrefix(err.Error(), "names[0]: ") {
		t.Errorf("error %v does not name the field", err)
	}
	_, err = w.ForkSandbox(t.Context(), "s", skerry.ForkRequest{Count: 2, Names: []string{"free", "s"}})
	wantCode(t, "a name in use", err, skerry.CodeConflict)
	if _, err := w.Sandbox(t.Context(), "free"); skerry.CodeOf(err) != skerry.CodeNotFound {
		t.Errorf("a refused fork left a copy: %v", err)
	}
	w.wantOperation(s.ID, skerry.StatusRunning, "")

	req := request("large")
	req.Persistent, req.Env = true, map[string]string{}
	for i := range 9 {
		req.Env[fmt.Sprint("A", i)] = strings.Repeat("x", 100<<10)
	}
	large, _, err := w.CreateSandbox(t.Context(), req)
	must(t, err)
	w.claimAs(large.ID, 1)
	w.say(large.ID, bus.Event{Status: skerry.StatusRunning})
	_, err = w.ForkSandbox(t.Context(), "large", skerry.ForkRequest{Count: 10, InheritEnv: true})
	wantCode(t, "environments of 9 MiB", err, skerry.CodeTooLarge)
	_, err = w.ForkSandbox(t.Context(), "large", skerry.ForkRequest{Count: 64})
	must(t, err)
}

// TestForkEnds: a fork that does not work, or loses its source or its runner,
// fails the copies that are not made yet, at once and with a reason that names it,
// and no others.
func TestForkEnds(t *testing.T) {
	over := bus.Event{Kind: bus.EventOperation, Operation: skerry.Fork}
	restart := func(w *world, s store.Sandbox) {
		w.report(runnerA, 2, bus.MachineReport{SandboxID: s.ID, MachineID: s.Machine, Status: skerry.StatusRunning})
	}
	giveUp := func(w *world, _ store.Sandbox) { must(w.t, w.giveUpRunner(w.t.Context(), runnerA)) }
	for _, test := range []struct {
		name    string
		over    bool // for the source, which was saved; the copies are still to be made
		end     func(w *world, s store.Sandbox)
		claimed skerry.Status // of the copy that is being made
	}{
		{"refused", false, func(w *world, s store.Sandbox) {
			w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.Fork, Reason: "no room"})
		}, "assigned"},
		{"source fails", false, func(w *world, s store.Sandbox) { w.say(s.ID, bus.Event{Status: skerry.StatusFailed, Reason: "broken"}) }, "assigned"},
		{"source deleted", false, func(w *world, s store.Sandbox) { w.say(s.ID, bus.Event{Status: skerry.StatusDeleted}) }, "assigned"},
		{"runner restarted", true, restart, "failed"},
		{"runner is gone", false, giveUp, "lost"},
		{"runner is gone, source saved", true, giveUp, "lost"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			s := w.source("s")
			children, err := w.ForkSandbox(t.Context(), "s", skerry.ForkRequest{Count: 2})
			must(t, err)
			w.claimAs(children[0].ID, 1)
			if test.over {
				w.say(s.ID, over)
			}
			if test.name == "source deleted" {
				must(t, w.do(t.Context(), skerry.Delete, "s"))
				w.wantStatus(children[1].ID, skerry.StatusPending) // may still be made
			}
			test.end(w, s)
			if got := w.row(children[1].ID); got.Status != skerry.StatusFailed || !strings.Contains(got.Reason, string(s.ID)) {
				t.Errorf("unclaimed copy is %s (%s)", got.Status, got.Reason)
			}
			if got := w.row(children[0].ID); got.Status != test.claimed || got.Status == skerry.StatusFailed && !strings.Contains(got.Reason, string(s.ID)) {
				t.Errorf("claimed copy is %s (%s)", got.Status, got.Reason)
			}
			if got := w.row(s.ID); got.Operation != "" {
				t.Errorf("operation %s", got.Operation)
			}
		})
	}
}

// TestForkAgain: a fork whose runner is restarted before the source is saved is
// made again, with the copies that were not claimed.
func TestForkAgain(t *testing.T) {
	w := newWorld(t)
	s := w.source("s")
	children, err := w.ForkSandbox(t.Context(), "s", skerry.ForkRequest{Count: 2})
	must(t, err)
	w.takeOutbox()
	w.report(runnerA, 2, bus.MachineReport{SandboxID: s.ID, MachineID: s.Machine, Status: skerry.StatusRunning})
	if c := w.oneCommand(bus.CommandFork); len(c.Jobs) != 2 {
		t.Errorf("command %+v", c)
	}
	for _, child := range children {
		w.wantStatus(child.ID, skerry.StatusPending)
		w.claimAs(child.ID, 2)
	}
}

// TestDeleteUnclaimedCopy: it is gone at once, and cannot be claimed.
func TestDeleteUnclaimedCopy(t *testing.T) {
	w := newWorld(t)
	w.source("s")
	children, err := w.ForkSandbox(t.Context(), "s", skerry.ForkRequest{})
	must(t, err)
	w.takeOutbox()
	must(t, w.do(t.Context(), skerry.Delete, children[0].Name))
	w.wantStatus(children[0].ID, skerry.StatusDeleted)
	if commands := w.takeCommands(); len(commands) > 0 {
		t.Errorf("commands %+v", commands)
	}
	reply, err := w.claim(t.Context(), bus.ClaimRequest{SandboxID: children[0].ID, RunnerID: runnerA, MachineID: skerry.NewMachineID(), Epoch: 1})
	if err != nil || reply.OK {
		t.Errorf("claim: %+v, %v", reply, err)
	}
}

func TestSnapshot(t *testing.T) {
	w := newWorld(t)
	s := w.source("s")
	snapshot, err := w.CreateSnapshot(t.Context(), "s", "saved")
	must(t, err)
	if c := w.oneCommand(bus.CommandSnapshot); c.SnapshotID != snapshot.ID || c.SandboxID != s.ID || c.MachineID != s.Machine {
		t.Errorf("command %+v", c)
	}
	want := skerry.Snapshot{ID: snapshot.ID, Name: "saved", Status: "pending", Source: s.ID, Image: "debian", ImageID: s.ImageID, User: "alice",
		Resources: s.Resources, Persistent: true, Runner: runnerA, CreatedAt: w.clock.Now(), UpdatedAt: w.clock.Now()}
	if diff := cmp.Diff(want, snapshot); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
	w.wantOperation(s.ID, skerry.StatusRunning, skerry.CreateSnapshot)
	_, _, err = w.RestoreSnapshot(t.Context(), "saved", skerry.RestoreRequest{})
	wantCode(t, "restore before it is ready", err, skerry.CodeConflict)

	report := func(r bus.SnapshotReport) {
		r.SnapshotID = snapshot.ID
		w.say(s.ID, bus.Event{Kind: bus.EventSnapshot, Snapshot: &r})
	}
	report(bus.SnapshotReport{Status: skerry.ImageBuilding})
	report(bus.SnapshotReport{Status: "nonsense"})
	got, err := w.Snapshot(t.Context(), string(snapshot.ID))
	if err != nil || got.Status != skerry.ImageBuilding {
		t.Errorf("building: %+v, %v", got, err)
	}
	report(bus.SnapshotReport{Status: skerry.ImageReady, MemoryBytes: 1, DiskBytes: 2, PauseMillis: 3})
	w.wantOperation(s.ID, skerry.StatusRunning, "") // also without an EventOperation
	report(bus.SnapshotReport{Status: skerry.ImageFailed})
	must(t, w.event(t.Context(), bus.Event{Kind: bus.EventSnapshot, RunnerID: runnerB, Snapshot: &bus.SnapshotReport{SnapshotID: snapshot.ID, Deleted: true}}))
	got, err = w.Snapshot(t.Context(), "saved")
	if err != nil || got.Status != skerry.ImageReady || got.MemoryBytes != 1 || got.DiskBytes != 2 || got.PauseMillis != 3 {
		t.Errorf("ready: %+v, %v", got, err)
	}
	list, err := w.ListSnapshots(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != snapshot.ID {
		t.Errorf("list %+v, %v", list, err)
	}

	// It outlives its source, and keeps the image.
	must(t, w.do(t.Context(), skerry.Delete, "s"))
	w.say(s.ID, bus.Event{Status: skerry.StatusDeleted})
	wantCode(t, "delete the image", w.DeleteImage(t.Context(), "debian"), skerry.CodeConflict)
	w.takeOutbox()
	_, _, err = w.RestoreSnapshot(t.Context(), "saved", skerry.RestoreRequest{Name: "r"})
	must(t, err)
	wantCode(t, "delete during a restore", w.DeleteSnapshot(t.Context(), "saved"), skerry.CodeConflict)
	must(t, w.do(t.Context(), skerry.Delete, "r"))
	w.takeOutbox()
	must(t, w.DeleteSnapshot(t.Context(), "saved"))
	if c := w.oneCommand(bus.CommandDeleteSnapshot); c.SnapshotID != snapshot.ID {
		t.Errorf("command %+v", c)
	}
	wantCode(t, "delete again", w.DeleteSnapshot(t.Context(), "saved"), skerry.CodeNotFound)
	report(bus.SnapshotReport{Status: skerry.ImageReady}) // it is told again
	w.oneCommand(bus.CommandDeleteSnapshot)
	must(t, w.DeleteImage(t.Context(), "debian"))
}

// TestSnapshotsOfAReport: what is missing has failed or is made again, what is
// unknown is removed.
func TestSnapshotsOfAReport(t *testing.T) {
	w := newWorld(t)
	s := w.source("s")
	ready, err := w.CreateSnapshot(t.Context(), "s", "ready")
	must(t, err)
	w.say(s.ID, bus.Event{Kind: bus.EventSnapshot, Snapshot: &bus.SnapshotReport{SnapshotID: ready.ID, Status: skerry.ImageReady}})
	interrupted, err := w.CreateSnapshot(t.Context(), "s", "interrupted")
	must(t, err)
	w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.CreateSnapshot}) // then the runner is killed
	under, err := w.CreateSnapshot(t.Context(), "s", "under-way")
	must(t, err)
	w.takeOutbox()
	unknown := skerry.NewSnapshotID()
	r := newReport(runnerA, 2, bus.MachineReport{SandboxID: s.ID, MachineID: s.Machine, Status: skerry.StatusRunning})
	r.Images = []bus.ImageReport{{ImageID: s.ImageID, Status: skerry.ImageReady}}
	r.Snapshots = []bus.SnapshotReport{{SnapshotID: unknown, Status: skerry.ImageReady}}
	must(t, w.Control.report(t.Context(), r))
	for _, c := range w.takeCommands() {
		if c.Kind == bus.CommandSnapshot && c.SnapshotID == under.ID || c.Kind == bus.CommandDeleteSnapshot && c.SnapshotID == unknown {
			continue
		}
		t.Errorf("command %+v", c)
	}
	for id, want := range map[skerry.SnapshotID]skerry.ImageStatus{ready.ID: "failed", interrupted.ID: "failed", under.ID: "pending"} {
		if got, err := w.Snapshot(t.Context(), string(id)); err != nil || got.Status != want || (want == "failed") != (got.Error != "") {
			t.Errorf("%s is %s (%s), %v", got.Name, got.Status, got.Error, err)
		}
	}
	must(t, w.giveUpRunner(t.Context(), runnerA))
	if got, err := w.Snapshot(t.Context(), "under-way"); err != nil || got.Status != skerry.ImageFailed {
		t.Errorf("its runner is gone: %s, %v", got.Status, err)
	}
}

func TestWaitSnapshot(t *testing.T) {
	w := newWorld(t)
	s := w.source("s")
	for what, end := range map[string]func(skerry.Snapshot) skerry.ImageStatus{
		"ready": func(n skerry.Snapshot) skerry.ImageStatus {
			w.say(s.ID, bus.Event{Kind: bus.EventSnapshot, Snapshot: &bus.SnapshotReport{SnapshotID: n.ID, Status: skerry.ImageReady}})
			return skerry.ImageReady
		},
		"failed": func(n skerry.Snapshot) skerry.ImageStatus {
			w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.CreateSnapshot, Reason: "no room"})
			return skerry.ImageFailed
		},
		"deleted": func(n skerry.Snapshot) skerry.ImageStatus {
			must(t, w.DeleteSnapshot(t.Context(), n.Name))
			w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.CreateSnapshot})
			return skerry.ImageFailed
		},
		"timeout": func(n skerry.Snapshot) skerry.ImageStatus {
			w.clock.advance(2 * time.Second)
			w.keepAlive()
			w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: skerry.CreateSnapshot})
			return skerry.ImagePending
		},
	} {
		n, err := w.CreateSnapshot(t.Context(), "s", what)
		must(t, err)
		done := make(chan skerry.Snapshot)
		go func() {
			got, err := w.WaitSnapshot(t.Context(), what, time.Second)
			if err != nil {
				t.Error(err)
			}
			done <- got
		}()
		w.waitForTimer()
		want := end(n)
		if got := <-done; got.Status != want {
			t.Errorf("%s: wait ended with %s, want %s", what, got.Status, want)
		}
	}
	_, err := w.WaitSnapshot(t.Context(), "none", time.Second)
	wantCode(t, "unknown", err, skerry.CodeNotFound)
}

// waitForTimer waits until somebody waits for the clock.
func (w *world) waitForTimer() {
	w.t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		w.clock.mu.Lock()
		waits := len(w.clock.timers) > 0
		w.clock.mu.Unlock()
		if waits {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatal("nobody waits")
		}
	}
}

// saved returns a ready snapshot of a sandbox.
func (w *world) saved(s store.Sandbox, name string) skerry.Snapshot {
	w.t.Helper()
	n, err := w.CreateSnapshot(w.t.Context(), s.Name, name)
	must(w.t, err)
	w.say(s.ID, bus.Event{Kind: bus.EventSnapshot, Snapshot: &bus.SnapshotReport{SnapshotID: n.ID, Status: skerry.ImageReady}})
	w.takeOutbox()
	return n
}

func TestRestore(t *testing.T) {
	w := newWorld(t)
	w.Control.cfg.Policy = skerry.PolicyDefaults{PlatformTimeout: true}
	p := w.byHand()
	w.Control.cfg.Policy = skerry.PolicyDefaults{PlatformTimeout: true}
	s := w.source("s")
	n := w.saved(s, "saved")
	restored, created, err := w.RestoreSnapshot(t.Context(), "saved", skerry.RestoreRequest{Labels: map[string]string{"a": "b"}, Env: map[string]string{"C": "D"}, Spot: true})
	must(t, err)
	got := w.row(restored.ID)
	want := s.Sandbox
	want.ID, want.Name, want.Snapshot, want.Status, want.State = got.ID, got.Name, n.ID, "queued", "queued"
	want.Labels, want.Env = map[string]string{"a": "b", "name": got.Name}, map[string]string{"C": "D"}
	want.Spot, want.Machine, want.StartedAt, want.Unenforced = true, "", nil, nil
	want.Lifecycle = skerry.Lifecycle{LifecyclePolicy: timeout(300, skerry.ActionDelete), LastActivityAt: got.Lifecycle.LastActivityAt}
	if diff := cmp.Diff(want, got.Sandbox); diff != "" || !created {
		t.Errorf("created %v, restored (-want +got):\n%s", created, diff)
	}
	// The order goes to the runner that has it, and to no other.
	p.publish()
	if len(p.orders) != 1 || p.orders[0].command == nil {
		t.Fatalf("orders %+v", p.orders)
	}
	c := p.orders[0].command
	if c.Kind != bus.CommandCreateSandbox || c.Job == nil || c.Job.Snapshot != n.ID || c.Job.Env["C"] != "D" || len(c.Job.Env) != 1 || c.SandboxID != got.ID {
		t.Errorf("command %+v, job %+v", c, c.Job)
	}
	w.wantStatus(restored.ID, skerry.StatusPending)
	reply, err := w.claim(t.Context(), bus.ClaimRequest{SandboxID: restored.ID, RunnerID: runnerB, MachineID: skerry.NewMachineID(), Epoch: 1})
	if err != nil || reply.OK {
		t.Errorf("claim by another runner: %+v, %v", reply, err)
	}
}

func TestRestoreRefusals(t *testing.T) {
	w := newWorld(t)
	s := w.source("s")
	w.saved(s, "saved")
	plain := request("plain")
	created, _, err := w.CreateSandbox(t.Context(), plain)
	must(t, err)
	w.claimAs(created.ID, 1)
	w.say(created.ID, bus.Event{Status: skerry.StatusRunning})
	w.saved(w.row(created.ID), "ephemeral")
	yes, no := true, false
	for what, req := range map[string]skerry.RestoreRequest{
		"persistent":     {Persistent: &yes},
		"name":           {Name: "sbx_a"},
		"label":          {Labels: map[string]string{"": ""}},
		"env":            {Env: map[string]string{"A B": ""}},
		"policy":         {Policy: &skerry.PolicyRequest{OnTimeout: act("stop"), TimeoutSeconds: seconds(60)}},
		"create timeout": {CreateTimeoutSeconds: seconds(0)},
	} {
		_, _, err := w.RestoreSnapshot(t.Context(), "ephemeral", req)
		wantCode(t, what, err, skerry.CodeInvalid)
	}
	r, _, err := w.RestoreSnapshot(t.Context(), "saved", skerry.RestoreRequest{Persistent: &no, Name: "r", IdempotencyKey: "k"})
	if err != nil || r.Persistent {
		t.Errorf("made ephemeral: %+v, %v", r, err)
	}
	again, created2, err := w.RestoreSnapshot(t.Context(), "saved", skerry.RestoreRequest{Persistent: &no, Name: "r", IdempotencyKey: "k"})
	if err != nil || created2 || again.ID != r.ID {
		t.Errorf("repeated: %s, %v, %v", again.ID, created2, err)
	}
	_, _, err = w.RestoreSnapshot(t.Context(), "saved", skerry.RestoreRequest{Name: "r", IdempotencyKey: "k"})
	wantCode(t, "other arguments", err, skerry.CodeConflict)
	_, _, err = w.RestoreSnapshot(t.Context(), "ephemeral", skerry.RestoreRequest{Persistent: &no, Name: "r", IdempotencyKey: "k"})
	wantCode(t, "another snapshot", err, skerry.CodeConflict)
	_, _, err = w.CreateSandbox(t.Context(), request("r"))
	wantCode(t, "a create of the name", err, skerry.CodeConflict)
	_, _, err = w.RestoreSnapshot(t.Context(), "none", skerry.RestoreRequest{})
	wantCode(t, "unknown", err, skerry.CodeNotFound)
	w.clock.advance(offlineAfter)
	_, _, err = w.RestoreSnapshot(t.Context(), "saved", skerry.RestoreRequest{})
	wantCode(t, "its runner is away", err, skerry.CodeUnavailable)
}

// TestNames: images and snapshots share one name space, both ways; a failed one
// gives its name free.
func TestNames(t *testing.T) {
	w := newWorld(t)
	s := w.source("s")
	fail := func(reason string) {
		w.say(s.ID, bus.Event{Kind: bus.EventOperation, Operation: w.row(s.ID).Operation, Reason: reason})
	}
	for _, name := range []string{"", ".a", "a/b", "snap-a", "img_a", strings.Repeat("x", 129)} {
		_, err := w.CreateSnapshot(t.Context(), "s", name)
		wantCode(t, "snapshot "+name, err, skerry.CodeInvalid)
	}
	_, err := w.CreateSnapshot(t.Context(), "s", "debian")
	wantCode(t, "snapshot of an image's name", err, skerry.CodeConflict)
	_, err = w.CreateSnapshot(t.Context(), "s", "saved")
	must(t, err)
	for _, refused := range []func() error{
		func() error { _, err := w.PullImage(t.Context(), skerry.PullRequest{Reference: "saved"}); return err },
		func() error { _, err := w.ImportImage(t.Context(), skerry.ImportRequest{Name: "saved"}); return err },
	} {
		err := refused()
		wantCode(t, "image of a snapshot's name", err, skerry.CodeConflict)
		if err != nil && !strings.Contains(err.Error(), "snapshot") {
			t.Errorf("error %q does not say who has it", err)
		}
	}
	fail("no room")
	if _, err := w.PullImage(t.Context(), skerry.PullRequest{Reference: "saved"}); err != nil {
		t.Errorf("the name of a failed snapshot: %v", err)
	}
	_, err = w.CaptureImage(t.Context(), "s", skerry.CaptureRequest{Name: "captured"})
	must(t, err)
	fail("no room")
	if _, err := w.CreateSnapshot(t.Context(), "s", "captured"); err != nil {
		t.Errorf("the name of a failed image: %v", err)
	}
}
