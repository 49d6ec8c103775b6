package shim

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"skerry.dev/skerry/internal/guestapi"
	"skerry.dev/skerry/internal/machine"
)

// settle is how long the agent's port must have been closed before the capture,
// so that no byte of the old link is left in the device's queues.
const settle = 250 * time.Millisecond

// capture boots the image, brings the agent to rest and saves the machine as a
// template. Nothing of a user has run in it.
func (s *shim) capture(ctx context.Context) error {
	network, guestNet, err := socketpair("net")
	if err != nil {
		return err
	}
	defer network.Close() // nothing answers; the guest sends nothing by itself
	defer guestNet.Close()
	cfg, err := s.machineConfig(guestNet, s.scratchPath())
	if err != nil {
		return err
	}
	if cfg.Scratch != nil {
		defer cfg.Scratch.Close()
	}
	m, err := s.driver.Start(ctx, cfg)
	if err != nil {
		return fmt.Errorf("start machine: %w", err)
	}
	if err := s.setMachine(m); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	quiet, done := s.unlessFull(ctx)
	defer done()
	if err := orFull(quiet, s.quiesce(quiet, m)); err != nil {
		return err
	}
	return m.Capture(ctx, filepath.Join(s.cfg.Dir, StateFile), filepath.Join(s.cfg.Dir, RAMFile))
}

// quiesce waits for the agent, tells it to come to rest, and closes the link.
func (s *shim) quiesce(ctx context.Context, m machine.Machine) error {
	conn, err := dial(ctx, s.cfg.Dir, "control.sock")
	if err != nil {
		return fmt.Errorf("guest port: %w", err)
	}
	link, err := dialLink(ctx, conn, m)
	if err != nil {
		return err
	}
	defer link.Close()
	if err := s.prepare(ctx, link); err != nil {
		return err
	}
	link.Close()
	if !pause(ctx, settle) {
		return ctx.Err()
	}
	return nil
}

// prepare does what no clone then has to do: it makes the root on the writable
// disk, of which each of them gets a copy. The entropy is only for the time
// until an activation brings its own.
func (s *shim) prepare(ctx context.Context, link *guestapi.Link) error {
	if s.spec.Bare {
		if err := link.Control(ctx, guestapi.PathQuiesce, nil, nil); err != nil {
			return fmt.Errorf("quiesce: %w", err)
		}
		return nil
	}
	memMiB := s.spec.Shape.BaseMiB
	if err := link.Control(ctx, guestapi.PathPrepare, guestapi.Preparation{Time: time.Now(), Entropy: entropy(), MemoryMiB: memMiB}, nil); err != nil {
		return fmt.Errorf("prepare agent: %w", err)
	}
	return rehearse(ctx, link, memMiB, false)
}

// dialLink connects to the agent of a booting machine and gives up at once
// when the machine ends.
func dialLink(ctx context.Context, conn net.Conn, m machine.Machine) (*guestapi.Link, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	go func() {
		select {
		case <-m.Done():
			cancel(fmt.Errorf("the machine ended while it booted: %w", m.Err()))
		case <-ctx.Done():
		}
	}()
	link, err := guestapi.Dial(ctx, conn)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("guest agent: %w", err)
	}
	return link, nil
}
