package skerry_test

import (
	"errors"
	"strings"
	"testing"

	"skerry.dev/skerry"
)

func TestSnapshotNames(t *testing.T) {
	tests := []struct{ name, rule string }{
		{"my-snapshot", ""}, {"a", ""}, {"-a", ""}, {"A.b_c-9", ""}, {strings.Repeat("x", 128), ""}, {"reference", ""},
		{"", "required"}, {strings.Repeat("x", 129), "length"}, {".a", "pattern"}, {"a/b", "pattern"}, {"a b", "pattern"}, {"é", "pattern"},
		{"sbx_1", "reserved_prefix"}, {"vol_1", "reserved_prefix"}, {"fn_1", "reserved_prefix"}, {"img_1", "reserved_prefix"},
		{"snap_1", "reserved_prefix"}, {"snap-1", "reserved_prefix"}, {"refs1", "reserved_prefix"}, {"build-1", "reserved_prefix"}, {"refs", "reserved_prefix"},
		{"by-digest", "reserved_prefix"}, {"prj-1", "reserved_prefix"}, {"glb-1", "reserved_prefix"},
	}
	for _, tt := range tests {
		err := skerry.ValidateSnapshotName(tt.name)
		var e *skerry.Error
		if tt.rule == "" {
			if err != nil {
				t.Errorf("%q: %v", tt.name, err)
			}
		} else if !errors.As(err, &e) || e.Field != "name" || e.Rule != tt.rule {
			t.Errorf("%q: %v, want the rule %s", tt.name, err, tt.rule)
		}
	}
}
