package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
)

// startRunner starts a fake runner on the world's bus, which has the images
// that control knows.
func (w *world) startRunner(r *fakeRunner) (stop func()) {
	w.t.Helper()
	r.bus, r.clock = w.bus, w.clock
	r.dir = filepath.Join(w.dir, "host")
	must(w.t, r.init())
	images, err := w.ListImages(w.t.Context())
	must(w.t, err)
	for _, i := range images {
		must(w.t, os.WriteFile(filepath.Join(r.dir, "images", string(i.ID)), nil, 0o600))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				w.t.Errorf("runner: %v", err)
			}
		})
	}
	w.t.Cleanup(stop)
	return stop
}

func (w *world) wantMachines(r *fakeRunner, want int) {
	w.t.Helper()
	machines, err := r.machines()
	must(w.t, err)
	if len(machines) != want {
		w.t.Errorf("machines %v, want %d", machines, want)
	}
}

// TestLife runs many sandboxes at once through their life, with a runner that
// says everything once, and one that says it twice.
func TestLife(t *testing.T) {
	for _, twice := range []bool{false, true} {
		t.Run(fmt.Sprintf("twice=%v", twice), func(t *testing.T) {
			w := newWorld(t)
			w.run()
			r := &fakeRunner{epoch: 2, twice: twice}
			w.startRunner(r)
			const count = 20
			var ids []skerry.SandboxID
			for i := range count {
				ids = append(ids, w.create(fmt.Sprint("s", i)).ID)
			}
			for _, id := range ids {
				if s := w.waitFor(id, skerry.StatusRunning); s.StartedAt == nil || s.Runner != runnerA || s.Machine == "" {
					t.Errorf("running %+v", s)
				}
			}
			w.wantMachines(r, count)
			for _, id := range ids {
				_, err := w.DeleteSandbox(t.Context(), string(id))
				must(t, err)
			}
			for _, id := range ids {
				w.waitFor(id, skerry.StatusDeleted)
			}
			w.wantMachines(r, 0)
			page, err := w.ListSandboxes(t.Context(), skerry.SandboxFilter{})
			if err != nil || len(page.Items) != 0 {
				t.Errorf("%d sandboxes left, %v", len(page.Items), err)
			}
		})
	}
}

// TestOperations runs persistent sandboxes through all operations at once, over
// the bus, with a runner that says everything once, and one that says it twice.
func TestOperations(t *testing.T) {
	for _, twice := range []bool{false, true} {
		t.Run(fmt.Sprintf("twice=%v", twice), func(t *testing.T) {
			w := newWorld(t)
			w.run()
			r := &fakeRunner{epoch: 2, twice: twice}
			w.startRunner(r)
			var group sync.WaitGroup
			for i := range 8 {
				group.Go(func() { w.wholeLife(t, fmt.Sprint("s", i)) })
			}
			group.Wait()
			w.wantMachines(r, 0)
			for _, dir := range []string{"disks", "snapshots"} {
				if left := r.list(dir); len(left) > 0 {
					t.Errorf("left on the host: %s %v", dir, left)
				}
			}
		})
	}
}

// wholeLife does everything to a sandbox, one after the other.
func (w *world) wholeLife(t *testing.T, name string) {
	ctx := t.Context()
	step := func(what string, err error) bool {
		if err != nil {
			t.Errorf("%s: %s: %v", name, what, err)
		}
		return err == nil
	}
	reach := func(id skerry.SandboxID, want skerry.Status) bool {
		s, err := w.WaitSandbox(ctx, string(id), []skerry.Status{want}, time.Hour)
		if err == nil && s.Status != want {
			err = fmt.Errorf("is %s (%s)", s.Status, s.Reason)
		}
		return step("wait for "+string(want), err)
	}
	req := request(name)
	req.Persistent = true
	s, _, err := w.CreateSandbox(ctx, req)
	ok := step("create", err) && reach(s.ID, skerry.StatusRunning) &&
		step("stop", w.do(ctx, skerry.Stop, name)) && reach(s.ID, skerry.StatusStopped) &&
		step("start", w.do(ctx, skerry.Start, name)) && reach(s.ID, skerry.StatusRunning) &&
		step("pause", w.do(ctx, skerry.Pause, name)) && reach(s.ID, skerry.StatusPaused) &&
		step("resume", w.do(ctx, skerry.Resume, name)) && reach(s.ID, skerry.StatusRunning)
	if !ok {
		return
	}
	snapshot, err := w.CreateSnapshot(ctx, name, "snapshot-"+name)
	if !step("snapshot", err) {
		return
	}
	if snapshot, err = w.WaitSnapshot(ctx, snapshot.Name, time.Hour); !step("wait", err) || snapshot.Status != skerry.ImageReady {
		t.Errorf("snapshot is %s: %s", snapshot.Status, snapshot.Error)
	}
	restored, _, err := w.RestoreSnapshot(ctx, snapshot.Name, skerry.RestoreRequest{})
	if !step("restore", err) || !reach(restored.ID, skerry.StatusRunning) {
		return
	}
	copies, err := w.ForkSandbox(ctx, string(restored.ID), skerry.ForkRequest{Count: 2})
	if !step("fork", err) {
		return
	}
	all := []skerry.SandboxID{s.ID, restored.ID}
	for _, c := range copies {
		reach(c.ID, skerry.StatusRunning)
		all = append(all, c.ID)
	}
	for _, id := range all {
		step("delete", w.do(ctx, skerry.Delete, string(id)))
		reach(id, skerry.StatusDeleted)
	}
	step("delete snapshot", w.DeleteSnapshot(ctx, snapshot.Name))
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(w.dir, "host", "snapshots", string(snapshot.ID))); err != nil {
			return
		}
	}
	t.Errorf("snapshot of %s is not removed", name)
}

