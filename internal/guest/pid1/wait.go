package pid1

import (
	"context"
	"fmt"
	"time"
)

// deviceTimeout bounds the wait for a device that the kernel announces only in
// its own time. Software emulation on a busy host is slow.
const deviceTimeout = 15 * time.Second

// waitFor waits until ready says so, at most for deviceTimeout.
func waitFor(ctx context.Context, what string, ready func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, deviceTimeout)
	defer cancel()
	return poll(ctx, what, ready)
}

// poll waits until ready says so or ctx is done. It polls, because neither sysfs
// nor devtmpfs tell of changes, and stops soon: the usual wait is under 1 ms.
func poll(ctx context.Context, what string, ready func() (bool, error)) error {
	pause := 500 * time.Microsecond
	for {
		ok, err := ready()
		if ok || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 20*time.Millisecond)
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		}
	}
}
