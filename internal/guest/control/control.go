// Package control answers the host's messages to the guest agent.
package control

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
)

// System is the machine under control (package pid1).
type System interface {
	Prepare(ctx context.Context, p guestapi.Preparation) error
	Activate(ctx context.Context, a guestapi.Activation) (stepMicros map[string]int64, err error)
	SetMAC(mac string) error
	Quiesce()
	Tune(t guestapi.Tuning) error
	Pressure(ctx context.Context, limit time.Duration) (guestapi.Pressure, error)
	// FreezeProcesses stops the user's processes, ThawProcesses lets them go
	// on; both may be repeated. After an error of the first some may run.
	FreezeProcesses(ctx context.Context) error
	ThawProcesses() error
	// FreezeDisk holds back writes to the disk for at most limit.
	FreezeDisk(limit time.Duration) error
	ThawDisk() error
	Renew(r guestapi.Renewal) error
	Shutdown(ctx context.Context, grace time.Duration) error
	Stats() (guestapi.Stats, error)
}

// Toolbox is what runs the sandbox's processes (package toolbox).
type Toolbox interface {
	http.Handler
	// Activate resolves the user; no request is served before.
	Activate(a guestapi.Activation) (user, home string, err error)
	// Stage returns another one that is not activated, for a rehearsal.
	Stage() Toolbox
	// Activity is how many processes run, and when the last one ended.
	Activity() (running int, lastEnd time.Time)
	// SetEnvironment replaces the sandbox's variables for new processes.
	SetEnvironment(env map[string]string) error
	Close(ctx context.Context, grace time.Duration) error
}

// Agent is the state of the guest agent: anonymous, then activated or failed.
type Agent struct {
	system  System
	toolbox Toolbox
	hello   guestapi.Hello
	log     *slog.Logger
	http    *streamServer

	mu    sync.Mutex // held during an activation or shutdown
	state state      // guarded by mu
	stage *stage     // of a rehearsal, or nil; guarded by mu
	// broken is set when a renewal went wrong: streams of clients are closed.
	broken atomic.Bool
	mac    atomic.Pointer[string] // the interface's address, set or about to be

	streams activity // of clients

	background sync.WaitGroup // what Close waits for
	closing    chan struct{}  // closed by Close
}

type state string

const (
	anonymous state = "anonymous"
	prepared  state = "prepared"
	activated state = "activated"
	failed    state = "failed" // an activation or renewal went wrong; nothing of a user runs
	stopped   state = "shut down"
)

// New returns an anonymous Agent. hello is the constant part of its
// introduction.
func New(system System, toolbox Toolbox, hello guestapi.Hello, log *slog.Logger) *Agent {
	warmJSON()
	a := &Agent{system: system, toolbox: toolbox, hello: hello, log: log, state: anonymous, closing: make(chan struct{})}
	a.http = newStreamServer(a.streams.count(toolbox))
	return a
}

// warmJSON makes encoding/json know the types of an activation before the
// machine is captured, so that no clone works them out again.
func warmJSON() {
	body, err := json.Marshal(guestapi.Activation{Entropy: []byte{0}, ImageEnv: []string{""}, Env: map[string]string{"": ""}})
	if err == nil {
		err = json.Unmarshal(body, new(guestapi.Activation))
	}
	if err == nil {
		_, err = json.Marshal(guestapi.Activated{StepMicros: map[string]int64{"": 0}})
	}
	if err != nil {
		panic(err) // the types cannot be marshalled: a fault of the build
	}
}

// Handle is a guestapi.StreamHandler.
func (a *Agent) Handle(ctx context.Context, kind byte, stream net.Conn) {
	var err error
	switch kind {
	case guestapi.StreamControl:
		// What was begun is finished, whether or not the host is still there.
		err = guestapi.ServeControl(context.WithoutCancel(ctx), stream, a.control)
	case guestapi.StreamToolbox, guestapi.StreamDial:
		err = a.serveClient(ctx, kind, stream)
	case guestapi.StreamRehearsal:
		a.serveRehearsal(stream)
	default:
		stream.Close()
		err = fmt.Errorf("unknown kind %q", kind)
	}
	if err != nil {
		a.log.Warn("stream", "kind", string(kind), "err", err)
	}
}

