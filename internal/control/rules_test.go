package control

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// TestPathsFollowTheTable: whatever path allows is a sequence of allowed changes.
func TestPathsFollowTheTable(t *testing.T) {
	for _, persistent := range []bool{false, true} {
		for _, from := range skerry.Statuses() {
			for _, to := range skerry.Statuses() {
				steps, ok := path(from, to, persistent)
				if from.CanBecome(to, persistent) && !ok {
					t.Errorf("%s cannot become %s, which the table allows", from, to)
				}
				at := from
				for _, step := range steps {
					if !at.CanBecome(step, persistent) {
						t.Errorf("path from %s to %s has a step from %s to %s", from, to, at, step)
					}
					at = step
				}
				if ok && at != to {
					t.Errorf("path from %s to %s ends at %s", from, to, at)
				}
			}
		}
	}
}

// TestSandboxEvents has every status reported in every status.
func TestSandboxEvents(t *testing.T) {
	type changes map[skerry.Status]skerry.Status // reported -> becomes; others change nothing
	ephemeral := map[skerry.Status]changes{
		"assigned": {"booting": "booting", "running": "running", "failed": "failed", "lost": "lost", "deleted": "failed"},
		"booting":  {"running": "running", "failed": "failed", "lost": "lost", "deleted": "failed"},
		"running":  {"failed": "failed", "lost": "lost", "deleted": "lost"},
		"deleting": {"deleted": "deleted"},
	}
	persistent := map[skerry.Status]changes{
		"assigned": {"booting": "booting", "running": "running", "stopped": "stopped", "paused": "paused", "failed": "failed", "lost": "lost", "deleted": "failed"},
		"booting":  {"running": "running", "stopped": "stopped", "paused": "paused", "failed": "failed", "lost": "lost", "deleted": "failed"},
		"running":  {"stopped": "stopped", "paused": "paused", "failed": "failed", "lost": "lost", "deleted": "lost"},
		"stopping": {"stopped": "stopped", "failed": "failed", "lost": "lost", "deleted": "lost"},
		"stopped":  {"failed": "failed", "lost": "lost", "deleted": "lost"},
		"pausing":  {"paused": "paused", "running": "running", "stopped": "stopped", "failed": "failed", "lost": "lost", "deleted": "lost"},
		"paused":   {"stopped": "stopped", "failed": "failed", "lost": "lost", "deleted": "lost"},
		"lost":     {"stopped": "stopped", "paused": "paused", "running": "running"},
		"deleting": {"deleted": "deleted"},
	}
	w := newWorld(t)
	for kind, want := range map[bool]map[skerry.Status]changes{false: ephemeral, true: persistent} {
		for _, from := range skerry.Statuses() {
			for _, reported := range append(skerry.Statuses(), "", "nonsense") {
				becomes, changed := want[from][reported]
				if !changed {
					becomes = from
				}
				w.testEvent(kind, from, reported, becomes)
			}
		}
	}
}

