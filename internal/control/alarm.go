package control

import (
	"context"
	"sync"
	"time"
)

// maxSleep bounds a sleep, as timers of the system neither follow the wall
// clock when it is set nor run while the machine is suspended.
const maxSleep = time.Minute

// alarm lets one goroutine sleep until the earliest of several times, to which
// others may add an earlier one.
type alarm struct {
	clock Clock
	mu    sync.Mutex
	next  time.Time     // of the sleep under way, or zero; guarded by mu
	wake  chan struct{} // holds a token when the sleeper must look again
}

func newAlarm(clock Clock) *alarm {
	return &alarm{clock: clock, wake: make(chan struct{}, 1)}
}

// sleep returns at next, or earlier.
func (a *alarm) sleep(ctx context.Context, next time.Time) {
	a.mu.Lock()
	a.next = next
	a.mu.Unlock()
	timer, stop := a.clock.After(min(next.Sub(a.clock.Now()), maxSleep))
	defer stop()
	select {
	case <-ctx.Done():
	case <-timer:
	case <-a.wake:
	}
	a.mu.Lock()
	a.next = time.Time{}
	a.mu.Unlock()
}

// by makes the sleeper wake up at t at the latest.
func (a *alarm) by(t time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	// An awake sleeper may have looked before what t is about.
	if a.next.IsZero() || t.Before(a.next) {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}
