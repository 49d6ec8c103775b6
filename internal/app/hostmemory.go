package app

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// hostMemoryMiB is the host's memory (proc_meminfo(5), MemTotal).
func hostMemoryMiB() (int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		rest, ok := strings.CutPrefix(sc.Text(), "MemTotal:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/meminfo: %w", err)
		}
		return kib / 1024, nil
	}
	return 0, fmt.Errorf("/proc/meminfo: no MemTotal")
}
