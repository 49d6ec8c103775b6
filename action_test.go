package skerry_test

import (
	"slices"
	"strings"
	"testing"

	"skerry.dev/skerry"
)

// TestActions tries every action in every status, persistent and ephemeral,
// idle and with another operation under way: the validity table of Daytona's
// "Sandboxes" page.
func TestActions(t *testing.T) {
	all := skerry.Statuses()
	live := slices.DeleteFunc(skerry.Statuses(), func(s skerry.Status) bool { return s == "deleting" || s == "deleted" })
	tests := []struct {
		action     skerry.Action
		from       []skerry.Status
		persistent bool
		exclusive  bool
	}{
		{"toolbox", []skerry.Status{"running"}, false, false},
		{"stop", []skerry.Status{"running"}, true, true},
		{"start", []skerry.Status{"stopped", "paused"}, true, true},
		{"pause", []skerry.Status{"running"}, true, true},
		{"resume", []skerry.Status{"paused"}, false, true},
		{"fork", []skerry.Status{"running", "stopped", "paused"}, true, true},
		{"capture", []skerry.Status{"running", "stopped"}, false, true},
		{"snapshot", []skerry.Status{"running"}, false, true},
		{"touch", live, false, false},
		{"policy", live, false, false},
		{"reclaim", live, false, false},
		{"delete", all, false, false},
	}
	if len(tests) != len(skerry.Actions()) {
		t.Fatalf("%d actions are tested, there are %d", len(tests), len(skerry.Actions()))
	}
	for _, tt := range tests {
		for _, status := range all {
			for _, persistent := range []bool{false, true} {
				for _, operation := range []skerry.Action{"", "fork"} {
					s := skerry.Sandbox{ID: "sbx_x", Status: status, Persistent: persistent, Operation: operation}
					want := slices.Contains(tt.from, status) && (persistent || !tt.persistent) && (operation == "" || !tt.exclusive)
					err := tt.action.Check(s)
					if (err == nil) != want {
						t.Errorf("%s of a %s sandbox (persistent %v, operation %q): %v, want allowed = %v", tt.action, status, persistent, operation, err, want)
					}
					if err != nil {
						checkRefusal(t, tt.action, s, err)
					}
				}
			}
		}
	}
}

// checkRefusal: a refusal is a conflict (gone once the sandbox is deleted) that
// names what is in the way.
func checkRefusal(t *testing.T, a skerry.Action, s skerry.Sandbox, err error) {
	t.Helper()
	want := skerry.CodeConflict
	if s.Status == "deleted" {
		want = skerry.CodeGone
	}
	if got := skerry.CodeOf(err); got != want {
		t.Errorf("%s of a %s sandbox: code %s, want %s", a, s.Status, got, want)
	}
	if !strings.HasPrefix(err.Error(), string(a)+": ") {
		t.Errorf("%q does not name the action %s", err, a)
	}
}