// TestFaultyRunner: what a runner does not do, or too late, never leaves a
// sandbox without an end.
func TestFaultyRunner(t *testing.T) {
	never := func(silent ...string) func(string) bool {
		return func(what string) bool { return slices.Contains(silent, what) }
	}
	tests := []struct {
		name    string
		skip    func(string) bool
		reached skerry.Status // how far a create comes
	}{
		{"never claims", never("claim"), skerry.StatusPending},
		{"never boots", never("booting", "running"), skerry.StatusAssigned},
		{"never runs", never("running"), skerry.StatusBooting},
		{"never deletes", never("delete"), skerry.StatusRunning},
		{"never tells that it deleted", never("deleted"), skerry.StatusRunning},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.run()
			w.startRunner(&fakeRunner{epoch: 2, skip: test.skip})
			s := w.create("stuck")
			w.waitFor(s.ID, test.reached)
			if test.reached != skerry.StatusRunning {
				w.clock.advance(time.Hour) // the create deadline
				w.waitForAny(s.ID, skerry.StatusDeleting, skerry.StatusDeleted)
			}
			for range 2 {
				_, err := w.DeleteSandbox(t.Context(), "stuck")
				must(t, err)
			}
			if s := w.row(s.ID); s.Status != skerry.StatusDeleted {
				// The fake runner sends no heartbeats. Its name is free again
				// when it is given up at the latest.
				w.waitForAny(s.ID, skerry.StatusDeleting, skerry.StatusDeleted)
				w.advanceUntil(s.ID, skerry.StatusDeleted)
			}
			w.report(runnerA, 3)
			if s, created, err := w.CreateSandbox(t.Context(), request("stuck")); err != nil || !created {
				t.Errorf("create with the name given free: %s, %v, %v", s.ID, created, err)
			}
		})
	}
}

func (w *world) waitForAny(id skerry.SandboxID, until ...skerry.Status) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	s, err := w.WaitSandbox(ctx, string(id), until, time.Hour)
	if err != nil || !slices.Contains(until, s.Status) {
		w.t.Fatalf("sandbox is %s, %v, want %v", s.Status, err, until)
	}
}

// advanceUntil lets time pass, step by step, until the status is reached.
func (w *world) advanceUntil(id skerry.SandboxID, want skerry.Status) {
	w.t.Helper()
	for deadline := time.Now().Add(limit); w.row(id).Status != want; {
		if time.Now().After(deadline) {
			w.t.Fatalf("sandbox %s does not become %s", id, want)
		}
		w.clock.advance(maxSleep)
		<-time.After(5 * time.Millisecond) // lets the timers have their turn
	}
}

// TestLateRunner: a runner that is not there delays a create, and its delete
// ends it.
func TestLateRunner(t *testing.T) {
	w := newWorld(t)
	w.run()
	waits, ends := w.create("waits"), w.create("ends")
	w.waitFor(waits.ID, skerry.StatusPending)
	w.waitFor(ends.ID, skerry.StatusPending)
	s, err := w.DeleteSandbox(t.Context(), "ends")
	if err != nil || s.Status != skerry.StatusDeleted {
		t.Errorf("delete before it is placed: %s, %v", s.Status, err)
	}
	r := &fakeRunner{epoch: 2}
	w.startRunner(r)
	w.waitFor(waits.ID, skerry.StatusRunning)
	w.wantMachines(r, 1)
	w.wantStatus(ends.ID, skerry.StatusDeleted)
}

