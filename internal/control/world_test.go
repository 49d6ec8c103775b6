package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
	"skerry.dev/skerry/internal/store/sqlite"
)

// limit is how long a test waits for what must come.
const limit = 30 * time.Second

// fakeClock moves only when it is told to.
type fakeClock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*fakeTimer]struct{}
}

type fakeTimer struct {
	at time.Time
	c  chan time.Time
}

func newFakeClock() *fakeClock {
	return &fakeClock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), timers: map[*fakeTimer]struct{}{}}
}

func (f *fakeClock) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *fakeClock) After(d time.Duration) (<-chan time.Time, func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	timer := &fakeTimer{at: f.now.Add(d), c: make(chan time.Time, 1)}
	if d <= 0 {
		timer.c <- f.now
	} else {
		f.timers[timer] = struct{}{}
	}
	return timer.c, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.timers, timer)
	}
}

func (f *fakeClock) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
	for timer := range f.timers {
		if !timer.at.After(f.now) {
			timer.c <- f.now
			delete(f.timers, timer)
		}
	}
}

// world is a control plane on a real database and a real message server.
type world struct {
	*Control
	t     testing.TB
	dir   string
	clock *fakeClock
	db    store.Store
	bus   *bus.Bus
}

const (
	runnerA = skerry.RunnerID("run_a")
	runnerB = skerry.RunnerID("run_b")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newWorld has a ready default image "debian" on runner run_a, which is online
// but does nothing. Nothing is running until run is called.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), clock: newFakeClock()}
	w.open()
	w.report(runnerA, 1)
	i, err := w.PullImage(t.Context(), skerry.PullRequest{Reference: "debian", Default: true})
	must(t, err)
	w.ready(i.ID)
	return w
}

func (w *world) open() {
	w.t.Helper()
	var err error
	w.db, err = sqlite.Open(context.Background(), filepath.Join(w.dir, "state.db"))
	must(w.t, err)
	db := w.db
	w.t.Cleanup(func() { db.Close() })
	w.Control = New(Config{Store: w.db, Logger: slog.New(slog.DiscardHandler), Clock: w.clock})
}

// run connects the control plane to a message server and starts it; stop ends
// both, so that start can be called again.
func (w *world) run() (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var err error
	w.bus, err = bus.Open(ctx, bus.Config{Dir: filepath.Join(w.dir, "bus"), Logger: slog.New(slog.DiscardHandler)})
	must(w.t, err)
	c := New(Config{Store: w.db, Bus: w.bus, Logger: slog.New(slog.DiscardHandler), Clock: w.clock})
	w.Control = c
	done := make(chan error, 1)
	go func() { done <- c.Run(context.Background()) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			c.Close()
			select {
			case err := <-done:
				if err != nil {
					w.t.Errorf("Run: %v", err)
				}
			case <-time.After(limit):
				w.t.Error("Run does not end")
			}
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			must(w.t, w.bus.Close(ctx))
		})
	}
	w.t.Cleanup(stop)
	return stop
}

// report has a runner say, without the message server, that it started, with
// these machines and all images.
func (w *world) report(id skerry.RunnerID, epoch int64, machines ...bus.MachineReport) {
	w.t.Helper()
	r := newReport(id, epoch, machines...)
	images, err := w.ListImages(w.t.Context())
	must(w.t, err)
	for _, i := range images {
		r.Images = append(r.Images, bus.ImageReport{ImageID: i.ID, Status: i.Status})
	}
	must(w.t, w.Control.report(w.t.Context(), r))
}

func newReport(id skerry.RunnerID, epoch int64, machines ...bus.MachineReport) bus.RunnerReport {
	return bus.RunnerReport{Heartbeat: bus.Heartbeat{Runner: skerry.Runner{ID: id, Arch: "amd64"}, Region: DefaultRegion, Epoch: epoch}, Machines: machines}
}

// ready has the runner report an image as ready.
func (w *world) ready(id skerry.ImageID) {
	w.t.Helper()
	must(w.t, w.event(w.t.Context(), bus.Event{Kind: bus.EventImage, RunnerID: runnerA,
		Image: &bus.ImageReport{ImageID: id, Status: skerry.ImageReady, Digest: "sha256:1", Config: skerry.ImageConfig{User: "app:app"}}}))
}

func (w *world) create(name string) skerry.Sandbox {
	w.t.Helper()
	s, _, err := w.CreateSandbox(w.t.Context(), request(name))
	must(w.t, err)
	return s
}

func request(name string) skerry.SandboxRequest {
	return skerry.SandboxRequest{Name: name, NamedByCaller: name != "", CreateTimeout: time.Hour, Resources: skerry.Resources{CPU: 1}}
}

// claimAs claims a sandbox for run_a and returns the machine.
func (w *world) claimAs(id skerry.SandboxID, epoch int64) skerry.MachineID {
	w.t.Helper()
	m := skerry.NewMachineID()
	reply, err := w.claim(w.t.Context(), bus.ClaimRequest{SandboxID: id, RunnerID: runnerA, MachineID: m, Epoch: epoch})
	must(w.t, err)
	if !reply.OK {
		w.t.Fatalf("claim refused: %s", reply.Reason)
	}
	return m
}

