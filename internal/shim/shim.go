// Package shim is the process of one sandbox: it owns the hypervisor process,
// the user-mode network and the link to the guest agent. It outlives the
// runner that started it, which finds it again through the files of the
// machine's directory (see Spec and Status); a fault while it parses what the
// guest sends stays in this one sandbox.
package shim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
	"skerry.dev/skerry/internal/machine"
)

// Config is what Run needs besides the files in Dir.
type Config struct {
	Dir  string
	Spec Spec // as ReadSpec returned it
	// NewDriver makes the hypervisor driver the spec asks for.
	NewDriver func(DriverSpec) (machine.Driver, error)
	// NewNetwork starts the user-mode network on the host's end of the
	// machine's network link.
	NewNetwork func(NetworkSpec, *slog.Logger, *os.File) (Network, error)
	// Source is inherited from the runner; empty for a cold boot.
	Source Source
	// Listening gets one byte when the control socket accepts connections.
	Listening *os.File
	Logger    *slog.Logger
}

// Network is a running user-mode network.
type Network interface {
	// Run serves the guest until ctx ends or the link breaks.
	Run(ctx context.Context) error
}

// shim is the state of the process.
type shim struct {
	cfg    Config
	spec   Spec
	driver machine.Driver
	log    *slog.Logger

	mu      sync.Mutex
	status  Status        // guarded by mu
	changed chan struct{} // closed and replaced when status changes; guarded by mu
	machine machine.Machine
	// controlConn is the host's end of the agent's port, link what is spoken
	// on it; both are nil at first.
	controlConn net.Conn
	link        *guestapi.Link

	saving  sync.Mutex    // held during a save, a copy of the disk, a shutdown
	ended   ShutdownReply // of the shutdown; guarded by saving
	started chan struct{} // closed when the start is over, well or not
	stop    context.CancelFunc
}

// Run is the whole life of a shim. It returns when it was told to stop, and
// for a capture when the template is saved. A machine that fails does not end
// it: it stays to say why until it is told to stop.
func Run(ctx context.Context, cfg Config) error {
	s, err := newShim(cfg)
	if err != nil {
		return err
	}
	ctx, s.stop = context.WithCancel(ctx)
	defer s.stop()
	if err := s.writeStatus(); err != nil {
		return err
	}
	defer s.killMachine()
	if s.spec.Capture {
		return s.capture(ctx)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.stop()
	if err := s.serve(ctx, &wg); err != nil {
		return err
	}
	wg.Go(func() { s.start(ctx, &wg) })
	<-ctx.Done()
	return nil
}

func newShim(cfg Config) (*shim, error) {
	s := &shim{cfg: cfg, spec: cfg.Spec, log: cfg.Logger, changed: make(chan struct{}), started: make(chan struct{})}
	var err error
	if s.driver, err = cfg.NewDriver(s.spec.Driver); err != nil {
		return nil, err
	}
	ticks, err := StartTicks(os.Getpid())
	if err != nil {
		return nil, err
	}
	s.status = Status{Version: SpecVersion, MachineID: s.spec.MachineID, Phase: PhaseStarting,
		PID: os.Getpid(), StartTicks: ticks, Since: time.Now()}
	return s, nil
}

// start brings the machine up to PhaseReady.
func (s *shim) start(ctx context.Context, wg *sync.WaitGroup) {
	defer close(s.started)
	if err := s.startMachine(ctx, wg); err != nil {
		s.fail(fmt.Errorf("start machine: %w", err))
		return
	}
	if s.spec.Zygote {
		if err := s.freeze(ctx, wg); err != nil {
			s.fail(fmt.Errorf("freeze machine: %w", err))
			return
		}
		s.setPhase(PhaseFrozen, nil)
		return
	}
	if s.spec.Warm {
		warmCtx, cancel := s.unlessFull(ctx)
		defer cancel()
		if err := orFull(warmCtx, s.warm(warmCtx)); err != nil {
			s.fail(fmt.Errorf("warm machine: %w", err))
			return
		}
	}
	wg.Go(func() { s.keepMemory(ctx) })
	s.setPhase(PhaseReady, nil)
}

// setPhase moves on unless the shim has come to its end, and reports whether it
// did.
func (s *shim) setPhase(p Phase, change func(*Status)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.Phase == PhaseFailed || s.status.Phase == PhaseStopped {
		return false
	}
	s.status.Phase, s.status.Since = p, time.Now()
	if change != nil {
		change(&s.status)
	}
	s.publishLocked()
	return true
}

// swapPhase moves on from just one phase, and reports whether it did.
func (s *shim) swapPhase(from, to Phase) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.Phase != from {
		return false
	}
	s.status.Phase, s.status.Since = to, time.Now()
	s.publishLocked()
	return true
}

// fail ends the machine for good and keeps the first reason.
func (s *shim) fail(err error) {
	if s.setPhase(PhaseFailed, func(st *Status) { st.Error = err.Error() }) {
		s.log.Warn("machine failed", "err", err)
	}
	s.killMachine()
}

func (s *shim) publishLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
	if err := writeJSON(filepath.Join(s.cfg.Dir, StatusFile), s.status); err != nil {
		s.log.Error("write status", "err", err)
	}
}

func (s *shim) writeStatus() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return writeJSON(filepath.Join(s.cfg.Dir, StatusFile), s.status)
}

// snapshot returns the status and a channel that is closed when it changes.
func (s *shim) snapshot() (Status, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status, s.changed
}

func (s *shim) killMachine() {
	s.mu.Lock()
	m, link := s.machine, s.link
	s.mu.Unlock()
	if link != nil {
		link.Close()
	}
	if m != nil {
		if err := m.Kill(); err != nil {
			s.log.Error("kill machine", "err", err)
		}
	}
}

// watch turns an end of the hypervisor nobody asked for into a failure.
func (s *shim) watch(ctx context.Context, m machine.Machine) {
	select {
	case <-ctx.Done():
	case <-m.Done():
		reason := errors.New("the machine shut down")
		if err := m.Err(); err != nil {
			reason = fmt.Errorf("the machine ended: %w", err)
		}
		s.fail(reason)
	}
}

// errNotReady answers requests that need another phase.
func errNotReady(st Status) error {
	switch st.Phase {
	case PhaseFull:
		return errFull
	case PhaseFailed:
		return skerry.Errorf(skerry.CodeUnavailable, "the machine has failed: %s", st.Error)
	}
	return skerry.Errorf(skerry.CodeConflict, "the machine is %s", st.Phase)
}
