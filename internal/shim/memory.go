package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
	"skerry.dev/skerry/internal/shim/growth"
)

const (
	// growthDelay keeps the first question out of the way of the first
	// commands. A program that wants memory meanwhile is slowed down, not
	// killed.
	growthDelay = time.Second
	// growthPause is between questions: a cache of files that is always full
	// would else be told of a hundred times in a second.
	growthPause = 500 * time.Millisecond
	// shrinkAfter is how often a machine that has grown is looked at; two times
	// in a row it must have been larger than it needs. retryAfter is when one
	// whose host had no memory left asks again.
	shrinkAfter = 30 * time.Second
	retryAfter  = 5 * time.Second
	// plugStall is after how long without progress the guest has plugged all
	// it can: it needs tenths of a second for a GiB.
	plugStall = 2 * time.Second
)

// wholeBlocks rounds up to what memory is plugged in.
func wholeBlocks(mib int64) int64 { return (mib + 1) &^ 1 }

// unknown is more than any machine has.
const unknown = 1 << 40

// keeper keeps the memory of a running sandbox at what it needs.
type keeper struct {
	*shim
	ledger growth.Ledger
	bounds growth.Bounds
	size   int64 // MiB that the machine has
	fixed  bool  // the guest was told that there is no more
	used   int64 // MiB, at the last answer without pressure; unknown after one with it
}

// keepMemory waits until the machine is a sandbox, and then, if its memory may
// grow, lets it grow and shrink until ctx ends.
func (s *shim) keepMemory(ctx context.Context) {
	st, ok := s.awaitRunning(ctx)
	if !ok || s.spec.MemoryLedger == "" || !pause(ctx, growthDelay) {
		return
	}
	k := &keeper{shim: s, ledger: growth.NewLedger(s.spec.MemoryLedger), used: unknown,
		bounds: growth.Bounds{FloorMiB: wholeBlocks(st.MemoryMiB), LimitMiB: min(st.MemoryLimitMiB, s.spec.Shape.MaxMemMiB) &^ 1}}
	if err := k.begin(ctx); err != nil {
		s.log.Warn("memory stays as it is", "err", err)
		return
	}
	for k.bounds.LimitMiB > k.bounds.FloorMiB || k.size > k.bounds.FloorMiB {
		// A machine that was saved stands still; perhaps it goes on.
		if _, ok := s.awaitRunning(ctx); !ok {
			return
		}
		err := k.round(ctx)
		if skerry.CodeOf(err) == skerry.CodeNotFound {
			return // an agent that does not know the question
		}
		if st, _ := s.snapshot(); err != nil && st.Phase == PhaseRunning && ctx.Err() == nil {
			s.log.Warn("keep memory", "err", err)
		}
		if !pause(ctx, growthPause) {
			return
		}
	}
}

