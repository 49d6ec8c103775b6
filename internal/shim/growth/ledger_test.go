package growth

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"skerry.dev/skerry"
)

func open(t *testing.T, hostMiB int64) Ledger {
	t.Helper()
	l := NewLedger(filepath.Join(t.TempDir(), "ledger"))
	if err := l.Open(hostMiB); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l Ledger) read(t *testing.T) (b book) {
	t.Helper()
	if err := l.update(func(now *book) error { b = *now; return nil }); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestLedger(t *testing.T) {
	const plenty = 1 << 30
	l := open(t, 10240)
	guarantee := func(mib int64, forced bool) error { return l.Guarantee(mib, forced) }
	borrow := func(id skerry.MachineID, want, available, lent int64) {
		t.Helper()
		if got, err := l.Borrow(id, want, available); got != lent || err != nil {
			t.Errorf("%s asks for %d MiB and gets %d, %v, want %d", id, want, got, err, lent)
		}
	}
	if err := guarantee(4096, false); err != nil {
		t.Fatal(err)
	}
	borrow("a", 2048, plenty, 2048)
	borrow("b", 8192, plenty, 4096) // what is left
	borrow("c", 512, plenty, 0)
	borrow("b", 8192, plenty, 4096)
	if err := guarantee(4097, false); !errors.Is(err, ErrNoRoom) {
		t.Errorf("what is lent was guaranteed: %v", err)
	}
	if b := l.read(t); b.GuaranteedMiB != 4096 {
		t.Errorf("a refused guarantee was written: %+v", b)
	}
	if err := guarantee(4000, false); err != nil {
		t.Errorf("a lower guarantee: %v", err)
	}
	borrow("c", 512, plenty, 0) // 96 MiB are less than a step
	if err := guarantee(5000, true); err != nil {
		t.Errorf("forced: %v", err)
	}
	borrow("a", 4096, plenty, 2048) // nothing left: keeps what it has
	borrow("b", 1024, plenty, 1024) // gives back
	borrow("a", 4096, 300, 2048+256)
	borrow("a", 4096, -5, 2048+256)
	if err := l.Return("b"); err != nil {
		t.Error(err)
	}
	if err := l.Record("d", 1<<20); err != nil { // restored with more than there is
		t.Error(err)
	}
	borrow("c", 512, plenty, 0)
	if err := l.Keep(func(id skerry.MachineID) bool { return id == "a" }); err != nil {
		t.Error(err)
	}
	if b := l.read(t); len(b.LentMiB) != 1 || b.LentMiB["a"] != 2304 {
		t.Errorf("book %+v, want only what a has", b)
	}
	// The next life of the runner: machines keep what they have.
	if err := l.Open(20480); err != nil {
		t.Fatal(err)
	}
	if b := l.read(t); b.HostMiB != 20480 || b.GuaranteedMiB != 0 || b.LentMiB["a"] != 2304 {
		t.Errorf("book after a restart %+v", b)
	}
}

// TestLedgerDamaged: nothing is lent by a book that cannot be read, and a new
// life of the runner begins a new one.
func TestLedgerDamaged(t *testing.T) {
	l := open(t, 1024)
	for _, text := range []string{"", "{", `{"host_mib":"x"}`, `[]`} {
		if err := os.WriteFile(l.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if lent, err := l.Borrow("a", 128, 1<<20); err == nil || lent != 0 {
			t.Errorf("%q lends %d", text, lent)
		}
		if err := l.Open(1024); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if lent, err := l.Borrow("a", 128, 1<<20); err != nil || lent != 128 {
			t.Errorf("after %q: %d, %v", text, lent, err)
		}
	}
	if _, err := NewLedger(filepath.Join(t.TempDir(), "none")).Borrow("a", 128, 1<<20); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a ledger that was never opened: %v", err)
	}
}

// TestLedgerManyAtOnce: together no more is lent and guaranteed than there is.
func TestLedgerManyAtOnce(t *testing.T) {
	const host, users = 100 * StepMiB, 8
	l := open(t, host)
	var wg sync.WaitGroup
	for i := range users {
		wg.Go(func() {
			id := skerry.MachineID(fmt.Sprint("m", i))
			for n := range 30 {
				if _, err := l.Borrow(id, int64(n%7)*5*StepMiB, 1<<30); err != nil {
					t.Error(err)
				}
				if err := l.Guarantee(int64(n)*StepMiB, false); err != nil && !errors.Is(err, ErrNoRoom) {
					t.Error(err)
				}
				if b := l.read(t); b.freeMiB() < 0 {
					t.Errorf("more than there is: %+v", b)
				}
			}
		})
	}
	wg.Wait()
}
