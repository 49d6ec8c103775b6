package control

import (
	"net/http"
	"sync"
	"time"

	"skerry.dev/skerry/internal/guestapi"
)

// activity counts what clients have open. Its times are of the monotonic clock,
// which stands still while the machine is paused or saved.
type activity struct {
	mu   sync.Mutex
	open int       // guarded by mu
	last time.Time // guarded by mu; the last end, or what touch set
}

func (a *activity) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open++
}

func (a *activity) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open--
	a.last = time.Now()
}

// touch makes the idle time begin now.
func (a *activity) touch() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = time.Now()
}

// state returns how many are open, and when the last one ended.
func (a *activity) state() (open int, last time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open, a.last
}

// count returns a handler whose requests count.
func (a *activity) count(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.begin()
		defer a.end()
		h.ServeHTTP(w, r)
	})
}

func (a *Agent) stats() (guestapi.Stats, error) {
	stats, err := a.system.Stats()
	open, last := a.streams.state()
	running, ended := a.toolbox.Activity()
	stats.Processes = running
	stats.Busy = open > 0 || running > 0
	if !stats.Busy && !last.IsZero() {
		if ended.After(last) {
			last = ended
		}
		stats.IdleMillis = time.Since(last).Milliseconds()
	}
	return stats, err
}
