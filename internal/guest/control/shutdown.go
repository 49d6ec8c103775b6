package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"skerry.dev/skerry/internal/guestapi"
)

// closeTimeout bounds, beyond the grace, the wait for the toolbox: it kills what
// is left after the grace, but a process in the kernel's hands may stay.
const closeTimeout = 10 * time.Second

// shutdown ends the processes and leaves the disk clean. It does all of that
// whatever goes wrong on the way, because the machine is stopped after it.
func (a *Agent) shutdown(ctx context.Context, in guestapi.Shutdown) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state == stopped {
		return nil
	}
	start, grace := time.Now(), time.Duration(in.GraceMillis)*time.Millisecond
	errs := []error{a.system.ThawDisk()}
	if a.state == failed {
		grace = 0 // what is frozen is killed as it is
	} else {
		errs = append(errs, a.system.ThawProcesses())
	}
	a.state = stopped
	closing, cancel := context.WithTimeout(ctx, grace+closeTimeout)
	defer cancel()
	if err := a.toolbox.Close(closing, grace); err != nil {
		errs = append(errs, fmt.Errorf("close toolbox: %w", err))
	}
	// Of the processes that are no longer the toolbox's, as daemons.
	left := max(grace-time.Since(start), strayGrace)
	return errors.Join(append(errs, a.system.Shutdown(ctx, min(left, grace)))...)
}

// strayGrace is the least time, up to the grace, that daemons have between TERM
// and KILL: the toolbox's own processes may have used up the grace.
const strayGrace = time.Second
