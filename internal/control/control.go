// Package control is the control plane: what can be done with sandboxes, images
// and runners, one file per noun.
//
// Its state is in the store. Every decision is one transaction that reads a
// row, checks the change against the one table of transitions and writes row
// and outbox together; what must happen elsewhere follows from the outbox. So
// it can be killed at any moment: started again, it publishes what is in the
// outbox, and what a lost message store may have lost, and asks the runners what
// they have.
package control

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// Defaults of Config.
const (
	DefaultRegion = "earth"
	// DefaultRetention is how long a deleted sandbox stays listed.
	DefaultRetention = 24 * time.Hour
	// DefaultLostAfter is how long a runner can be silent before its
	// sandboxes are given up.
	DefaultLostAfter = 5 * time.Minute

	// DefaultEventRetention is how long an event can be read.
	DefaultEventRetention = 24 * time.Hour

	// offlineAfter is three missed heartbeats.
	offlineAfter = 3 * bus.HeartbeatInterval
)

// Bus is what the control plane needs of bus.Bus; see there.
type Bus interface {
	PublishJob(ctx context.Context, job bus.CreateJob) error
	PublishCommand(ctx context.Context, runner skerry.RunnerID, id string, c bus.Command) error
	ServeClaims(ctx context.Context, handler func(context.Context, bus.ClaimRequest) (bus.ClaimReply, error)) error
	ConsumeEvents(ctx context.Context, handler func(context.Context, bus.Event) error) error
	ConsumeHeartbeats(ctx context.Context, handler func(context.Context, bus.Heartbeat) error) error
}

// Clock is the time; the zero Config uses the system's.
type Clock interface {
	Now() time.Time
	// After returns a channel that receives when d has passed, and a
	// function that releases it before.
	After(d time.Duration) (c <-chan time.Time, stop func())
}

// Config is what a Control needs. Store, Bus and Logger must be set.
type Config struct {
	Store  store.Store
	Bus    Bus
	Logger *slog.Logger
	Clock  Clock

	Region    string        // of creates
	Arch      string        // of creates, "amd64" or "arm64"
	Retention time.Duration // see DefaultRetention
	LostAfter time.Duration // see DefaultLostAfter

	Policy         skerry.PolicyDefaults // of creates, see there
	EventRetention time.Duration         // see DefaultEventRetention
}

// Control is a control plane. Its methods can be called from several
// goroutines, before, during and after Run: what Run publishes waits in the
// outbox meanwhile.
type Control struct {
	store  store.Store
	bus    Bus
	logger *slog.Logger
	clock  Clock
	cfg    Config

	sandboxes *watch[skerry.SandboxID, skerry.Sandbox]
	images    *watch[skerry.ImageID, skerry.Image]
	snapshots *watch[skerry.SnapshotID, skerry.Snapshot]
	log       *broadcast // of additions to the event log
	activity  *activity
	runners   *presence
	outbox    chan struct{} // holds a token when the outbox may have entries
	timers    *alarm

	closeOnce sync.Once
	closed    chan struct{} // closed by Close
}

// New returns a control plane. It does no I/O.
func New(cfg Config) *Control {
	if cfg.Clock == nil {
		cfg.Clock = systemClock{}
	}
	if cfg.Region == "" {
		cfg.Region = DefaultRegion
	}
	if cfg.Arch == "" {
		cfg.Arch = "amd64"
	}
	if cfg.Retention == 0 {
		cfg.Retention = DefaultRetention
	}
	if cfg.EventRetention == 0 {
		cfg.EventRetention = DefaultEventRetention
	}
	if cfg.LostAfter == 0 {
		cfg.LostAfter = DefaultLostAfter
	}
	return &Control{
		store: cfg.Store, bus: cfg.Bus, logger: cfg.Logger.With("component", "control"), clock: cfg.Clock, cfg: cfg,
		sandboxes: newWatch[skerry.SandboxID, skerry.Sandbox](),
		images:    newWatch[skerry.ImageID, skerry.Image](),
		snapshots: newWatch[skerry.SnapshotID, skerry.Snapshot](),
		log:       newBroadcast(),
		activity:  &activity{seen: map[skerry.SandboxID]time.Time{}},
		runners:   newPresence(),
		outbox:    make(chan struct{}, 1),
		timers:    newAlarm(cfg.Clock),
		closed:    make(chan struct{}),
	}
}

// Run picks up what an earlier run left and works until ctx ends or Close is
// called, which is no error. It must be called once.
func (c *Control) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := c.recover(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("pick up earlier state: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { // ends the others at Close
		select {
		case <-c.closed:
		case <-ctx.Done():
		}
		cancel()
		return nil
	})
	group.Go(func() error { return c.runOutbox(ctx) })
	group.Go(func() error { return c.runTimers(ctx) })
	group.Go(func() error { return c.bus.ServeClaims(ctx, c.claim) })
	group.Go(func() error { return c.bus.ConsumeEvents(ctx, c.event) })
	group.Go(func() error { return c.bus.ConsumeHeartbeats(ctx, c.heartbeat) })
	return group.Wait()
}

// Close ends Run and all waits. Store and bus are left open.
func (c *Control) Close() {
	c.closeOnce.Do(func() { close(c.closed) })
}

// now is the time as the store keeps it.
func (c *Control) now() time.Time { return c.clock.Now().UTC().Truncate(time.Microsecond) }

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) After(d time.Duration) (<-chan time.Time, func()) {
	timer := time.NewTimer(d)
	return timer.C, func() { timer.Stop() }
}
