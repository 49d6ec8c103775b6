package skerry_test

import (
	"errors"
	"slices"
	"testing"

	"skerry.dev/skerry"
)

// TestForkResolve covers what the schema of the API cannot say; the refusals
// are also tests of the API.
func TestForkResolve(t *testing.T) {
	many := slices.Repeat([]string{"x"}, 65)
	tests := []struct {
		in    skerry.ForkRequest
		count int
		field string
	}{
		{skerry.ForkRequest{}, 1, ""},
		{skerry.ForkRequest{Count: 64}, 64, ""},
		{skerry.ForkRequest{Names: []string{"a", "b"}}, 2, ""},
		{skerry.ForkRequest{Count: -1}, 0, "count"},
		{skerry.ForkRequest{Count: 65}, 0, "count"},
		{skerry.ForkRequest{Names: many}, 0, "count"},
		{skerry.ForkRequest{Count: 1, Names: []string{"a", "b"}}, 0, "names"},
		{skerry.ForkRequest{Names: []string{"a", "a"}}, 0, "names"},
		{skerry.ForkRequest{Names: []string{"a b"}}, 0, "names"},
		{skerry.ForkRequest{Labels: map[string]string{"name": "a"}}, 0, "labels"},
	}
	for _, tt := range tests {
		got, err := tt.in.Resolve()
		var e *skerry.Error
		if tt.field == "" {
			if err != nil || got.Count != tt.count {
				t.Errorf("%+v: %d, %v", tt.in, got.Count, err)
			}
		} else if !errors.As(err, &e) || e.Code != skerry.CodeInvalid || e.Field != tt.field {
			t.Errorf("%+v: %v, want an invalid %s", tt.in, err, tt.field)
		}
	}
}

func TestWaitEnds(t *testing.T) {
	tests := []struct{ until, want []skerry.Status }{
		{[]skerry.Status{"running"}, []skerry.Status{"running", "deleting", "deleted", "failed", "lost"}},
		{[]skerry.Status{"deleted"}, []skerry.Status{"deleted", "failed", "lost"}},
		{[]skerry.Status{"deleting"}, []skerry.Status{"deleting", "deleted", "failed", "lost"}},
		{[]skerry.Status{"failed", "lost"}, []skerry.Status{"failed", "lost", "deleting", "deleted"}},
		{[]skerry.Status{"booting", "running"}, []skerry.Status{"booting", "running", "deleting", "deleted", "failed", "lost"}},
	}
	for _, tt := range tests {
		if got := skerry.WaitEnds(tt.until...); !slices.Equal(got, tt.want) {
			t.Errorf("wait for %v ends at %v, want %v", tt.until, got, tt.want)
		}
	}
}

func TestStatusesNamed(t *testing.T) {
	tests := map[string][]skerry.Status{
		"running": {"running"}, "started": {"running"}, "creating": {"pending", "assigned"}, "error": {"failed", "lost"},
		"stopped": {"stopped"}, "queued": {"queued"}, "unknown": nil, "": nil,
	}
	for name, want := range tests {
		if got := skerry.StatusesNamed(name); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}
