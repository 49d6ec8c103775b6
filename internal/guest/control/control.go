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
	Tune(memMiB int64) error
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
	Running() int
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

	background sync.WaitGroup // what Close waits for
	closing    chan struct{}  // closed by Close
}

type state string

const (
	anonymous state = "anonymous"
	prepared  state = "prepared"
	activated state = "activated"
	failed    state = "failed" // an activation went wrong; only Hello answers
	stopped   state = "shut down"
)

// New returns an anonymous Agent. hello is the constant part of its
// introduction.
func New(system System, toolbox Toolbox, hello guestapi.Hello, log *slog.Logger) *Agent {
	warmJSON()
	return &Agent{system: system, toolbox: toolbox, hello: hello, log: log,
		http: newStreamServer(toolbox), state: anonymous, closing: make(chan struct{})}
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
		err = guestapi.ServeControl(ctx, stream, a.control)
	case guestapi.StreamToolbox:
		a.http.serve(stream)
	case guestapi.StreamRehearsal:
		a.serveRehearsal(stream)
	case guestapi.StreamDial:
		err = guestapi.ServeDial(ctx, stream)
	default:
		stream.Close()
		err = fmt.Errorf("unknown kind %q", kind)
	}
	if err != nil {
		a.log.Warn("stream", "kind", string(kind), "err", err)
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
	case guestapi.PathShutdown:
		return with(body, func(in guestapi.Shutdown) (any, error) { return nil, a.shutdown(ctx, in) })
	case guestapi.PathStats:
		stats, err := a.system.Stats()
		stats.Processes = a.toolbox.Running()
		return stats, err
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
	a.background.Go(func() { a.setMAC(in.MAC) })
	return guestapi.Activated{User: user, HomeDir: home, StepMicros: micros}, nil
}

// macDelay keeps the change of the hardware address out of the way of the first
// command: the kernel tells all who listen, and the driver waits for the device.
// Nobody outside the sandbox sees the address.
const macDelay = time.Second

func (a *Agent) setMAC(mac string) {
	select {
	case <-time.After(macDelay):
	case <-a.closing:
		return
	}
	if err := a.system.SetMAC(mac); err != nil {
		a.log.Error("set hardware address", "err", err)
	}
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
	return a.system.Tune(in.MemoryMiB)
}

func (a *Agent) shutdown(ctx context.Context, in guestapi.Shutdown) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state == stopped {
		return nil
	}
	a.state = stopped
	grace := time.Duration(in.GraceMillis) * time.Millisecond
	if err := a.toolbox.Close(ctx, grace); err != nil {
		return fmt.Errorf("close toolbox: %w", err)
	}
	return a.system.Shutdown(ctx, grace)
}

// Close ends the HTTP server and waits for its goroutines.
func (a *Agent) Close() error {
	close(a.closing)
	a.background.Wait()
	return a.http.close()
}
