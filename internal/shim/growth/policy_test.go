package growth

import (
	"testing"

	"skerry.dev/skerry/internal/guestapi"
)

func TestGrown(t *testing.T) {
	tests := []struct {
		name        string
		floor       int64
		limit       int64
		size, used  int64
		want        int64
		wantGrowing bool
	}{
		{"a cache of files is full", 1024, 32768, 1024, 300, 1024, false},
		{"just below three quarters", 1024, 32768, 1024, 683, 1024, false},
		{"three quarters are held", 1024, 32768, 1024, 684, 1536, true},
		{"by half of a larger one", 1024, 32768, 4096, 3500, 6144, true},
		{"in whole steps beyond the floor", 1000, 32768, 1000, 900, 1512, true},
		{"not over the limit", 1024, 1200, 1024, 900, 1200, true},
		{"at the limit", 1024, 4096, 4096, 3800, 4096, false},
		{"no limit above the floor", 1024, 0, 1024, 900, 1024, false},
		{"a guest that says nonsense", 1024, 8192, 1024, 1 << 60, 1536, true},
		{"less than nothing", 1024, 8192, 1024, -1 << 60, 1024, false},
	}
	for _, tt := range tests {
		b := Bounds{FloorMiB: tt.floor, LimitMiB: tt.limit}
		if got := b.Grown(tt.size, tt.used); got != tt.want || (got > tt.size) != tt.wantGrowing {
			t.Errorf("%s: %d MiB with %d used grows to %d, want %d", tt.name, tt.size, tt.used, got, tt.want)
		}
	}
}

func TestShrunk(t *testing.T) {
	b := Bounds{FloorMiB: 1024, LimitMiB: 32768}
	tests := []struct {
		name             string
		size, used, want int64
	}{
		{"nothing is used", 8192, 0, 1024},
		{"little is used", 8192, 100, 1024},
		{"a quarter is used", 8192, 2048, 4608},
		{"less than a quarter could be had", 8192, 3000, 8192},
		{"all is used", 8192, 8000, 8192},
		{"unknown use", 8192, 1 << 40, 8192},
		{"at the floor", 1024, 10, 1024},
		{"what the guest could not unplug", 1032, 10, 1032},
		{"one step above the floor", 1152, 10, 1024},
	}
	for _, tt := range tests {
		if got := b.Shrunk(tt.size, tt.used); got != tt.want {
			t.Errorf("%s: %d MiB with %d used shrinks to %d, want %d", tt.name, tt.size, tt.used, got, tt.want)
		}
	}
}

// TestNoSwing: what a machine shrinks to is enough for what it uses, so that it
// does not grow again at once, and a grown one is not shrunk for its size.
func TestNoSwing(t *testing.T) {
	b := Bounds{FloorMiB: 512, LimitMiB: 32768}
	for size := int64(512); size <= 32768; size += StepMiB {
		for used := int64(0); used < guestapi.UserMemoryMiB(size); used += 61 {
			small := b.Shrunk(size, used)
			if small > size || small < b.FloorMiB {
				t.Fatalf("%d MiB with %d used shrinks to %d", size, used, small)
			}
			if again := b.Grown(small, used); small < size && again != small {
				t.Fatalf("%d MiB with %d used shrinks to %d and then grows to %d", size, used, small, again)
			}
			large := b.Grown(size, used)
			if large > size && b.Shrunk(large, used) != large {
				t.Fatalf("%d MiB with %d used grows to %d and then shrinks", size, used, large)
			}
		}
	}
}

func TestLendable(t *testing.T) {
	const text = "MemTotal:       16777216 kB\nMemFree:          100000 kB\nMemAvailable:    8388608 kB\nHugePages_Total:       0\n"
	if got, err := LendableMiB(text); got != 8192-1024 || err != nil {
		t.Errorf("%d, %v", got, err)
	}
	if got, err := LendableMiB("MemTotal: 16777216 kB\nMemAvailable: 1024 kB\n"); got != 0 || err != nil {
		t.Errorf("of a host that is full: %d, %v", got, err)
	}
	for _, bad := range []string{"", "MemTotal: 1024 kB\n", "MemTotal: x kB\nMemAvailable: 1 kB\n"} {
		if got, err := LendableMiB(bad); err == nil {
			t.Errorf("%q: %d", bad, got)
		}
	}
}
