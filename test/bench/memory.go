package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

const (
	clones   = 10
	idleTime = 10 * time.Second // before memory is read
)

// measureMemory makes clones of one template, lets each run a command and then
// idle, and reads the proportional set size of hypervisor and shim of each: a
// page that ten processes map counts a tenth for each (proc_pid_smaps(5)).
func (b *bench) measureMemory(ctx context.Context, s *server, name string, res *skerry.ResourcesRequest, promise *Promise) error {
	req := client.CreateSandbox{Resources: res}
	if err := b.warmUp(ctx, s, req); err != nil {
		return err
	}
	both := b.newSeries("memory", "PSS of an idle clone of %s, QEMU and shim, %d clones", name, clones)
	shims := b.newSeries("memory", "  of it the shim")
	both.unit, shims.unit, both.promise = "MiB", "MiB", promise
	before, err := availableMiB()
	if err != nil {
		return err
	}
	parts := []map[string]float64{}
	var machines []skerry.MachineID
	for range clones {
		a, err := b.createAndEcho(ctx, s, req)
		if err != nil {
			return errors.Join(err, s.deleteAll(context.WithoutCancel(ctx)))
		}
		machines = append(machines, a.machine)
	}
	if err := pause(ctx, idleTime); err != nil {
		return errors.Join(err, s.deleteAll(context.WithoutCancel(ctx)))
	}
	after, err := availableMiB()
	if err != nil {
		return err
	}
	for _, id := range machines {
		part, shim, err := s.pss(id)
		if err != nil {
			both.fail(err)
			continue
		}
		both.addValue(total(part) + shim)
		shims.addValue(shim)
		parts = append(parts, part)
	}
	typical := medians(parts)
	for _, kind := range slices.Sorted(maps.Keys(typical)) {
		both.note += fmt.Sprintf("%s %s MiB, ", kind, number(typical[kind]))
	}
	both.note += fmt.Sprintf("the host's available memory fell by %s MiB each", number((before-after)/clones))
	b.finish(both, shims)
	return s.deleteAll(ctx)
}

// pss returns the proportional set size, in MiB, of a machine's hypervisor by
// kind of memory, and of its shim.
func (s *server) pss(id skerry.MachineID) (hypervisor map[string]float64, shim float64, err error) {
	st, err := s.machineStatus(id)
	if err != nil {
		return nil, 0, err
	}
	if st.MachinePID == 0 || st.PID == 0 {
		return nil, 0, fmt.Errorf("machine %s has no processes: %+v", id, st)
	}
	smaps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", st.MachinePID))
	if err != nil {
		return nil, 0, err
	}
	if hypervisor, err = pssByKind(string(smaps)); err != nil {
		return nil, 0, err
	}
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", st.PID))
	if err != nil {
		return nil, 0, err
	}
	shim, err = kibField(string(rollup), "Pss:")
	return hypervisor, shim, err
}

// pssByKind adds up the proportional set sizes in proc_pid_smaps(5), in MiB.
func pssByKind(smaps string) (map[string]float64, error) {
	sizes := map[string]float64{}
	kind := ""
	for line := range strings.Lines(smaps) {
		fields := strings.Fields(line)
		switch {
		case len(fields) >= 5 && strings.Contains(fields[0], "-"):
			kind = kindOf(fields)
		case strings.HasPrefix(line, "Pss:"):
			mib, err := kibField(line, "Pss:")
			if err != nil {
				return nil, err
			}
			sizes[kind] += mib
		}
	}
	if len(sizes) == 0 {
		return nil, errors.New("a process without memory")
	}
	return sizes, nil
}

// kindOf tells what a mapping is, from the fields of its first line: address
// range, permissions, offset, device, inode, and a path if there is one.
func kindOf(fields []string) string {
	switch {
	case len(fields) > 5 && strings.HasPrefix(fields[5], "/memfd:"):
		return "guest RAM"
	case len(fields) > 5 && strings.HasPrefix(fields[5], "/"):
		return "program files"
	case fields[1] == "rwxp":
		return "translated code" // of software emulation
	}
	return "heap and stacks"
}

func total(parts map[string]float64) float64 {
	sum := 0.0
	for _, v := range parts {
		sum += v
	}
	return sum
}

// availableMiB is MemAvailable of proc_meminfo(5).
func availableMiB() (float64, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	return kibField(string(data), "MemAvailable:")
}

// kibField returns the value of a line like "Pss:   123 kB", in MiB.
func kibField(text, name string) (float64, error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == name && fields[2] == "kB" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("no line %q", name)
}
