package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
	"skerry.dev/skerry/internal/machine"
)

// When the host's disk has no room for what the guest writes, its machine
// stands still (PhaseFull) and goes on by itself when there is room again.
const (
	// roomPause is between looks at the host's disk, roomBytes what must be
	// free on it: with less the machine would stand still again at once. It is
	// more than what the server holds back for its own records.
	roomPause = 500 * time.Millisecond
	roomBytes = 64 << 20
	// fullPatience is how long requests to the guest wait for that before they
	// are broken off. New ones are refused.
	fullPatience = 30 * time.Second
	// stopTries is how often the guest is asked to hold its processes for a
	// moment: one that waits for a disk cannot be stopped.
	stopTries = 3
)

// errFull ends what needs a machine that goes on.
var errFull = skerry.Errorf(skerry.CodeExhausted, "the host's disk is full: the machine stands still until there is room")

// keepRoom watches for a machine that stands still for want of room, and lets it
// go on, until ctx or the machine ends.
func (s *shim) keepRoom(ctx context.Context, m machine.Machine) {
	for {
		select {
		case <-m.Stalled():
		case <-m.Done():
			return
		case <-ctx.Done():
			return
		}
		if s.swapPhase(PhaseRunning, PhaseFull) {
			s.log.Warn("the host's disk is full, the machine stands still")
		}
		if err := s.awaitRoom(ctx, m); err != nil {
			s.log.Error("let the machine go on", "err", err)
			pause(ctx, roomPause)
			continue
		}
		s.afterFull(ctx, m)
	}
}

// awaitRoom returns when the machine has been let go on, or has ended.
func (s *shim) awaitRoom(ctx context.Context, m machine.Machine) error {
	for {
		var st unix.Statfs_t
		if err := unix.Statfs(s.scratchPath(), &st); err != nil {
			return os.NewSyscallError("statfs", err)
		}
		if int64(st.Bavail)*st.Bsize >= roomBytes {
			return m.Retry(ctx)
		}
		select {
		case <-time.After(roomPause):
		case <-m.Done():
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// afterFull makes a sandbox of the machine that goes on. One that stands still
// again stays in PhaseFull.
func (s *shim) afterFull(ctx context.Context, m machine.Machine) {
	s.saving.Lock()
	defer s.saving.Unlock()
	st, _ := s.snapshot()
	select {
	case <-m.Done(): // see watch
		return
	default:
	}
	if st.Phase != PhaseFull {
		return
	}
	ctx, cancel := s.unlessFull(ctx)
	defer cancel()
	switch err := s.refresh(ctx); {
	case err == nil:
		if s.swapPhase(PhaseFull, PhaseRunning) {
			s.log.Info("the host's disk has room, the machine went on", "still_millis", time.Since(st.Since).Milliseconds())
		}
	case ctx.Err() == nil:
		s.fail(fmt.Errorf("go on after the host's disk was full: %w", err))
	}
}

// refresh sets the guest's clock, which stood still too, and undoes the freeze
// of an operation that was given up.
func (s *shim) refresh(ctx context.Context) (err error) {
	if err := s.connect(ctx, linkTimeout); err != nil {
		return err
	}
	if err := s.link.Control(ctx, guestapi.PathThaw, nil, nil); err != nil {
		return fmt.Errorf("thaw: %w", err)
	}
	// Unlike a renewal, a freeze that fails does no harm.
	for range stopTries {
		err = s.link.Control(ctx, guestapi.PathFreeze, guestapi.Freeze{Processes: true}, nil)
		if err == nil {
			return s.renewGuest(ctx, nil)
		}
	}
	if ctx.Err() == nil {
		s.log.Warn("the guest's clock is late: its processes did not stop for it to be set", "err", err)
		return nil
	}
	return err
}

// unlessFull returns a context that also ends, with errFull as its cause, when
// the machine stands still for want of room.
func (s *shim) unlessFull(ctx context.Context) (context.Context, context.CancelFunc) {
	s.mu.Lock()
	m := s.machine
	s.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	if m != nil {
		wg.Go(func() {
			select {
			case <-m.Stalled():
				cancel(errFull)
			case <-ctx.Done():
			}
		})
	}
	return ctx, func() { cancel(nil); wg.Wait() }
}

// orFull is err, or why ctx ended if the machine stands still for want of room:
// what is given up then may say anything.
func orFull(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errFull) {
		return errFull
	}
	return err
}

// renewSaved renews the guest after it stood still for a save. If it stands still
// again for want of room, it is renewed when it goes on.
func (s *shim) renewSaved(ctx context.Context) error {
	ctx, cancel := s.unlessFull(context.WithoutCancel(ctx))
	defer cancel()
	return orFull(ctx, s.renewGuest(ctx, nil))
}

// breakOff calls cancel when the machine has stood still for want of room for
// longer than requests wait for it, and returns then or when ctx is done.
func (s *shim) breakOff(ctx context.Context, cancel context.CancelFunc) {
	for {
		st, changed := s.snapshot()
		var late <-chan time.Time
		if st.Phase == PhaseFull {
			late = time.After(fullPatience - time.Since(st.Since))
		}
		select {
		case <-late:
			cancel()
			return
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// scratchPath is the file of the writable disk.
func (s *shim) scratchPath() string {
	if s.spec.Scratch != "" {
		return s.spec.Scratch
	}
	return filepath.Join(s.cfg.Dir, ScratchFile)
}