func (a *Agent) serveClient(ctx context.Context, kind byte, stream net.Conn) error {
	switch {
	case a.broken.Load():
		return stream.Close()
	case kind == guestapi.StreamDial:
		a.streams.begin()
		defer a.streams.end()
		return guestapi.ServeDial(ctx, stream)
	default:
		a.http.serve(stream)
		return nil
	}
}
func (a *Agent) control(ctx context.Context, path string, body json.RawMessage) (any, error) {
	switch path {
	case guestapi.PathHello:
		return a.sayHello(), nil
	case guestapi.PathPrepare:
		return with(body, func(in guestapi.Preparation) (any, error) { return nil, a.prepare(ctx, in) })
	case guestapi.PathRehearse:
		return with(body, func(in guestapi.Activation) (any, error) { return a.rehearse(ctx, in) })
	case guestapi.PathActivate:
		return with(body, func(in guestapi.Activation) (any, error) { return a.activate(ctx, in) })
	case guestapi.PathQuiesce:
		return nil, a.quiesce(ctx)
	case guestapi.PathTune:
		return with(body, func(in guestapi.Tuning) (any, error) { return nil, a.tune(in) })
	case guestapi.PathPressure:
		return with(body, func(in guestapi.PressureWait) (any, error) {
			return a.system.Pressure(ctx, time.Duration(in.Millis)*time.Millisecond)
		})
	case guestapi.PathFreeze:
		return with(body, func(in guestapi.Freeze) (any, error) { return nil, a.freeze(ctx, in) })
	case guestapi.PathThaw:
		return nil, a.thaw()
	case guestapi.PathRenew:
		return with(body, func(in guestapi.Renewal) (any, error) { return nil, a.renew(ctx, in) })
	case guestapi.PathShutdown:
		return with(body, func(in guestapi.Shutdown) (any, error) { return nil, a.shutdown(ctx, in) })
	case guestapi.PathStats:
		return a.stats()
	}
	return nil, skerry.Errorf(skerry.CodeNotFound, "no control message %q", path)
}

func with[T any](body json.RawMessage, run func(T) (any, error)) (any, error) {
	var in T
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, skerry.Errorf(skerry.CodeInvalid, "body: %w", err)
	}
	return run(in)
}

func (a *Agent) sayHello() guestapi.Hello {
	a.mu.Lock()
	defer a.mu.Unlock()
	hello := a.hello
	hello.Activated = a.state == activated
	hello.Time = time.Now()
	return hello
}

func (a *Agent) prepare(ctx context.Context, in guestapi.Preparation) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != anonymous {
		return skerry.Errorf(skerry.CodeConflict, "machine is %s", a.state)
	}
	a.state = failed // until everything worked
	if err := a.system.Prepare(ctx, in); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	a.state = prepared
	return nil
}

func (a *Agent) activate(ctx context.Context, in guestapi.Activation) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != anonymous && a.state != prepared {
		return nil, skerry.Errorf(skerry.CodeConflict, "machine is %s", a.state)
	}
	a.state = failed // until everything worked
	micros, err := a.system.Activate(ctx, in)
	if err != nil {
		return nil, fmt.Errorf("activate: %w", err)
	}
	user, home, err := a.toolbox.Activate(in)
	if err != nil {
		return nil, fmt.Errorf("activate: %w", err)
	}
	a.state = activated
	a.streams.touch()
	a.setMACLater(in.MAC)
	return guestapi.Activated{User: user, HomeDir: home, StepMicros: micros}, nil
}

// macDelay keeps the change of the hardware address out of the way of the first
// command: the kernel tells all who listen, and the driver waits for the device.
// Nobody outside the sandbox sees the address.
const macDelay = time.Second

func (a *Agent) setMACLater(mac string) {
	a.mac.Store(&mac)
	a.background.Go(func() {
		select {
		case <-time.After(macDelay):
		case <-a.closing:
			return
		}
		// Not mac: a renewal may have come since.
		if err := a.system.SetMAC(*a.mac.Load()); err != nil {
			a.log.Error("set hardware address", "err", err)
		}
	})
}

func (a *Agent) requireActivated() error {
	if a.state != activated {
		return skerry.Errorf(skerry.CodeConflict, "machine is %s", a.state)
	}
	return nil
}

func (a *Agent) tune(in guestapi.Tuning) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.requireActivated(); err != nil {
		return err
	}
	return a.system.Tune(in)
}

// Close ends the HTTP server and waits for its goroutines.
func (a *Agent) Close() error {
	close(a.closing)
	a.background.Wait()
	return a.http.close()
}
