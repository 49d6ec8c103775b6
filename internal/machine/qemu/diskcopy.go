package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
)

// The names of what a copy of the writable disk makes in QEMU: a block node, a
// bitmap and a job, and a descriptor set.
const (
	copyName = "copy-scratch"
	copySet  = 5
)

// diskCopy copies the writable disk in two steps. This process copies the
// file while the guest writes to it and QEMU notes where; QEMU then copies
// those places as they are at the cut, each before the guest's next write to
// it. It implements machine.DiskCopy.
type diskCopy struct {
	m    *instance
	node string // of the disk
	dst  *os.File
	undo []func(context.Context) error

	mu     sync.Mutex // held by Cut, Wait and Close where they talk to QEMU
	job    bool       // it was started and is not dismissed
	closed chan struct{}
	once   sync.Once
	err    error // of Close
}

// CopyScratch implements machine.Machine. It returns when all that the disk
// held at its begin is copied.
func (m *instance) CopyScratch(ctx context.Context, dst *os.File) (machine.DiskCopy, error) {
	disk := m.disk()
	if disk == nil {
		return nil, skerry.Errorf(skerry.CodeInternal, "copy scratch disk: the machine has none")
	}
	m.mu.Lock()
	again := m.copying
	m.copying = true
	m.mu.Unlock()
	if again {
		return nil, skerry.Errorf(skerry.CodeConflict, "copy scratch disk: another copy is being made")
	}
	c := &diskCopy{m: m, node: disk.node, dst: dst, closed: make(chan struct{})}
	err := c.begin(ctx, disk.file)
	if err == nil {
		return c, nil
	}
	err = errors.Join(err, c.Close())
	if ctx.Err() != nil {
		return nil, skerry.Errorf(codeOf(ctx), "copy scratch disk: %w", err)
	}
	return nil, asError("copy scratch disk", err)
}

func (c *diskCopy) begin(ctx context.Context, disk *os.File) error {
	size, err := scratchSize(disk)
	if err != nil {
		return err
	}
	if fi, err := c.dst.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Size() != 0 {
		return errors.Join(errors.New("the copy must be an empty regular file"), err)
	}
	if err := c.dst.Truncate(size); err != nil {
		return err
	}
	if err := c.attach(ctx); err != nil {
		return err
	}
	return copyData(ctx, c.dst, disk, size)
}

// attach gives QEMU the copy, as a block node, and has it note writes.
func (c *diskCopy) attach(ctx context.Context) error {
	mon := c.m.monitor
	steps := []struct{ do, undo func(context.Context) error }{{
		func(ctx context.Context) error { return mon.AddFD(ctx, copySet, c.dst) },
		func(ctx context.Context) error { return mon.RemoveFD(ctx, copySet) },
	}, {
		func(ctx context.Context) error { return mon.BlockdevAdd(ctx, c.target()) },
		func(ctx context.Context) error { return mon.BlockdevDel(ctx, copyName) },
	}, {
		func(ctx context.Context) error { return mon.AddBitmap(ctx, c.node, copyName) },
		func(ctx context.Context) error { return mon.RemoveBitmap(ctx, c.node, copyName) },
	}}
	for _, s := range steps {
		if err := c.m.request(ctx, "disk copy", s.do); err != nil {
			return err
		}
		c.undo = append(c.undo, s.undo)
	}
	return nil
}

// target is the copy's block node. It is never flushed: QEMU flushes all disks
// when it stops, and the guest would wait for the whole copy to reach the
// host's disk.
func (c *diskCopy) target() map[string]any {
	unsafe := map[string]any{"no-flush": true}
	return map[string]any{
		"driver": "raw", "node-name": copyName, "discard": "unmap", "detect-zeroes": "unmap", "cache": unsafe,
		"file": map[string]any{"driver": "file", "filename": fdset(copySet), "locking": "off", "discard": "unmap", "cache": unsafe},
	}
}

// Cut implements machine.DiskCopy.
func (c *diskCopy) Cut(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed() || c.job {
		return skerry.Errorf(skerry.CodeInternal, "cut disk copy: it was cut or closed already")
	}
	return c.m.request(ctx, "cut disk copy", func(ctx context.Context) error {
		select {
		case <-c.m.copied: // the end of an earlier copy
		default:
		}
		err := c.m.monitor.Backup(ctx, copyName, c.node, copyName, copyName)
		c.job = err == nil || ctx.Err() != nil // cancelled, it may have begun
		return err
	})
}

