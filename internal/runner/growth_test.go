package runner

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/shim/growth"
)

func hostOf(t *testing.T, mib int64) *Runner {
	t.Helper()
	r := &Runner{log: slog.New(slog.DiscardHandler), sandboxes: map[skerry.SandboxID]*sandbox{},
		ledger: growth.NewLedger(filepath.Join(t.TempDir(), memoryLedger))}
	if err := r.ledger.Open(mib); err != nil {
		t.Fatal(err)
	}
	return r
}

func job(id skerry.SandboxID, mib int64) bus.CreateJob {
	return bus.CreateJob{SandboxID: id, Resources: skerry.Resources{MemoryMiB: mib, MemoryMaxMiB: 32768}}
}

// TestGuaranteedIsNotLent: what machines have borrowed is not guaranteed to
// others until they give it back.
func TestGuaranteedIsNotLent(t *testing.T) {
	r := hostOf(t, 4096)
	a, err := r.reserve(job("a", 1024), false)
	if err != nil {
		t.Fatal(err)
	}
	if lent, err := r.ledger.Borrow("m", 32768, 1<<30); lent != 3072 || err != nil {
		t.Fatalf("lent %d, %v, want all of the rest", lent, err)
	}
	if _, err := r.reserve(job("b", 512), false); !errors.Is(err, errNoRoom) {
		t.Errorf("what is lent was guaranteed: %v", err)
	}
	// A job that only this host can do is failed, not put back; it holds nothing.
	mine, err := r.reserve(job("c", 512), true)
	if mine == nil || !errors.Is(err, errNoRoom) || r.reserved != 1024 {
		t.Errorf("reserved %d, %v", r.reserved, err)
	}
	r.forget(mine)
	if lent, err := r.ledger.Borrow("m", 2048, 1<<30); lent != 2048 || err != nil {
		t.Fatal(lent, err)
	}
	b, err := r.reserve(job("b", 1024), false)
	if err != nil {
		t.Fatal(err)
	}
	r.forget(a)
	r.forget(b)
	if r.reserved != 0 {
		t.Errorf("%d MiB are still reserved", r.reserved)
	}
	// One sandbox a host takes however small it is.
	if _, err := r.reserve(job("large", 8192), false); err != nil {
		t.Errorf("a first sandbox that is larger than the host: %v", err)
	}
}

// TestReplaceKeepsCount: stop gives the memory back, start wants it again.
func TestReplaceKeepsCount(t *testing.T) {
	r := hostOf(t, 2048)
	run, err := r.reserve(job("a", 1024), false)
	if err != nil {
		t.Fatal(err)
	}
	kept := &sandbox{id: "a", kept: skerry.StatusStopped}
	if err := r.replace(run, kept); err != nil || r.reserved != 0 {
		t.Fatalf("reserved %d, %v", r.reserved, err)
	}
	if _, err := r.reserve(job("b", 1536), false); err != nil {
		t.Fatal(err)
	}
	again := &sandbox{id: "a", memMiB: 1024}
	if err := r.replace(kept, again); !errors.Is(err, errNoRoom) || r.current("a") != kept || r.reserved != 1536 {
		t.Errorf("a start without room: %v, reserved %d", err, r.reserved)
	}
	if err := r.replace(run, again); err == nil {
		t.Error("a life that is over was replaced")
	}
}

func TestMemoryLimit(t *testing.T) {
	for _, tt := range []struct {
		res  skerry.Resources
		want int64
	}{
		{skerry.Resources{MemoryMiB: 1024, MemoryMaxMiB: 32768}, 32768},
		{skerry.Resources{MemoryMiB: 1024, MemoryMaxMiB: 1024}, 0},
		{skerry.Resources{MemoryMiB: 1024}, 0}, // made by an older server
	} {
		if got := memoryLimitMiB(tt.res); got != tt.want {
			t.Errorf("%+v may grow to %d, want %d", tt.res, got, tt.want)
		}
		if fixed := activation("sbx_a", bus.CreateJob{Resources: tt.res}).FixedMemory; fixed != (tt.want == 0) {
			t.Errorf("%+v: the guest is told fixed %v", tt.res, fixed)
		}
	}
}
