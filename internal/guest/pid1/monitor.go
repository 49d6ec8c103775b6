package pid1

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// monitorSlack is how late, in nanoseconds, the runtime's monitor thread may
// wake: a tick of the kernel's clock.
//
// While any goroutine runs, that thread looks every 20 µs whether one has held
// a processor for 10 ms or sits in a system call. On a small machine each look
// is two switches of the only processor, and more than half of what an exec
// costs under emulation. With this slack (PR_SET_TIMERSLACK, prctl(2)) it looks
// once a tick, so a goroutine in a long system call gives its processor away
// after 4 ms at the latest.
const monitorSlack = "4000000"

// calmMonitor gives the monitor thread its slack. Threads that it starts have it
// too; package spawn sees to it that no process of the sandbox does.
func (s *System) calmMonitor(context.Context) error {
	tid, err := monitorThread()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join("/proc", strconv.Itoa(tid), "timerslack_ns"), []byte(monitorSlack), 0)
}

// monitorThread returns the number of this process's monitor thread: it is the
// first that the Go runtime starts.
func monitorThread() (int, error) {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0, err
	}
	tids := make([]int, 0, len(entries))
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			return 0, err
		}
		tids = append(tids, tid)
	}
	slices.Sort(tids) // the first is the process itself
	if len(tids) < 2 {
		return 0, errors.New("the runtime has no monitor thread")
	}
	return tids[1], nil
}
