package control

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// watch tells those who wait for a change of an object about each change, in
// this process. A change of several steps is told step by step.
type watch[K comparable, V any] struct {
	mu      sync.Mutex
	waiters map[K]map[*waiter[V]]struct{} // guarded by mu
}

// waiter waits for the first value of an object that it wants.
type waiter[V any] struct {
	wants func(V) bool
	found chan V // has room for the one value
}

func newWatch[K comparable, V any]() *watch[K, V] {
	return &watch[K, V]{waiters: map[K]map[*waiter[V]]struct{}{}}
}

// add starts to wait. The caller reads the object after it, so that no change
// is missed, and removes the waiter.
func (w *watch[K, V]) add(key K, wants func(V) bool) *waiter[V] {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting := &waiter[V]{wants: wants, found: make(chan V, 1)}
	if w.waiters[key] == nil {
		w.waiters[key] = map[*waiter[V]]struct{}{}
	}
	w.waiters[key][waiting] = struct{}{}
	return waiting
}

func (w *watch[K, V]) remove(key K, waiting *waiter[V]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiters[key], waiting)
	if len(w.waiters[key]) == 0 {
		delete(w.waiters, key)
	}
}

// publish tells the waiters a new value.
func (w *watch[K, V]) publish(key K, value V) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for waiting := range w.waiters[key] {
		if !waiting.wants(value) {
			continue
		}
		select {
		case waiting.found <- value:
		default: // it found an earlier one
		}
	}
}

// waitFor waits until the object with an id, which get finds, is settled or the
// time is over, and returns it. Errors: those of get, CodeUnavailable at Close.
func waitFor[K ~string, V any](ctx context.Context, c *Control, w *watch[K, V], id K, timeout time.Duration,
	get func(context.Context, string) (V, error), settled func(V) bool) (V, error) {
	waiting := w.add(id, settled)
	defer w.remove(id, waiting)
	if v, err := get(ctx, string(id)); err != nil || settled(v) { // it may have changed before add
		return v, err
	}
	timer, stop := c.clock.After(timeout)
	defer stop()
	var none V
	select {
	case v := <-waiting.found:
		return v, nil
	case <-timer:
		return get(ctx, string(id))
	case <-ctx.Done():
		return none, fmt.Errorf("wait for %s: %w", id, ctx.Err())
	case <-c.closed:
		return none, errStopping
	}
}
