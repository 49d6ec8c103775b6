package shim

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// StartTicks returns the start time of a process in clock ticks since boot
// (proc_pid_stat(5), field 22). With the pid it names a process for good.
func StartTicks(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The command name, field 2, may hold spaces and parentheses.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return 0, fmt.Errorf("process %d: malformed stat", pid)
	}
	fields := bytes.Fields(b[i+1:])
	const start = 22 - 3 // fields[0] is field 3
	if len(fields) <= start {
		return 0, fmt.Errorf("process %d: malformed stat", pid)
	}
	if fields[0][0] == 'Z' {
		return 0, os.ErrProcessDone
	}
	return strconv.ParseUint(string(fields[start]), 10, 64)
}

// Alive reports whether the process that was started at ticks still runs.
func Alive(pid int, ticks uint64) bool {
	if pid <= 0 {
		return false
	}
	now, err := StartTicks(pid)
	return err == nil && now == ticks
}
