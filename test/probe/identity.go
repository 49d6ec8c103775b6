package main

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Identity is what must differ between machines, and their time.
type Identity struct {
	Random      string `json:"random"`
	UUID        string `json:"uuid"`
	BootID      string `json:"boot_id"`
	MachineID   string `json:"machine_id"`
	Hostname    string `json:"hostname"`
	UnixNano    int64  `json:"unix_nano"`
	MonotonicNS int64  `json:"monotonic_ns"`
	CPUs        int    `json:"cpus"`
	MemTotalKiB int64  `json:"mem_total_kib"`
}

func identity([]string) error {
	now := time.Now() // first, so that nothing delays it
	var id Identity
	id.UnixNano, id.MonotonicNS = now.UnixNano(), monotonic()
	random := make([]byte, 32)
	rand.Read(random)
	id.Random = hex.EncodeToString(random)
	id.UUID = firstLine("/proc/sys/kernel/random/uuid")
	id.BootID = firstLine("/proc/sys/kernel/random/boot_id")
	id.MachineID = firstLine("/etc/machine-id")
	var err error
	if id.Hostname, err = os.Hostname(); err != nil {
		return err
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return err
	}
	id.CPUs = set.Count()
	id.MemTotalKiB = meminfo("MemTotal")
	return printJSON(id)
}

func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail: the clock exists
	return ts.Nano()
}

func firstLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b))
}

// meminfo is a field of /proc/meminfo, in KiB.
func meminfo(field string) int64 {
	for line := range strings.Lines(firstLine("/proc/meminfo")) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return n
		}
	}
	return 0
}

// pause sleeps for a duration and prints how long that was by both clocks, in
// nanoseconds.
func pause(args []string) error {
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	wall, mono := time.Now().Round(0), monotonic()
	time.Sleep(d)
	return printJSON(map[string]int64{"wall_ns": int64(time.Now().Round(0).Sub(wall)), "monotonic_ns": monotonic() - mono})
}