// awaitRunning waits until the machine is a sandbox that runs.
func (s *shim) awaitRunning(ctx context.Context) (Status, bool) {
	for {
		st, changed := s.snapshot()
		switch st.Phase {
		case PhaseRunning:
			return st, true
		case PhaseFailed, PhaseStopped:
			return st, false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return st, false
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// begin finds out what the machine has: a restored one comes with the memory it
// was saved with, and with what the guest was told of its host then.
func (k *keeper) begin(ctx context.Context) (err error) {
	if k.size, err = k.machine.MemoryMiB(ctx); err != nil {
		return err
	}
	k.size = max(k.size, k.bounds.FloorMiB)
	if !k.spec.Saved {
		return nil
	}
	if err := k.ledger.Record(k.spec.MachineID, k.size-k.bounds.FloorMiB); err != nil {
		return err
	}
	return k.resize(ctx, k.size, k.size >= k.bounds.LimitMiB)
}

// round asks once and acts on the answer.
func (k *keeper) round(ctx context.Context) error {
	link, err := k.runningLink()
	if err != nil {
		return err
	}
	var wait guestapi.PressureWait
	switch {
	case k.fixed && k.size < k.bounds.LimitMiB:
		wait.Millis = retryAfter.Milliseconds()
	case k.size > k.bounds.FloorMiB:
		wait.Millis = shrinkAfter.Milliseconds()
	}
	var p guestapi.Pressure
	if err := link.Control(ctx, guestapi.PathPressure, wait, &p); err != nil {
		return err
	}
	p.UsedMiB = min(max(0, p.UsedMiB), k.size) // the guest may say anything
	if p.Short || k.fixed {
		if want := k.bounds.Grown(k.size, p.UsedMiB); want > k.size {
			k.used = unknown
			return k.grow(ctx, want)
		}
	}
	if p.Short {
		k.used = unknown
	} else {
		most := max(k.used, p.UsedMiB)
		k.used = p.UsedMiB
		err = k.shrink(ctx, most)
	}
	if err == nil && k.fixed && k.size < k.bounds.LimitMiB {
		// What there was no memory for is over; the next time there may be.
		err = k.resize(ctx, k.size, false)
	}
	return err
}

// grow borrows memory and plugs it. Where there is none the guest is told so.
func (k *keeper) grow(ctx context.Context, want int64) error {
	available, err := availableMiB()
	if err != nil {
		return err
	}
	lent, err := k.ledger.Borrow(k.spec.MachineID, want-k.bounds.FloorMiB, available)
	if err != nil {
		return errors.Join(err, k.resize(ctx, k.size, true))
	}
	want = k.bounds.FloorMiB + lent
	// Nothing more to be had, or nothing more allowed: who takes more is killed.
	return k.resize(ctx, want, want <= k.size || want >= k.bounds.LimitMiB)
}

// shrink gives back what the machine has not needed for a while.
func (k *keeper) shrink(ctx context.Context, used int64) error {
	want := k.bounds.Shrunk(k.size, used)
	if want >= k.size {
		return nil
	}
	if err := k.resize(ctx, want, false); err != nil {
		return err
	}
	return k.ledger.Record(k.spec.MachineID, k.size-k.bounds.FloorMiB)
}

// resize makes the machine as large as wanted, or as near as the guest comes. No
// save is under way meanwhile.
func (k *keeper) resize(ctx context.Context, want int64, fixed bool) error {
	k.saving.Lock()
	defer k.saving.Unlock()
	link, err := k.runningLink()
	if err != nil {
		return err
	}
	ctx, cancel := k.unlessFull(ctx)
	defer cancel()
	from := k.size
	if want < k.size {
		// First the programs' limit, so that there is something to unplug.
		if err := k.tune(ctx, link, want, fixed); err != nil {
			return err
		}
	}
	if want != k.size {
		if err := k.machine.SetMemory(ctx, want); err != nil {
			return fmt.Errorf("plug memory: %w", err)
		}
		if k.size, err = k.settled(ctx, want); err != nil {
			return fmt.Errorf("plug memory: %w", err)
		}
	}
	k.log.Info("memory", "from_mib", from, "wanted_mib", want, "mib", k.size, "fixed", fixed)
	if from > want && k.size == want {
		return nil
	}
	return k.tune(ctx, link, k.size, fixed || k.size < want)
}

func (k *keeper) tune(ctx context.Context, link *guestapi.Link, mib int64, fixed bool) error {
	if err := link.Control(ctx, guestapi.PathTune, guestapi.Tuning{MemoryMiB: mib, FixedMemory: fixed}, nil); err != nil {
		return fmt.Errorf("set limits: %w", err)
	}
	k.fixed = fixed
	return nil
}

// settled waits until the machine has the wanted memory, or the guest makes no
// progress any more, and returns what it has. QEMU tells of changes by at most
// one event in a second, so it is asked; a GiB takes tenths of a second.
func (k *keeper) settled(ctx context.Context, want int64) (int64, error) {
	var last int64
	for since := time.Now(); ; {
		has, err := k.machine.MemoryMiB(ctx)
		if err != nil || has == want {
			return has, err
		}
		if has != last {
			last, since = has, time.Now()
		} else if time.Since(since) > plugStall {
			return has, nil
		}
		if !pause(ctx, 10*time.Millisecond) {
			return has, context.Cause(ctx)
		}
	}
}

// availableMiB is what the host could give now without coming near its end.
func availableMiB() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	return growth.LendableMiB(string(text))
}