func (w *world) testEvent(persistent bool, from, reported, becomes skerry.Status) {
	t := w.t
	name := fmt.Sprintf("%v-%s-%s", persistent, from, reported)
	kind := func(s *store.Sandbox) { s.Persistent = persistent }
	s := w.putChanged(name, from, kind)
	changed := from != becomes
	e := bus.Event{Kind: bus.EventSandbox, RunnerID: runnerA, SandboxID: s.ID, MachineID: s.Machine, Status: reported, Reason: "why", User: "app", Unenforced: []string{"resources.cpu"}}
	for range 2 { // at least once
		must(t, w.event(t.Context(), e))
		got := w.row(s.ID)
		if got.Status != becomes || (got.Version > 1) != changed {
			t.Errorf("%s: is %s at version %d, want %s", name, got.Status, got.Version, becomes)
		}
		if changed && reported != "deleted" && becomes != "booting" && got.Reason != "why" {
			t.Errorf("%s: reason %q", name, got.Reason)
		}
		if running := changed && becomes == "running"; running && (got.StartedAt == nil || got.User != "app" || len(got.Unenforced) != 1) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	// Nothing but its own machine on its own runner speaks for a sandbox.
	s = w.putChanged("other-"+name, from, kind)
	for _, stale := range []bus.Event{
		{RunnerID: runnerA, MachineID: skerry.NewMachineID(), SandboxID: s.ID},
		{RunnerID: runnerB, MachineID: s.Machine, SandboxID: s.ID},
		{RunnerID: runnerA, SandboxID: skerry.NewSandboxID(), MachineID: s.Machine},
	} {
		stale.Kind, stale.Status = bus.EventSandbox, reported
		must(t, w.event(t.Context(), stale))
	}
	if got := w.row(s.ID); got.Version != 1 {
		t.Errorf("%s: changed to %s by a stale event", name, got.Status)
	}
}

func TestMalformedEventsAreDropped(t *testing.T) {
	w := newWorld(t)
	for _, e := range []bus.Event{{}, {Kind: "x", RunnerID: runnerA}, {Kind: bus.EventImage, RunnerID: runnerA}, {Kind: bus.EventReport, RunnerID: runnerA},
		{Kind: bus.EventSandbox, RunnerID: "run_a.>"}, {Kind: bus.EventReport, RunnerID: runnerB, Report: &bus.RunnerReport{Heartbeat: bus.Heartbeat{Runner: skerry.Runner{ID: runnerA}, Epoch: 99}}}} {
		must(t, w.event(t.Context(), e))
	}
	w.report(runnerA, 2) // an epoch of 99 would make this one stale
	if err := w.heartbeat(t.Context(), bus.Heartbeat{Runner: skerry.Runner{ID: "run_*"}}); err == nil {
		t.Error("heartbeat with a wildcard for an id was accepted")
	}
}

// TestDeleteInEveryStatus: a delete is always accepted, twice too, and has an
// end with and without the runner.
func TestDeleteInEveryStatus(t *testing.T) {
	for _, gone := range []bool{false, true} {
		w := newWorld(t)
		if gone {
			must(t, w.giveUpRunner(t.Context(), runnerA))
		}
		for _, from := range skerry.Statuses() {
			t.Run(fmt.Sprintf("%s gone=%v", from, gone), func(t *testing.T) {
				s := w.put("s-"+string(from), from)
				w.takeOutbox()
				want := skerry.StatusDeleting
				switch {
				case from == skerry.StatusDeleting:
				case from == skerry.StatusDeleted, s.Runner == "", gone:
					want = skerry.StatusDeleted
				}
				for _, ref := range []string{string(s.ID), s.Name, string(s.ID)} {
					got, err := w.DeleteSandbox(t.Context(), ref)
					if err != nil || got.Status != want || got.State != want.State() {
						t.Errorf("delete %s: %s, %v, want %s", ref, got.Status, err, want)
					}
				}
				w.wantStatus(s.ID, want)
				var commands []string
				if s.Runner != "" && from != skerry.StatusDeleting && from != skerry.StatusDeleted {
					commands = []string{deleteCommand(s)}
				}
				if diff := cmp.Diff(commands, w.takeOutbox()); diff != "" {
					t.Errorf("commands (-want +got):\n%s", diff)
				}
				reply, err := w.claim(t.Context(), bus.ClaimRequest{SandboxID: s.ID, RunnerID: runnerA, MachineID: skerry.NewMachineID()})
				if err != nil || reply.OK {
					t.Errorf("claim after the delete: %+v, %v", reply, err)
				}
			})
		}
	}
	w := newWorld(t)
	_, err := w.DeleteSandbox(t.Context(), "none")
	wantCode(t, "delete an unknown name", err, skerry.CodeNotFound)
}

func TestClaims(t *testing.T) {
	w := newWorld(t)
	mine, other := skerry.NewMachineID(), skerry.NewMachineID()
	for _, from := range skerry.Statuses() {
		s := w.put(string(from), from)
		free := from == skerry.StatusQueued || from == skerry.StatusPending
		held := from == skerry.StatusAssigned || from == skerry.StatusBooting || from == skerry.StatusRunning
		ask := func(runner skerry.RunnerID, machine skerry.MachineID, want bool) {
			t.Helper()
			reply, err := w.claim(t.Context(), bus.ClaimRequest{SandboxID: s.ID, RunnerID: runner, MachineID: machine, Epoch: 5})
			if err != nil || reply.OK != want || (reply.Reason == "") != want {
				t.Errorf("%s: claim by %s: %+v, %v, want %v", from, runner, reply, err, want)
			}
		}
		if free {
			ask(runnerA, "mch_malformed", false)
			ask("run_a.b", mine, false)
			ask(runnerA, mine, true)
			if got := w.row(s.ID); got.Status != skerry.StatusAssigned || got.Runner != runnerA || got.Machine != mine || got.RunnerEpoch != 5 {
				t.Errorf("claimed: %+v", got)
			}
			s.Machine = mine
		}
		ask(runnerA, s.Machine, free || held) // asks again
		ask(runnerA, other, false)
		ask(runnerB, s.Machine, false)
		ask(runnerB, other, false)
	}
	reply, err := w.claim(t.Context(), bus.ClaimRequest{SandboxID: "sbx_none", RunnerID: runnerA, MachineID: mine})
	if err != nil || reply.OK {
		t.Errorf("claim of an unknown sandbox: %+v, %v", reply, err)
	}
	late := w.put("late", skerry.StatusPending)
	w.clock.advance(time.Hour)
	reply, err = w.claim(t.Context(), bus.ClaimRequest{SandboxID: late.ID, RunnerID: runnerA, MachineID: mine})
	if err != nil || reply.OK {
		t.Errorf("claim at the deadline: %+v, %v", reply, err)
	}
}

func TestCreate(t *testing.T) {
	w := newWorld(t)
	req := request("")
	req.Env, req.Labels = map[string]string{"A": "B"}, map[string]string{"team": "x"}
	s, created, err := w.CreateSandbox(t.Context(), req)
	must(t, err)
	if !created || s.Status != skerry.StatusQueued || s.State != "queued" || s.User != "app" || s.Image != "debian" || !s.CreateDeadline.Equal(w.clock.Now().Add(time.Hour)) {
		t.Errorf("created %v, %+v", created, s)
	}
	if err := skerry.ValidateSandboxName(s.Name); err != nil || strings.Count(s.Name, "-") != 2 {
		t.Errorf("generated name %q: %v", s.Name, err)
	}
	if diff := cmp.Diff(map[string]string{"team": "x", "name": s.Name}, s.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if len(req.Labels) != 1 {
		t.Error("the caller's labels were changed")
	}
	got, err := w.Sandbox(t.Context(), s.Name)
	must(t, err)
	if diff := cmp.Diff(s, got); diff != "" {
		t.Errorf("returned and stored differ (-returned +stored):\n%s", diff)
	}
	again, created, err := w.CreateSandbox(t.Context(), req)
	if err != nil || !created || again.ID == s.ID {
		t.Errorf("a create without name and key gave %s, %v, %v", again.ID, created, err)
	}
	req.User, req.Name, req.NamedByCaller = "alice", "named", true
	if s, _, err := w.CreateSandbox(t.Context(), req); err != nil || s.User != "alice" || s.Name != "named" {
		t.Errorf("created %+v, %v", s, err)
	}
}

func TestCreateRefusals(t *testing.T) {
	w := newWorld(t)
	pull := func(name string) skerry.Image {
		i, err := w.PullImage(t.Context(), skerry.PullRequest{Reference: name})
		must(t, err)
		return i
	}
	pull("pending")
	failed := pull("failed")
	must(t, w.event(t.Context(), bus.Event{Kind: bus.EventImage, RunnerID: runnerA, Image: &bus.ImageReport{ImageID: failed.ID, Status: skerry.ImageFailed, Error: "no such tag"}}))
	tests := []struct {
		image, text string
		code        skerry.Code
	}{
		{"unknown", "image pull", skerry.CodeNotFound},
		{string(skerry.NewImageID()), "image pull", skerry.CodeNotFound},
		{"pending", "not ready", skerry.CodeConflict},
		{"failed", "no such tag", skerry.CodeConflict},
	}
	for _, test := range tests {
		req := request("")
		req.Image = test.image
		_, _, err := w.CreateSandbox(t.Context(), req)
		wantCode(t, test.image, err, test.code)
		if err != nil && !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: error %q does not say %q", test.image, err, test.text)
		}
	}
	must(t, w.DeleteImage(t.Context(), "debian"))
	_, _, err := w.CreateSandbox(t.Context(), request(""))
	wantCode(t, "no default image", err, skerry.CodeInvalid)

	w = newWorld(t)
	w.clock.advance(offlineAfter)
	_, _, err = w.CreateSandbox(t.Context(), request(""))
	wantCode(t, "no runner", err, skerry.CodeUnavailable)
	page, err := w.ListSandboxes(t.Context(), skerry.SandboxFilter{Deleted: true})
	if err != nil || len(page.Items) != 0 {
		t.Errorf("refused creates left %d sandboxes, %v", len(page.Items), err)
	}
}

func TestIdempotency(t *testing.T) {
	base := request("")
	change := func(fn func(*skerry.SandboxRequest)) skerry.SandboxRequest {
		r := base
		fn(&r)
		return r
	}
	named := change(func(r *skerry.SandboxRequest) { r.Name, r.NamedByCaller = "n", true })
	keyed := change(func(r *skerry.SandboxRequest) { r.IdempotencyKey = "k" })
	both := change(func(r *skerry.SandboxRequest) { r.Name, r.NamedByCaller, r.IdempotencyKey = "n", true, "k" })
	with := func(r skerry.SandboxRequest, fn func(*skerry.SandboxRequest)) skerry.SandboxRequest { fn(&r); return r }
	tests := []struct {
		name          string
		first, second skerry.SandboxRequest
		want          string // "same", "new", "conflict"
	}{
		{"neither", base, base, "new"},
		{"same name", named, named, "same"},
		{"same key", keyed, keyed, "same"},
		{"key and generated names", with(keyed, func(r *skerry.SandboxRequest) { r.Name = "gen-1" }), with(keyed, func(r *skerry.SandboxRequest) { r.Name = "gen-2" }), "same"},
		{"same name, another key", named, both, "same"},
		{"same key, another name", both, with(both, func(r *skerry.SandboxRequest) { r.Name = "m" }), "conflict"},
		{"key and name, then the key alone", both, keyed, "conflict"},
		{"another name", named, with(named, func(r *skerry.SandboxRequest) { r.Name = "m" }), "new"},
		{"another key", keyed, with(keyed, func(r *skerry.SandboxRequest) { r.IdempotencyKey = "l" }), "new"},
		{"key like a name", named, with(base, func(r *skerry.SandboxRequest) { r.IdempotencyKey = "n" }), "new"},
		{"other env", named, with(named, func(r *skerry.SandboxRequest) { r.Env = map[string]string{"A": ""} }), "conflict"},
		{"other labels", named, with(named, func(r *skerry.SandboxRequest) { r.Labels = map[string]string{"a": "b"} }), "conflict"},
		{"other image", named, with(named, func(r *skerry.SandboxRequest) { r.Image = "debian" }), "conflict"},
		{"other user", keyed, with(keyed, func(r *skerry.SandboxRequest) { r.User = "u" }), "conflict"},
		{"other size", keyed, with(keyed, func(r *skerry.SandboxRequest) { r.Resources.CPU = 2 }), "conflict"},
		{"other timeout", keyed, with(keyed, func(r *skerry.SandboxRequest) { r.CreateTimeout++ }), "conflict"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			first, created, err := w.CreateSandbox(t.Context(), test.first)
			if err != nil || !created {
				t.Fatalf("first create: %v, %v", created, err)
			}
			second, created, err := w.CreateSandbox(t.Context(), test.second)
			switch test.want {
			case "same":
				if err != nil || created || second.ID != first.ID {
					t.Errorf("got %s, %v, %v, want the first", second.ID, created, err)
				}
			case "new":
				if err != nil || !created || second.ID == first.ID {
					t.Errorf("got %s, %v, %v, want a new one", second.ID, created, err)
				}
			case "conflict":
				wantCode(t, "second create", err, skerry.CodeConflict)
			}
			// While the first is being deleted it keeps name and key; after it they are free.
			w.claimAs(first.ID, 1)
			_, err = w.DeleteSandbox(t.Context(), string(first.ID))
			must(t, err)
			_, _, err = w.CreateSandbox(t.Context(), test.first)
			if test.first.NamedByCaller || test.first.IdempotencyKey != "" {
				wantCode(t, "create while the first is being deleted", err, skerry.CodeConflict)
			}
			row := w.row(first.ID)
			must(t, w.event(t.Context(), bus.Event{Kind: bus.EventSandbox, RunnerID: runnerA, SandboxID: row.ID, MachineID: row.Machine, Status: skerry.StatusDeleted}))
			if _, created, err := w.CreateSandbox(t.Context(), test.first); test.name != "neither" && (err != nil || !created) {
				t.Errorf("create after the delete: %v, %v", created, err)
			}
		})
	}
}

