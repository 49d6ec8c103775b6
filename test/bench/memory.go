package main

import (
	"context"
	"errors"
	"fmt"
	"os"
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
		hypervisor, shim, err := s.pss(id)
		if err != nil {
			both.fail(err)
			continue
		}
		both.addValue(hypervisor + shim)
		shims.addValue(shim)
	}
	both.note = fmt.Sprintf("the host's available memory fell by %s MiB each", number((before-after)/clones))
	b.finish(both, shims)
	return s.deleteAll(ctx)
}

// pss returns the proportional set sizes, in MiB, of a machine's processes.
func (s *server) pss(id skerry.MachineID) (hypervisor, shim float64, err error) {
	st, err := s.machineStatus(id)
	if err != nil {
		return 0, 0, err
	}
	if st.MachinePID == 0 || st.PID == 0 {
		return 0, 0, fmt.Errorf("machine %s has no processes: %+v", id, st)
	}
	if hypervisor, err = processPSS(st.MachinePID); err != nil {
		return 0, 0, err
	}
	shim, err = processPSS(st.PID)
	return hypervisor, shim, err
}

func processPSS(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	return kibField(string(data), "Pss:")
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
