package growth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
)

// Ledger is a file in which one host's memory is written down: what its runner has
// guaranteed to sandboxes, and what their machines have borrowed of the rest. It
// is locked for each entry, so that what is guaranteed is never lent, and what is
// lent is never guaranteed; a machine borrows whether the runner lives or not.
type Ledger struct{ path string }

// NewLedger returns the ledger in the file path, see Open.
func NewLedger(path string) Ledger { return Ledger{path} }

// ErrNoRoom: more memory is guaranteed or lent than would be left.
var ErrNoRoom = errors.New("not enough memory is left on this host")

type book struct {
	HostMiB       int64                      `json:"host_mib"` // to be guaranteed and lent together
	GuaranteedMiB int64                      `json:"guaranteed_mib"`
	LentMiB       map[skerry.MachineID]int64 `json:"lent_mib,omitempty"`
}

// freeMiB is neither guaranteed nor lent.
func (b *book) freeMiB() int64 {
	free := b.HostMiB - b.GuaranteedMiB
	for _, mib := range b.LentMiB {
		free -= mib
	}
	return free
}

// Open begins the ledger of a host that has hostMiB for sandboxes. What earlier
// machines have borrowed stays; nothing is guaranteed yet. A damaged file is
// begun anew.
func (l Ledger) Open(hostMiB int64) error {
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("memory ledger: %w", err)
	}
	defer f.Close()
	return locked(f, func(b *book, _ error) error {
		*b = book{HostMiB: hostMiB, LentMiB: b.LentMiB}
		return nil
	})
}

// Guarantee sets the memory that is guaranteed to all sandboxes together. It
// fails with ErrNoRoom, unless it is forced, if that is more than the host has and
// has not lent.
func (l Ledger) Guarantee(totalMiB int64, forced bool) error {
	return l.update(func(b *book) error {
		grown := totalMiB - b.GuaranteedMiB
		if grown > 0 && grown > b.freeMiB() && !forced {
			return ErrNoRoom
		}
		b.GuaranteedMiB = totalMiB
		return nil
	})
}

// Borrow lends a machine wantMiB in all, or what of that is there: not more than
// is free in the ledger, and not more than availableMiB beyond what it has
// already. It returns what is lent now, whole steps beyond what it was. A machine
// that wants less than it has gives the rest back.
func (l Ledger) Borrow(id skerry.MachineID, wantMiB, availableMiB int64) (lentMiB int64, err error) {
	err = l.update(func(b *book) error {
		has := b.LentMiB[id]
		lentMiB = wantMiB
		if more := wantMiB - has; more > 0 {
			if can := max(0, min(b.freeMiB(), availableMiB)); can < more {
				more = can / StepMiB * StepMiB
			}
			lentMiB = has + more
		}
		b.set(id, lentMiB)
		return nil
	})
	return lentMiB, err
}

// Record writes down what a machine has whether it is there or not: a restored
// machine comes with the memory it was saved with.
func (l Ledger) Record(id skerry.MachineID, lentMiB int64) error {
	return l.update(func(b *book) error { b.set(id, lentMiB); return nil })
}

// Return takes back what a machine has borrowed that is gone.
func (l Ledger) Return(id skerry.MachineID) error {
	return l.update(func(b *book) error { b.set(id, 0); return nil })
}

// Keep takes back what those machines have borrowed that are not kept.
func (l Ledger) Keep(kept func(skerry.MachineID) bool) error {
	return l.update(func(b *book) error {
		for id := range b.LentMiB {
			if !kept(id) {
				delete(b.LentMiB, id)
			}
		}
		return nil
	})
}

func (b *book) set(id skerry.MachineID, mib int64) {
	if mib <= 0 {
		delete(b.LentMiB, id)
		return
	}
	if b.LentMiB == nil {
		b.LentMiB = map[skerry.MachineID]int64{}
	}
	b.LentMiB[id] = mib
}

// update changes the book of a ledger that was opened.
func (l Ledger) update(change func(*book) error) error {
	f, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("memory ledger was not opened: %w", err)
	}
	if err != nil {
		return fmt.Errorf("memory ledger: %w", err)
	}
	defer f.Close()
	return locked(f, func(b *book, err error) error {
		if err != nil {
			return fmt.Errorf("memory ledger: %w", err)
		}
		return change(b)
	})
}

// maxBytes bounds the file; an entry takes about 40 bytes.
const maxBytes = 4 << 20

// locked changes the book in f while nobody else does; change is told if it
// could not be read. The lock goes with f.
func locked(f *os.File, change func(*book, error) error) error {
	if err := flock(f); err != nil {
		return fmt.Errorf("memory ledger: %w", err)
	}
	old, err := io.ReadAll(io.LimitReader(f, maxBytes))
	if err != nil {
		return fmt.Errorf("memory ledger: %w", err)
	}
	var b book
	damage := json.Unmarshal(old, &b)
	if err := change(&b, damage); err != nil {
		return err
	}
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	// One write, over all that was there: whoever is killed leaves the old
	// text or the new one. It need not outlive the host.
	if pad := len(old) - len(text); pad > 0 {
		text = append(text, bytes.Repeat([]byte{' '}, pad)...)
	}
	if bytes.Equal(text, old) {
		return nil
	}
	if _, err := f.WriteAt(text, 0); err != nil {
		return fmt.Errorf("memory ledger: %w", err)
	}
	return nil
}

func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("flock", err)
		}
	}
}
