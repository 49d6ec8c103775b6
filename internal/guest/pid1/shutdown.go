package pid1

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"skerry.dev/skerry/internal/guest/spawn"
)

// killTimeout bounds the wait for killed processes: one in uninterruptible
// sleep must not keep the machine.
const killTimeout = 5 * time.Second

// Shutdown ends all processes (TERM, after grace KILL), writes everything to
// the disk and makes it read-only.
func (s *System) Shutdown(ctx context.Context, grace time.Duration) error {
	if !s.scratchMounted {
		return nil // nothing ran, nothing was written
	}
	if err := endProcesses(ctx, grace); err != nil {
		return fmt.Errorf("end processes: %w", err)
	}
	unix.Sync()
	if err := remountReadOnly("/"); err != nil {
		return err
	}
	return s.remountScratch()
}

func endProcesses(ctx context.Context, grace time.Duration) error {
	entries, err := os.ReadDir(cgroupUser)
	if err != nil {
		return err
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		limit := grace
		if sig == syscall.SIGKILL {
			limit = killTimeout
		}
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			err := spawn.SignalAll(filepath.Join(cgroupUser, e.Name()), sig)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		if waitEmpty(ctx, limit) {
			return nil
		}
	}
	return fmt.Errorf("still there %v after KILL", killTimeout)
}

// waitEmpty waits until no user process is left, at most limit.
func waitEmpty(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := waitFor(ctx, "processes to end", func() (bool, error) { return spawn.Empty(cgroupUser), nil })
	return err == nil
}

func remountReadOnly(path string) error {
	if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("remount %s read-only: %w", path, err)
	}
	return nil
}

// remountScratch makes the writable disk itself read-only, so that its journal
// is empty. Its mount is outside the sandbox's root.
func (s *System) remountScratch() error {
	if err := unix.Fchdir(s.scratchFD); err != nil {
		return err
	}
	return remountReadOnly(".")
}