// TestDeleteRaces deletes sandboxes at whatever point of their create.
func TestDeleteRaces(t *testing.T) {
	w := newWorld(t)
	w.run()
	r := &fakeRunner{epoch: 2, twice: true}
	w.startRunner(r)
	var group sync.WaitGroup
	for i := range 30 {
		group.Go(func() {
			s, _, err := w.CreateSandbox(t.Context(), request(fmt.Sprint("s", i)))
			if err != nil {
				t.Error(err)
				return
			}
			until := creation[i%len(creation)]
			if _, err := w.WaitSandbox(t.Context(), string(s.ID), []skerry.Status{until, skerry.StatusRunning}, time.Hour); err != nil {
				t.Error(err)
			}
			for range 2 {
				if _, err := w.DeleteSandbox(t.Context(), string(s.ID)); err != nil {
					t.Error(err)
				}
			}
			if s, err := w.WaitSandbox(t.Context(), string(s.ID), []skerry.Status{skerry.StatusDeleted}, time.Hour); err != nil || s.Status != skerry.StatusDeleted {
				t.Errorf("sandbox is %s, %v", s.Status, err)
			}
		})
	}
	group.Wait()
	// A machine made after the delete was recorded is removed by its command.
	for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		machines, err := r.machines()
		must(t, err)
		if len(machines) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("machines are left: %v", machines)
		}
	}
}

// TestRestart stops control plane and runner with work in every phase, loses
// the message store, and starts them again.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	stop := w.run()
	var silent atomic.Bool
	stopRunner := w.startRunner(&fakeRunner{epoch: 2, skip: func(what string) bool {
		return silent.Load() && (what == "delete" || what == "claim")
	}})
	running := w.create("running")
	deleting := w.create("deleting")
	machine := w.waitFor(running.ID, skerry.StatusRunning).Machine
	w.waitFor(deleting.ID, skerry.StatusRunning)
	silent.Store(true)
	_, err := w.DeleteSandbox(t.Context(), "deleting")
	must(t, err)
	pending := w.create("pending")
	w.waitFor(pending.ID, skerry.StatusPending)
	stopRunner()
	stop()
	queued := w.create("queued") // nothing runs that could publish it
	must(t, os.RemoveAll(filepath.Join(w.dir, "bus")))

	w.run()
	r := &fakeRunner{epoch: 3}
	w.startRunner(r)
	for _, id := range []skerry.SandboxID{running.ID, pending.ID, queued.ID} {
		w.waitFor(id, skerry.StatusRunning)
	}
	w.waitFor(deleting.ID, skerry.StatusDeleted)
	w.wantMachines(r, 3)
	if got := w.row(running.ID); got.Machine != machine {
		t.Errorf("the running sandbox has machine %s, want %s", got.Machine, machine)
	}
}

// TestBusRefuses: what can never be published fails its sandbox, what cannot
// now is tried again.
func TestBusRefuses(t *testing.T) {
	w := newWorld(t)
	var attempts atomic.Int32
	c := New(Config{Store: w.db, Logger: w.Control.logger, Clock: w.clock, Bus: refusingBus{&attempts}})
	w.Control = c
	must(t, c.recover(t.Context()))
	w.takeOutbox()
	s := w.create("too-large")
	for range 2 {
		_, err := c.flushOutbox(t.Context())
		must(t, err)
	}
	if got := w.row(s.ID); got.Status != skerry.StatusFailed || got.Reason == "" {
		t.Errorf("sandbox is %s (%s)", got.Status, got.Reason)
	}
	s = w.create("away")
	if _, err := c.flushOutbox(t.Context()); err == nil {
		t.Error("no error")
	}
	w.wantStatus(s.ID, skerry.StatusQueued)
	_, err := c.flushOutbox(t.Context())
	must(t, err)
	w.wantStatus(s.ID, skerry.StatusPending)
}

type refusingBus struct{ attempts *atomic.Int32 }

func (b refusingBus) PublishJob(_ context.Context, j bus.CreateJob) error {
	switch {
	case j.Name == "too-large":
		return fmt.Errorf("publish: %w", bus.ErrTooLarge)
	case b.attempts.Add(1) == 1:
		return errors.New("bus is away")
	}
	return nil
}
func (refusingBus) PublishCommand(context.Context, skerry.RunnerID, string, bus.Command) error {
	return nil
}
func (refusingBus) ServeClaims(context.Context, func(context.Context, bus.ClaimRequest) (bus.ClaimReply, error)) error {
	return nil
}
func (refusingBus) ConsumeEvents(context.Context, func(context.Context, bus.Event) error) error {
	return nil
}
func (refusingBus) ConsumeHeartbeats(context.Context, func(context.Context, bus.Heartbeat) error) error {
	return nil
}

// BenchmarkCreate measures from the call of CreateSandbox until its waiter is
// told that it runs, with a runner that takes no time: all that is SQL and bus.
func BenchmarkCreate(b *testing.B) {
	w := newWorld(b)
	w.run()
	w.startRunner(&fakeRunner{epoch: 2})
	w.waitFor(w.create("warm-up").ID, skerry.StatusRunning)
	var times []time.Duration
	for b.Loop() {
		start := time.Now()
		s, _, err := w.CreateSandbox(b.Context(), request(""))
		must(b, err)
		w.waitFor(s.ID, skerry.StatusRunning)
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(times[len(times)*95/100].Microseconds())/1000, "p95-ms")
}
