package pid1

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"skerry.dev/skerry/internal/guestapi"
)

// Stats returns the machine's counters; Processes is left to the caller.
func (s *System) Stats() (guestapi.Stats, error) {
	var out guestapi.Stats
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return out, err
	}
	total, available := meminfo(string(text), "MemTotal"), meminfo(string(text), "MemAvailable")
	out.MemoryTotalMiB, out.MemoryUsedMiB = total>>10, (total-available)>>10
	if !s.scratchMounted {
		return out, nil
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(s.scratchFD, &fs); err != nil {
		return out, fmt.Errorf("writable disk: %w", err)
	}
	out.DiskTotalMiB = int64(fs.Blocks) * fs.Bsize >> 20
	out.DiskUsedMiB = int64(fs.Blocks-fs.Bfree) * fs.Bsize >> 20
	return out, nil
}

// meminfo returns a value of /proc/meminfo in KiB, 0 if there is none.
func meminfo(text, key string) int64 {
	for line := range strings.Lines(text) {
		value, ok := strings.CutPrefix(line, key+":")
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		if err == nil {
			return n
		}
	}
	return 0
}

// Kernel returns the running kernel's version.
func Kernel() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", err
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}
