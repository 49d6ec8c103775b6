package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
)

// How long the agent lets the disk be frozen.
const (
	defaultDiskFreeze = 5 * time.Second
	maxDiskFreeze     = 10 * time.Minute
)

// freeze brings the sandbox to a standstill. After an error nothing is frozen.
func (a *Agent) freeze(ctx context.Context, in guestapi.Freeze) error {
	limit := time.Duration(in.DiskMillis) * time.Millisecond
	switch {
	case in.DiskMillis < 0 || in.DiskMillis > maxDiskFreeze.Milliseconds():
		return skerry.Errorf(skerry.CodeInvalid, "disk_millis %d: is not from 0 to %d", in.DiskMillis, maxDiskFreeze.Milliseconds())
	case limit == 0:
		limit = defaultDiskFreeze
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.requireActivated(); err != nil {
		return err
	}
	// Processes go first: one that waits for a frozen disk cannot be stopped.
	if in.Processes {
		if err := a.system.FreezeProcesses(ctx); err != nil {
			return fmt.Errorf("freeze processes: %w", errors.Join(err, a.thawAll()))
		}
	}
	if in.Disk {
		if err := a.system.FreezeDisk(limit); err != nil {
			return fmt.Errorf("freeze disk: %w", errors.Join(err, a.thawAll()))
		}
	}
	return nil
}

// thaw undoes freeze. In a machine whose renewal went wrong nothing runs again.
func (a *Agent) thaw() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state == failed {
		return skerry.Errorf(skerry.CodeConflict, "machine is %s", a.state)
	}
	return a.thawAll()
}

// thawAll thaws the disk first: processes that run again need it.
func (a *Agent) thawAll() error {
	if err := a.system.ThawDisk(); err != nil {
		return fmt.Errorf("thaw disk: %w", err)
	}
	if err := a.system.ThawProcesses(); err != nil {
		return fmt.Errorf("thaw processes: %w", err)
	}
	return nil
}

// renew makes a machine that was restored from a user's memory a sandbox of its
// own and then lets its processes run. They are frozen already if that is how
// the memory was saved; a machine that was only paused has them stopped here.
func (a *Agent) renew(ctx context.Context, in guestapi.Renewal) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.requireActivated(); err != nil {
		return err
	}
	a.state = failed // until everything worked
	if err := a.renewLocked(ctx, in); err != nil {
		a.broken.Store(true)
		return fmt.Errorf("renew: %w", err)
	}
	a.state = activated
	return nil
}

func (a *Agent) renewLocked(ctx context.Context, in guestapi.Renewal) error {
	if err := a.system.FreezeProcesses(ctx); err != nil {
		return fmt.Errorf("freeze processes: %w", err)
	}
	if err := a.system.Renew(in); err != nil {
		return err
	}
	if id := in.Identity; id != nil {
		if err := a.toolbox.SetEnvironment(id.Env); err != nil {
			return err
		}
		if id.MAC != "" {
			a.setMACLater(id.MAC)
		}
	}
	return a.thawAll()
}
