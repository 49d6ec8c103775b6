package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Above these a host is not quiet: the share of its processors that is in use
// before anything is started, and the share that a hypervisor above it took away.
const (
	quietBusy  = 0.10
	quietSteal = 0.02
)

// Load is how much the host had to do.
type Load struct {
	Before    float64  `json:"loadavg_before"` // 1 minute, proc_loadavg(5)
	BusyShare float64  `json:"busy_before"`    // of all processors, over one second
	Steal     float64  `json:"steal_during"`   // share of the run taken by a hypervisor above
	Warnings  []string `json:"warnings,omitempty"`

	start cpuTicks
}

// cpuTicks are the first line of proc_stat(5), added up.
type cpuTicks struct{ total, idle, steal float64 }

func observeLoad(ctx context.Context) (Load, error) {
	var l Load
	var err error
	if l.Before, err = loadAverage(); err != nil {
		return l, err
	}
	first, err := readTicks()
	if err != nil {
		return l, err
	}
	if err := pause(ctx, time.Second); err != nil {
		return l, err
	}
	if l.start, err = readTicks(); err != nil {
		return l, err
	}
	total := l.start.total - first.total
	l.BusyShare = max(0, 1-(l.start.idle-first.idle)/max(total, 1))
	if l.BusyShare > quietBusy {
		l.Warnings = append(l.Warnings, fmt.Sprintf("the host is not quiet: %.0f %% of its %d processors were busy before the run (load average %.1f); the figures are too high",
			100*l.BusyShare, runtime.NumCPU(), l.Before))
	}
	return l, nil
}

// finish notes what can be told at the end only.
func (l *Load) finish() error {
	end, err := readTicks()
	if err != nil {
		return err
	}
	l.Steal = (end.steal - l.start.steal) / max(end.total-l.start.total, 1)
	if l.Steal > quietSteal {
		l.Warnings = append(l.Warnings, fmt.Sprintf("a hypervisor took %.0f %% of the processors' time away during the run; the figures are too high", 100*l.Steal))
	}
	return nil
}

func loadAverage() (float64, error) {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(data), " ")
	return strconv.ParseFloat(first, 64)
}

func readTicks() (cpuTicks, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTicks{}, err
	}
	return parseTicks(string(data))
}

// parseTicks reads "cpu user nice system idle iowait irq softirq steal guest
// guest_nice"; the last two are in user and nice already.
func parseTicks(stat string) (cpuTicks, error) {
	var t cpuTicks
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return t, fmt.Errorf("/proc/stat begins with %q", line)
	}
	for i, f := range fields[1:9] {
		v, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return t, fmt.Errorf("/proc/stat: %w", err)
		}
		t.total += v
		switch i {
		case 3, 4:
			t.idle += v
		case 7:
			t.steal = v
		}
	}
	return t, nil
}
