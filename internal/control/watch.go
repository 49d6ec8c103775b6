package control

import "sync"

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
