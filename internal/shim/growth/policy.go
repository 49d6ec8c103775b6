// Package growth decides how much memory a machine has beyond what it is
// guaranteed: Bounds says what it should have, Ledger what its host can lend.
package growth

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"skerry.dev/skerry/internal/guestapi"
)

// StepMiB is the unit in which machines grow and shrink: what Linux plugs at once
// (the memory section of x86-64).
const StepMiB = 128

// minGrowthMiB is the least a machine grows by, so that a small one that wants
// much is soon there.
const minGrowthMiB = 512

// Bounds are the memory a machine is guaranteed, and the limit it may grow to,
// in MiB.
type Bounds struct{ FloorMiB, LimitMiB int64 }

// Grown is the size that a machine of sizeMiB should grow to when its user's
// processes were slowed down for want of memory and hold usedMiB that the kernel
// cannot take from them. Where they hold little, it was the cache of files that
// was full, and the kernel made room in it: the size is right as it is.
func (b Bounds) Grown(sizeMiB, usedMiB int64) int64 {
	if usedMiB < guestapi.UserMemoryMiB(sizeMiB)*3/4 {
		return sizeMiB
	}
	return b.clamp(max(sizeMiB+sizeMiB/2, sizeMiB+minGrowthMiB))
}

// Shrunk is the size that a machine should shrink to when for a while its user's
// processes held at most usedMiB: twice that, and room for the kernel and the cache
// of files. It is the present size where less than a quarter, or than a step,
// would be had back.
func (b Bounds) Shrunk(sizeMiB, usedMiB int64) int64 {
	want := b.clamp(2*usedMiB + minGrowthMiB)
	if sizeMiB-want < StepMiB || want > b.FloorMiB && want > sizeMiB*3/4 {
		return sizeMiB
	}
	return want
}

// clamp rounds up to whole steps beyond the floor, within the bounds.
func (b Bounds) clamp(mib int64) int64 {
	beyond := max(0, mib-b.FloorMiB)
	return min(b.FloorMiB+(beyond+StepMiB-1)/StepMiB*StepMiB, max(b.LimitMiB, b.FloorMiB))
}

// hostReserve is the part of the host's memory, one in so many, that is not
// lent: what programs of the host need at once, and the hypervisors themselves.
const hostReserve = 16

// LendableMiB is how much of the host's memory can be lent now, by the text of
// /proc/meminfo (proc_meminfo(5)).
func LendableMiB(meminfo string) (int64, error) {
	var total, available int64
	for line := range strings.Lines(meminfo) {
		for key, to := range map[string]*int64{"MemTotal:": &total, "MemAvailable:": &available} {
			value, ok := strings.CutPrefix(line, key)
			if !ok {
				continue
			}
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/meminfo: %s %w", key, err)
			}
			*to = kib >> 10
		}
	}
	if total == 0 || available == 0 {
		return 0, errors.New("/proc/meminfo tells no MemTotal or MemAvailable")
	}
	return max(0, available-total/hostReserve), nil
}
