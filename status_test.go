package skerry_test

import (
	"slices"
	"testing"

	"skerry.dev/skerry"
)

// TestStates is the table of the "Linux Sandboxes" page.
func TestStates(t *testing.T) {
	want := map[skerry.Status]skerry.State{
		"queued": "queued", "pending": "creating", "assigned": "creating", "booting": "starting", "running": "started",
		"deleting": "destroying", "deleted": "destroyed", "failed": "error", "lost": "error",
		"stopping": "stopping", "stopped": "stopped", "pausing": "pausing", "paused": "paused", "nonsense": "unknown",
	}
	for status, state := range want {
		if got := status.State(); got != state {
			t.Errorf("state of %s = %s, want %s", status, got, state)
		}
		if status.Valid() != (state != "unknown") {
			t.Errorf("%s: valid = %v", status, status.Valid())
		}
	}
	if n := len(skerry.Statuses()); n != len(want)-1 {
		t.Errorf("%d statuses, want %d", n, len(want)-1)
	}
}

// TestTransitions tries every pair, so that every refusal is tested too.
func TestTransitions(t *testing.T) {
	allowed := map[skerry.Status][]skerry.Status{
		"queued":   {"pending", "failed"},
		"pending":  {"assigned", "failed"},
		"assigned": {"booting", "failed", "lost"},
		"booting":  {"running", "failed", "lost"},
		"running":  {"stopping", "pausing", "failed", "lost"},
		"stopping": {"stopped", "failed", "lost"},
		"stopped":  {"assigned", "failed", "lost"},
		"pausing":  {"paused", "running", "failed", "lost"},
		"paused":   {"assigned", "failed", "lost"},
		"deleting": {"deleted"},
	}
	for _, from := range skerry.Statuses() {
		for _, to := range skerry.Statuses() {
			want := slices.Contains(allowed[from], to)
			if to == skerry.StatusDeleting { // a delete works in any state
				want = from != skerry.StatusDeleting && from != skerry.StatusDeleted
			}
			if got := from.CanBecome(to); got != want {
				t.Errorf("%s to %s = %v, want %v", from, to, got, want)
			}
		}
	}
}

func TestCanReach(t *testing.T) {
	tests := []struct {
		from, to skerry.Status
		want     bool
	}{
		{"queued", "running", true}, {"running", "running", true}, {"running", "deleted", true}, {"stopped", "running", true},
		{"failed", "running", false}, {"lost", "running", false}, {"deleting", "running", false}, {"deleted", "running", false},
		{"failed", "deleted", true}, {"deleted", "deleting", false}, {"running", "queued", false},
	}
	for _, tt := range tests {
		if got := tt.from.CanReach(tt.to); got != tt.want {
			t.Errorf("%s reaches %s = %v, want %v", tt.from, tt.to, got, tt.want)
		}
	}
}
