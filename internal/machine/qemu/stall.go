package qemu

import (
	"context"
	"sync"
)

// A write to the writable disk for which the host's disk has no room is not the
// guest's fault, and it could do nothing about it. QEMU stops the machine then
// and keeps the write (werror=enospc, its default; other errors go to the
// guest). It tries it again when the machine goes on, and saves it with the
// devices' state if that is saved before.

// stall follows such a standstill by QEMU's events.
type stall struct {
	mu     sync.Mutex
	failed bool          // a write found no room since the machine ran on last
	begun  chan struct{} // closed while the machine stands still for that
}

func newStall() *stall { return &stall{begun: make(chan struct{})} }

// wroteInVain: the machine stops soon, or stands still already because it was
// told to. Then the write fails again when it goes on.
func (s *stall) wroteInVain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = true
}

func (s *stall) stopped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed && !s.isBegun() {
		close(s.begun)
	}
}

// resumed: the machine goes on.
func (s *stall) resumed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = false
	s.endLocked()
}

// paused: the machine stands still because it was told to, at the same moment.
func (s *stall) paused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked()
}

func (s *stall) endLocked() {
	if s.isBegun() {
		s.begun = make(chan struct{})
	}
}

// isBegun wants mu.
func (s *stall) isBegun() bool {
	select {
	case <-s.begun:
		return true
	default:
		return false
	}
}

// Stalled implements machine.Machine.
func (m *instance) Stalled() <-chan struct{} {
	m.stall.mu.Lock()
	defer m.stall.mu.Unlock()
	return m.stall.begun
}

// Retry implements machine.Machine.
func (m *instance) Retry(ctx context.Context) error {
	return m.exclusive(ctx, "go on after a full disk", func(ctx context.Context) error {
		status, err := m.monitor.Status(ctx)
		switch {
		case err != nil:
			return err
		case status == statusStalled:
			return m.monitor.Cont(ctx)
		case status == "paused":
			m.stall.paused()
		}
		return nil
	})
}

// statusStalled is QEMU's word for it (RunState in qapi/run-state.json).
const statusStalled = "io-error"
