package pid1

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/guestapi"
)

// Pressure waits until the user's processes are slowed down for want of memory,
// or for at most limit if that is not 0, and says how things are.
func (s *System) Pressure(ctx context.Context, limit time.Duration) (guestapi.Pressure, error) {
	s.groups.waiting.Lock()
	defer s.groups.waiting.Unlock()
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	short, err := s.groups.waitHigh(ctx)
	if err != nil {
		return guestapi.Pressure{}, err
	}
	used, err := s.groups.used()
	return guestapi.Pressure{UsedMiB: used >> 20, Short: short}, err
}

// waitHigh waits until the user's processes have gone over memory.high since
// the last call that said so. The kernel wakes those that poll memory.events
// for POLLPRI, at most once in 10 ms.
func (g *groups) waitHigh(ctx context.Context) (bool, error) {
	f, err := g.user.Open("memory.events")
	if err != nil {
		return false, err
	}
	defer f.Close()
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return false, os.NewSyscallError("eventfd", err)
	}
	defer unix.Close(wake)
	// The deferred close comes after the function has run, if it does.
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only when it is readable already
	})
	defer func() {
		if !stop() {
			<-done
		}
	}()
	for {
		high, err := readKey(f, "high")
		if err != nil {
			return false, err
		}
		if high != g.seenHigh {
			g.seenHigh = high
			return true, nil
		}
		if ctx.Err() != nil {
			if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				return false, nil
			}
			return false, context.Cause(ctx)
		}
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}, {Fd: int32(wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return false, os.NewSyscallError("poll", err)
		}
	}
}

// used is how many bytes the user's processes hold that the kernel could not
// take from them.
func (g *groups) used() (int64, error) {
	current, err := g.user.ReadFile("memory.current")
	if err != nil {
		return 0, err
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(current)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("memory.current: %w", err)
	}
	stat, err := g.user.ReadFile("memory.stat")
	if err != nil {
		return 0, err
	}
	return max(0, used-reclaimable(string(stat))), nil
}

// reclaimable adds up what memory.stat says can be had back: pages of files, not
// those of tmpfs, which count as anonymous, and the kernel's caches.
func reclaimable(stat string) (bytes int64) {
	for line := range strings.Lines(stat) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch name {
		case "inactive_file", "active_file", "slab_reclaimable":
			n, err := strconv.ParseInt(value, 10, 64)
			if err == nil {
				bytes += n
			}
		}
	}
	return bytes
}

// readKey reads a value of a flat keyed file from its beginning, which also
// makes the next poll wait for what comes after.
func readKey(f *os.File, key string) (int64, error) {
	var buf [512]byte
	n, err := f.ReadAt(buf[:], 0)
	if n == 0 && err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(buf[:n])) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key+" "); ok {
			return strconv.ParseInt(value, 10, 64)
		}
	}
	return 0, fmt.Errorf("%s: no %q: %w", f.Name(), key, fs.ErrNotExist)
}