// TestConcurrentCreates: of many creates with one name, one makes the sandbox.
func TestConcurrentCreates(t *testing.T) {
	w := newWorld(t)
	type result struct {
		id      skerry.SandboxID
		created bool
		err     error
	}
	results := make(chan result)
	const count = 20
	for range count {
		go func() {
			s, created, err := w.CreateSandbox(t.Context(), request("same"))
			results <- result{s.ID, created, err}
		}()
	}
	ids, made := map[skerry.SandboxID]bool{}, 0
	for range count {
		r := <-results
		must(t, r.err)
		ids[r.id] = true
		if r.created {
			made++
		}
	}
	if len(ids) != 1 || made != 1 {
		t.Errorf("%d sandboxes, %d of them told to be new, want one", len(ids), made)
	}
}

func TestWait(t *testing.T) {
	w := newWorld(t)
	wait := func(id skerry.SandboxID, until ...skerry.Status) <-chan skerry.Sandbox {
		c := make(chan skerry.Sandbox, 1)
		go func() {
			s, err := w.WaitSandbox(context.Background(), string(id), until, time.Minute)
			if err != nil {
				t.Error(err)
			}
			c <- s
		}()
		w.waitForWaiters(id, 1)
		return c
	}
	get := func(c <-chan skerry.Sandbox, want skerry.Status) {
		t.Helper()
		select {
		case s := <-c:
			if s.Status != want {
				t.Errorf("wait ended with %s, want %s", s.Status, want)
			}
		case <-time.After(limit):
			t.Fatalf("wait for %s does not end", want)
		}
	}
	report := func(s store.Sandbox, status skerry.Status) {
		t.Helper()
		must(t, w.event(t.Context(), bus.Event{Kind: bus.EventSandbox, RunnerID: s.Runner, SandboxID: s.ID, MachineID: s.Machine, Status: status}))
	}
	s := w.put("reached", skerry.StatusBooting)
	c := wait(s.ID, skerry.StatusRunning)
	report(s, skerry.StatusRunning)
	get(c, skerry.StatusRunning)

	s = w.put("passed", skerry.StatusAssigned)
	c = wait(s.ID, skerry.StatusBooting)
	report(s, skerry.StatusRunning) // is two steps
	get(c, skerry.StatusBooting)

	s = w.put("unreachable", skerry.StatusBooting)
	c = wait(s.ID, skerry.StatusRunning, skerry.StatusStopped)
	report(s, skerry.StatusFailed)
	get(c, skerry.StatusFailed)

	s = w.put("deleted", skerry.StatusBooting)
	c = wait(s.ID, skerry.StatusRunning)
	_, err := w.DeleteSandbox(t.Context(), s.Name)
	must(t, err)
	get(c, skerry.StatusDeleting)

	s = w.put("timeout", skerry.StatusBooting)
	c = wait(s.ID, skerry.StatusRunning)
	w.clock.advance(time.Minute)
	get(c, skerry.StatusBooting)

	for _, test := range []struct {
		at, until skerry.Status
		timeout   time.Duration
	}{{"running", "running", time.Minute}, {"failed", "running", time.Minute}, {"deleted", "running", time.Minute}, {"booting", "running", 0}} {
		s := w.put(fmt.Sprint("at-once-", test.at, test.timeout), test.at)
		got, err := w.WaitSandbox(t.Context(), s.Name, []skerry.Status{test.until}, test.timeout)
		if err != nil || got.Status != test.at {
			t.Errorf("wait for %s at %s: %s, %v", test.until, test.at, got.Status, err)
		}
	}
	_, err = w.WaitSandbox(t.Context(), "none", []skerry.Status{"running"}, time.Minute)
	wantCode(t, "wait for an unknown sandbox", err, skerry.CodeNotFound)

	s = w.put("ends", skerry.StatusBooting)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = w.WaitSandbox(ctx, s.Name, []skerry.Status{"running"}, time.Minute); err == nil {
		t.Error("wait with an ended context succeeded")
	}
	w.Close()
	_, err = w.WaitSandbox(t.Context(), s.Name, []skerry.Status{"running"}, time.Minute)
	wantCode(t, "wait at Close", err, skerry.CodeUnavailable)
	if len(w.Control.sandboxes.waiters) != 0 {
		t.Errorf("%d waiters are left", len(w.Control.sandboxes.waiters))
	}
}

