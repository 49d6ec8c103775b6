package runner

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skerry.dev/skerry"
)

func TestTurnsAreTakenOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		var wg sync.WaitGroup
		var mu sync.Mutex
		working, most, done := 0, 0, 0
		for range 20 {
			wg.Go(func() {
				_, release, err := turns.take(t.Context(), "sbx_a")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				working++
				most = max(most, working)
				mu.Unlock()
				time.Sleep(time.Second) // of the bubble's clock
				mu.Lock()
				working--
				done++
				mu.Unlock()
				release()
			})
		}
		wg.Wait()
		if most != 1 || done != 20 {
			t.Errorf("%d worked at once, %d came to an end; want 1 and 20", most, done)
		}
		if len(turns.current) != 0 {
			t.Errorf("%d turns are left", len(turns.current))
		}
	})
}

func TestTurnsOfOtherSandboxesDoNotWait(t *testing.T) {
	turns := newTurns()
	for _, id := range []skerry.SandboxID{"sbx_a", "sbx_b"} {
		_, release, err := turns.take(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
	}
}

func TestTurnIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		ctx, release, err := turns.take(t.Context(), "sbx_a")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			<-ctx.Done()
			release()
		}()
		turns.interrupt("sbx_a")
		turns.interrupt("sbx_b") // nothing works on it
		_, release, err = turns.take(t.Context(), "sbx_a")
		if err != nil {
			t.Fatal(err)
		}
		release()
	})
}

func TestWaitForATurnEnds(t *testing.T) {
	turns := newTurns()
	_, release, err := turns.take(t.Context(), "sbx_a")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := turns.take(ctx, "sbx_a"); !errors.Is(err, context.Canceled) {
		t.Errorf("take with an ended context: %v", err)
	}
}
