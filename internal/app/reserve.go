package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
)

// The room on the disk that the server holds back, for its own records when
// sandboxes and images have filled the rest: with none, not even a delete could
// be recorded. Machines that stand still wait for more than that (package shim),
// so it is not theirs.
const (
	reserveBytes = 32 << 20
	reserveBelow = 256 << 10 // it is given up when so little is free, so that who filled the disk has stopped
	reserveAbove = 128 << 20 // it is taken again when so much is
	reservePause = 250 * time.Millisecond
)

// reserve is that room: a file without content.
type reserve struct {
	path string
	log  *slog.Logger
}

// keep takes and gives up the room as needed until ctx ends. The file stays.
func (r *reserve) keep(ctx context.Context) error {
	tick := time.NewTicker(reservePause)
	defer tick.Stop()
	told := false
	for {
		// A full disk may have room the next time, a system call that was
		// interrupted is repeated then.
		if err := r.look(); err != nil && !told && !skerry.DiskFull(err) && !errors.Is(err, unix.EINTR) {
			r.log.Warn("no room is held back for the server's records", "err", err)
			told = true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *reserve) look() error {
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	held, free := info.Size() > 0, int64(st.Bavail)*st.Bsize
	switch {
	case held && free < reserveBelow:
		r.log.Warn("the disk is full, the room held back for the server's records is given up", "bytes", info.Size())
		return f.Truncate(0)
	case !held && free >= reserveAbove:
		if err := unix.Fallocate(int(f.Fd()), 0, 0, reserveBytes); err != nil {
			return fmt.Errorf("fallocate: %w", errors.Join(err, f.Truncate(0)))
		}
	}
	return nil
}
