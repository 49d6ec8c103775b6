//go:build linux

package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// copySparse makes dst, a new file, a copy of src: as a clone that shares the
// blocks where the file system can, else by copying what is data in src.
func copySparse(dst, src *os.File) error {
	if err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())); err == nil {
		return nil
	}
	info, err := src.Stat()
	if err != nil {
		return err
	}
	if err := dst.Truncate(info.Size()); err != nil {
		return fmt.Errorf("set length: %w", err)
	}
	return eachData(src, func(start, end int64) error {
		if err := copyRange(dst, src, start, end); err != nil {
			return fmt.Errorf("copy data: %w", err)
		}
		return nil
	})
}

// eachData calls f for each part of a file that is not a hole, in order
// (lseek(2)).
func eachData(src *os.File, f func(start, end int64) error) error {
	for off := int64(0); ; {
		start, err := unix.Seek(int(src.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // no data from off on
		}
		if err != nil {
			return fmt.Errorf("find data: %w", err)
		}
		end, err := unix.Seek(int(src.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find hole: %w", err)
		}
		if err := f(start, end); err != nil {
			return err
		}
		off = end
	}
}

func copyRange(dst, src *os.File, start, end int64) error {
	from, to := start, start
	for from < end {
		n, err := unix.CopyFileRange(int(src.Fd()), &from, int(dst.Fd()), &to, int(end-from), 0)
		switch {
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			_, err := io.Copy(io.NewOffsetWriter(dst, from), io.NewSectionReader(src, from, end-from))
			return err
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}

// Usage returns the bytes that a file takes on its file system, holes not
// counted.
func Usage(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("usage of %s: %w", path, errors.ErrUnsupported)
	}
	return st.Blocks * 512, nil // in units of 512 bytes, stat(2)
}
