package runner

import (
	"context"
	"sync"

	"skerry.dev/skerry"
)

// turns lets one operation at a time work on a sandbox. The control plane sees
// to that too; but a command may come again while the first one is at work, and
// a delete comes at any time.
type turns struct {
	mu      sync.Mutex
	current map[skerry.SandboxID]*turn // guarded by mu
}

type turn struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func newTurns() *turns { return &turns{current: map[skerry.SandboxID]*turn{}} }

// take waits until nothing else works on the sandbox. The context it returns
// ends when the turn is interrupted; release gives the turn back.
func (t *turns) take(ctx context.Context, id skerry.SandboxID) (_ context.Context, release func(), err error) {
	for {
		t.mu.Lock()
		other := t.current[id]
		if other == nil {
			ctx, cancel := context.WithCancel(ctx)
			mine := &turn{cancel, make(chan struct{})}
			t.current[id] = mine
			t.mu.Unlock()
			return ctx, func() {
				cancel()
				t.mu.Lock()
				delete(t.current, id)
				t.mu.Unlock()
				close(mine.done)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-other.done:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

// interrupt ends what works on the sandbox now. It does not wait.
func (t *turns) interrupt(id skerry.SandboxID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if cur := t.current[id]; cur != nil {
		cur.cancel()
	}
}