// Wait implements machine.DiskCopy.
func (c *diskCopy) Wait(ctx context.Context) error {
	c.mu.Lock()
	started := c.job
	c.mu.Unlock()
	if !started {
		return skerry.Errorf(skerry.CodeInternal, "wait for disk copy: it was not cut, or is over")
	}
	select {
	case <-c.m.copied:
	case <-c.closed:
		return skerry.Errorf(skerry.CodeConflict, "wait for disk copy: it was closed")
	case <-c.m.monitor.Done():
		return skerry.Errorf(skerry.CodeUnavailable, "wait for disk copy: %w", c.m.monitor.Err())
	case <-ctx.Done():
		return skerry.Errorf(codeOf(ctx), "wait for disk copy: %w", context.Cause(ctx))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.dismiss(ctx); err != nil {
		return asError("copy scratch disk", err)
	}
	if err := punchHoles(c.dst); err != nil {
		return asError("copy scratch disk", err)
	}
	return nil
}

// dismiss forgets the concluded job and returns its error.
func (c *diskCopy) dismiss(ctx context.Context) error {
	return c.m.request(ctx, "disk copy", func(ctx context.Context) error {
		jobs, err := c.m.monitor.Jobs(ctx)
		if err != nil {
			return err
		}
		for _, j := range jobs {
			if j.ID != copyName {
				continue
			}
			if err := c.m.monitor.DismissJob(ctx, copyName); err != nil {
				return err
			}
			if j.Error != "" {
				err = jobError(j.Error)
			}
		}
		c.job = false
		return err
	})
}

// jobError is what QEMU says of a job that failed: strerror(3) of the cause, of
// which only a full disk is told apart.
func jobError(text string) error {
	if strings.Contains(strings.ToLower(text), unix.ENOSPC.Error()) {
		return unix.ENOSPC
	}
	return errors.New(text)
}

func (c *diskCopy) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// Close implements machine.DiskCopy. Of a machine that has ended there is
// nothing to clear up.
func (c *diskCopy) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err = c.detach()
		c.m.mu.Lock()
		c.m.copying = false
		c.m.mu.Unlock()
	})
	return c.err
}

func (c *diskCopy) detach() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*requestTimeout)
	defer cancel()
	var err error
	if c.job {
		err = c.cancel(ctx)
	}
	for i := len(c.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, c.undo[i](ctx))
	}
	if c.m.monitorGone() {
		return nil
	}
	if err == nil {
		// While the copy is made, a write of the guest waits for the old
		// content to be saved first. If there was no room for that, there is
		// no need for it now.
		err = c.m.Retry(ctx)
	}
	if err != nil {
		return asError("end disk copy", err)
	}
	return nil
}

// cancel ends the job and waits for its end.
func (c *diskCopy) cancel(ctx context.Context) error {
	if err := c.m.monitor.CancelJob(ctx, copyName); err != nil && ctx.Err() != nil {
		return err
	} // else it has concluded already, or was never started
	jobs, err := c.m.monitor.Jobs(ctx)
	if err != nil || len(jobs) == 0 {
		return err
	}
	if jobs[0].Status != "concluded" {
		select {
		case <-c.m.copied:
		case <-c.m.monitor.Done():
			return c.m.monitor.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	_ = c.dismiss(ctx) // its error is that it was cancelled
	return nil
}

// copyData copies what src has data of to the empty dst of the same size.
func copyData(ctx context.Context, dst, src *os.File, size int64) error {
	for at := int64(0); at < size; {
		start, end, err := nextData(src, at, size)
		if err != nil {
			return fmt.Errorf("find data: %w", err)
		}
		for at = start; at < end; {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			n, err := copySome(dst, src, at, min(end-at, 16<<20))
			if err != nil {
				return fmt.Errorf("copy data: %w", err)
			}
			at += n
		}
	}
	return nil
}

// copySome copies up to n bytes, in the kernel where that can
// (copy_file_range(2)).
func copySome(dst, src *os.File, at, n int64) (int64, error) {
	from, to := at, at
	done, err := unix.CopyFileRange(int(src.Fd()), &from, int(dst.Fd()), &to, int(n), 0)
	switch {
	case errors.Is(err, unix.EINTR):
		return 0, nil
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		return io.Copy(io.NewOffsetWriter(dst, at), io.NewSectionReader(src, at, n))
	case err == nil && done == 0:
		return 0, io.ErrUnexpectedEOF
	}
	return int64(done), err
}

// punchHoles gives back the blocks under what QEMU has zeroed: it keeps them,
// marked as unwritten.
func punchHoles(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	for at := int64(0); at < fi.Size(); {
		start, end, err := nextData(f, at, fi.Size())
		if err != nil {
			return err
		}
		if start > at {
			err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, start-at)
			if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
				return err
			}
		}
		at = end
	}
	return nil
}