func (w *world) waitForWaiters(id skerry.SandboxID, n int) {
	for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		w.Control.sandboxes.mu.Lock()
		got := len(w.Control.sandboxes.waiters[id])
		w.Control.sandboxes.mu.Unlock()
		w.clock.mu.Lock()
		timers := len(w.clock.timers)
		w.clock.mu.Unlock()
		if got == n && timers > 0 {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%d waiters, want %d", got, n)
		}
	}
}

func TestAPIKeys(t *testing.T) {
	w := newWorld(t)
	token, err := w.FirstAPIKey(t.Context())
	must(t, err)
	if again, err := w.FirstAPIKey(t.Context()); err != nil || again != "" {
		t.Errorf("second start: token %q, %v", again, err)
	}
	second, err := w.CreateAPIKey(t.Context(), "ci")
	must(t, err)
	first, err := w.Authenticate(t.Context(), token)
	must(t, err)
	other, err := w.Authenticate(t.Context(), second)
	must(t, err)
	if first == other || !strings.HasPrefix(string(first), "key_") {
		t.Errorf("keys %s and %s", first, other)
	}
	for _, bad := range []string{"", token[:len(token)-1], token + "a", strings.ToUpper(token), "skerry_", string(first)} {
		_, err := w.Authenticate(t.Context(), bad)
		wantCode(t, fmt.Sprintf("token %q", bad), err, skerry.CodeUnauthorized)
	}
}