// put writes an ephemeral sandbox in the given status, with a machine on run_a
// if it had got so far, and returns it.
func (w *world) put(name string, status skerry.Status) store.Sandbox {
	w.t.Helper()
	return w.putChanged(name, status, func(*store.Sandbox) {})
}

// putPersistent is put for a persistent sandbox.
func (w *world) putPersistent(name string, status skerry.Status) store.Sandbox {
	w.t.Helper()
	return w.putChanged(name, status, func(s *store.Sandbox) { s.Persistent = true })
}

// putChanged is put for a row that is changed before it is written.
func (w *world) putChanged(name string, status skerry.Status, change func(*store.Sandbox)) store.Sandbox {
	w.t.Helper()
	now := w.Control.now()
	s := store.Sandbox{Sandbox: skerry.Sandbox{ID: skerry.NewSandboxID(), Name: name, Status: status, State: status.State(), ImageID: "img_x",
		CreatedAt: now, UpdatedAt: now, CreateDeadline: now.Add(time.Hour)}, RunnerEpoch: 1, Version: 1}
	s.Lifecycle.LastActivityAt = &now
	switch status {
	case skerry.StatusQueued, skerry.StatusPending:
	case skerry.StatusAssigned, skerry.StatusBooting, skerry.StatusFailed:
		s.Runner, s.Machine = runnerA, skerry.NewMachineID()
	default:
		s.Runner, s.Machine, s.StartedAt = runnerA, skerry.NewMachineID(), &now
	}
	if status == skerry.StatusDeleted {
		s.DeletedAt = now
	}
	change(&s)
	schedule(&s)
	must(w.t, w.db.Update(w.t.Context(), func(tx store.Tx) error { return tx.InsertSandbox(w.t.Context(), s) }))
	return s
}

func (w *world) row(id skerry.SandboxID) (s store.Sandbox) {
	w.t.Helper()
	must(w.t, w.db.View(w.t.Context(), func(r store.Reader) (err error) {
		s, err = r.Sandbox(w.t.Context(), id)
		return err
	}))
	return s
}

func (w *world) wantStatus(id skerry.SandboxID, want skerry.Status) {
	w.t.Helper()
	if s := w.row(id); s.Status != want {
		w.t.Errorf("sandbox %s is %s (%s), want %s", s.Name, s.Status, s.Reason, want)
	}
}

// waitFor waits until the sandbox has the status.
func (w *world) waitFor(id skerry.SandboxID, want skerry.Status) skerry.Sandbox {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	s, err := w.WaitSandbox(ctx, string(id), []skerry.Status{want}, time.Hour)
	if err != nil || s.Status != want {
		w.t.Fatalf("sandbox %s is %q (%s), %v, want %s", id, s.Status, s.Reason, err, want)
	}
	return s
}

// takeOutbox returns the commands in the outbox and empties it.
func (w *world) takeOutbox() (commands []string) {
	w.t.Helper()
	ctx := w.t.Context()
	must(w.t, w.db.Update(ctx, func(tx store.Tx) error {
		entries, err := tx.Outbox(ctx, 1000)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.SandboxID == "" {
				commands = append(commands, fmt.Sprintf("%s %s", e.Runner, e.Payload))
			} else {
				commands = append(commands, "create "+string(e.SandboxID))
			}
			if err := tx.DeleteOutbox(ctx, e.ID); err != nil {
				return err
			}
		}
		return nil
	}))
	return commands
}

// takeCommands returns the commands for a runner in the outbox, without the
// creates, and empties it.
func (w *world) takeCommands() (commands []bus.Command) {
	w.t.Helper()
	for _, text := range w.takeOutbox() {
		_, payload, _ := strings.Cut(text, " ")
		var c bus.Command
		if json.Unmarshal([]byte(payload), &c) == nil {
			commands = append(commands, c)
		}
	}
	return commands
}

// oneCommand returns the one command in the outbox, which must be of the kind.
func (w *world) oneCommand(kind string) bus.Command {
	w.t.Helper()
	commands := w.takeCommands()
	if len(commands) != 1 || commands[0].Kind != kind {
		w.t.Fatalf("commands %+v, want one %s", commands, kind)
	}
	return commands[0]
}

// say has run_a say something of the machine that a sandbox has now.
func (w *world) say(id skerry.SandboxID, e bus.Event) {
	w.t.Helper()
	s := w.row(id)
	e.RunnerID, e.SandboxID, e.MachineID = runnerA, s.ID, s.Machine
	if e.Kind == "" {
		e.Kind = bus.EventSandbox
	}
	must(w.t, w.event(w.t.Context(), e))
}

func removeCommand(s store.Sandbox) string {
	return strings.Replace(deleteCommand(s), bus.CommandDeleteSandbox, bus.CommandRemoveMachine, 1)
}

func deleteCommand(s store.Sandbox) string {
	return fmt.Sprintf(`run_a {"kind":"sandbox.delete","sandbox_id":"%s","machine_id":"%s"}`, s.ID, s.Machine)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, what string, err error, want skerry.Code) {
	t.Helper()
	var e *skerry.Error
	if !errors.As(err, &e) || e.Code != want {
		t.Errorf("%s: error %v, want code %s", what, err, want)
	}
}
