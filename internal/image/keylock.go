package image

import (
	"context"
	"sync"
)

// keylock is a set of mutexes by name, so that work on one blob or layer is done
// once and the others wait for it.
type keylock struct {
	mu   sync.Mutex
	held map[string]*keyWaiters // guarded by mu
}

type keyWaiters struct {
	token chan struct{} // holds one value while nobody has the lock
	users int           // holder and waiters; guarded by keylock.mu
}

// lock waits for the name's lock; unlock must be called once.
func (k *keylock) lock(ctx context.Context, name string) (unlock func(), err error) {
	k.mu.Lock()
	if k.held == nil {
		k.held = make(map[string]*keyWaiters)
	}
	w := k.held[name]
	if w == nil {
		w = &keyWaiters{token: make(chan struct{}, 1)}
		w.token <- struct{}{}
		k.held[name] = w
	}
	w.users++
	k.mu.Unlock()

	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if w.users--; w.users == 0 {
			delete(k.held, name)
		}
	}
	select {
	case <-w.token:
		return func() { w.token <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
