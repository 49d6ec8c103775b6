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
		"assigned": {"booting", "pending", "failed", "lost"},
		"booting":  {"running", "pending", "failed", "lost"},
		"running":  {"failed", "lost"},
		"deleting": {"deleted"},
	}
	persistent := map[skerry.Status][]skerry.Status{
		"booting":  {"stopped", "paused"},
		"running":  {"stopping", "pausing", "stopped"},
		"stopping": {"stopped", "failed", "lost"},
		"stopped":  {"booting", "failed", "lost"},
		"pausing":  {"paused", "running", "stopped", "failed", "lost"},
		"paused":   {"booting", "stopped", "failed", "lost"},
		"lost":     {"stopped", "paused", "running"},
	}
	for _, from := range skerry.Statuses() {
		for _, to := range skerry.Statuses() {
			want := slices.Contains(allowed[from], to)
			wantPersistent := want || slices.Contains(persistent[from], to)
			if to == skerry.StatusDeleting { // a delete works in any state
				want = from != skerry.StatusDeleting && from != skerry.StatusDeleted
				wantPersistent = want
			}
			if got := from.CanBecome(to, false); got != want {
				t.Errorf("ephemeral, %s to %s = %v, want %v", from, to, got, want)
			}
			if got := from.CanBecome(to, true); got != wantPersistent {
				t.Errorf("persistent, %s to %s = %v, want %v", from, to, got, wantPersistent)
			}
		}
	}
}

func TestCanReach(t *testing.T) {
	tests := []struct {
		from, to   skerry.Status
		persistent bool
		want       bool
	}{
		{"queued", "running", false, true}, {"running", "running", false, true}, {"running", "deleted", false, true}, {"stopped", "running", true, true},
		{"failed", "running", true, false}, {"lost", "running", false, false}, {"lost", "running", true, true}, {"deleting", "running", true, false},
		{"deleted", "running", true, false}, {"failed", "deleted", false, true}, {"deleted", "deleting", false, false}, {"running", "queued", true, false},
		{"running", "stopped", false, false}, {"running", "stopped", true, true}, {"queued", "paused", false, false}, {"queued", "paused", true, true},
	}
	for _, tt := range tests {
		if got := tt.from.CanReach(tt.to, tt.persistent); got != tt.want {
			t.Errorf("%s reaches %s (persistent %v) = %v, want %v", tt.from, tt.to, tt.persistent, got, tt.want)
		}
	}
}
