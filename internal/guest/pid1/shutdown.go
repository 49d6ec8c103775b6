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

// syncTimeout bounds the wait for file systems other than the disk's own.
const syncTimeout = 10 * time.Second

// Shutdown ends all processes (TERM, after grace KILL), writes everything to
// the disk and makes it read-only. It does the latter also when a process cannot
// be ended.
func (s *System) Shutdown(ctx context.Context, grace time.Duration) error {
	if !s.scratchMounted {
		return nil // nothing ran, nothing was written
	}
	err := endProcesses(ctx, grace)
	if err != nil {
		err = fmt.Errorf("end processes: %w", err)
	}
	return errors.Join(err, s.closeScratch())
}

// closeScratch writes everything to the disk and leaves its file system clean.
func (s *System) closeScratch() error {
	syncAll()
	if err := unix.Syncfs(s.scratchFD); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	err := s.remountScratch()
	if errors.Is(err, unix.EBUSY) {
		// The kernel itself has a file open, for a loop device or as swap space.
		// Frozen the disk is as clean.
		return s.freezeScratch()
	}
	return err
}

// syncAll writes what is dirty on all file systems, also those that the user
// mounted from files on the disk. One whose server is gone must not keep the
// machine.
func syncAll() {
	done := make(chan struct{})
	go func() {
		unix.Sync()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(syncTimeout):
	}
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
	err := poll(ctx, "processes to end", func() (bool, error) { return spawn.Empty(cgroupUser), nil })
	return err == nil
}

// remountScratch makes the writable disk read-only, so that its journal is
// empty. Its mount is outside the sandbox's root, which is an overlay of it and
// read-only with it.
func (s *System) remountScratch() error {
	if err := unix.Fchdir(s.scratchFD); err != nil {
		return err
	}
	if err := unix.Mount("", ".", "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("remount the disk read-only: %w", err)
	}
	return nil
}
