package pid1

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// FreezeProcesses stops all of the user's processes and returns when none runs.
// If some do not stop within deviceTimeout, because the kernel does not let go
// of them, the rest stays stopped until ThawProcesses.
func (s *System) FreezeProcesses(ctx context.Context) error {
	if err := write(s.groups.user, "cgroup.freeze", "1"); err != nil {
		return err
	}
	return waitFor(ctx, "processes to stop", s.groups.frozen)
}

// ThawProcesses lets the user's processes go on.
func (s *System) ThawProcesses() error { return write(s.groups.user, "cgroup.freeze", "0") }

// frozen reports whether no process of the user's group runs, those in groups
// below it included (cgroup-v2.rst, cgroup.events).
func (g *groups) frozen() (bool, error) {
	text, err := g.user.ReadFile("cgroup.events")
	if err != nil {
		return false, err
	}
	return strings.Contains(string(text), "frozen 1\n"), nil
}

// diskFreezer holds back writes to the writable disk. The agent itself writes
// there only on request of a client.
type diskFreezer struct {
	mu     sync.Mutex
	frozen bool        // guarded by mu
	timer  *time.Timer // guarded by mu; thaws
}

// FreezeDisk writes all that is dirty to the writable disk and holds back
// writes until ThawDisk, at most for limit. On a frozen disk it only begins the
// limit anew.
func (s *System) FreezeDisk(limit time.Duration) error {
	d := &s.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.frozen {
		d.timer.Reset(limit)
		return nil
	}
	// Most is written before writes are held back.
	if err := unix.Syncfs(s.scratchFD); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if err := s.freezeScratch(); err != nil {
		return err
	}
	d.frozen = true
	d.timer = time.AfterFunc(limit, func() {
		if err := s.ThawDisk(); err != nil {
			s.log.Error("thaw disk", "err", err)
		}
	})
	return nil
}

// ThawDisk lets writes to the disk go on.
func (s *System) ThawDisk() error {
	d := &s.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.frozen {
		return nil
	}
	const fithaw = 0xc0045878 // FITHAW, linux/fs.h
	// EINVAL: the user has thawed it.
	if err := unix.IoctlSetInt(s.scratchFD, fithaw, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("FITHAW: %w", err)
	}
	d.timer.Stop()
	d.frozen = false
	return nil
}

// freezeScratch brings the file system on the disk into the state it has when
// it is not mounted, but for what ext4 notes of a mount without a journal.
func (s *System) freezeScratch() error {
	const fifreeze = 0xc0045877 // FIFREEZE, linux/fs.h
	// EBUSY: the user has frozen it.
	if err := unix.IoctlSetInt(s.scratchFD, fifreeze, 0); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("FIFREEZE: %w", err)
	}
	return nil
}
