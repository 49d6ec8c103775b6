package skerry

import (
	"math"
	"strconv"
)

// Bounds of a sandbox's size. Sizes are mebibytes, CPUs are cores.
const (
	MinCPU     = 0.125
	DefaultCPU = 0.5
	MaxCPU     = 16.0

	MinMemoryMiB      = 512
	DefaultMemoryMiB  = 1024
	MaxMemoryMiB      = 32 * 1024
	MinMemoryLimitMiB = 256

	DefaultDiskMiB = 512
	MinDiskMiB     = 10 * 1024 // once any resource is set
	MaxDiskMiB     = 256 * 1024

	// memoryPerCoreMiB is the guaranteed memory that needs one more core.
	memoryPerCoreMiB = 8 * 1024
)

// ResourcesRequest is what a create asks for, in the units of the "Linux
// Sandboxes" page: cores and GiB. A nil field was omitted.
type ResourcesRequest struct {
	CPU       *float64 `json:"cpu,omitempty" doc:"Guaranteed CPU cores. Raised to 0.125 and to one core per 8 GiB of guaranteed memory."`
	Memory    *float64 `json:"memory,omitempty" doc:"Guaranteed memory in GiB. Raised to 0.5. Default 1."`
	Disk      *float64 `json:"disk,omitempty" doc:"Guaranteed writable disk in GiB. Default 0.5; at least 10 once cpu, memory or disk is set."`
	CPUMax    *float64 `json:"cpu_max,omitempty" doc:"CPU limit in cores, a multiple of 0.5."`
	MemoryMax *float64 `json:"memory_max,omitempty" doc:"Memory limit in GiB, 0.25 to 32. Default 32."`
	DiskMax   *float64 `json:"disk_max,omitempty" doc:"Writable disk limit in GiB."`
}

// Resources is the resolved size of a sandbox. A zero limit means that none
// was asked for.
type Resources struct {
	CPU          float64 `json:"cpu"` // cores, guaranteed
	MemoryMiB    int64   `json:"memory_mib"`
	DiskMiB      int64   `json:"disk_mib"`
	CPUMax       float64 `json:"cpu_max,omitempty"` // cores
	MemoryMaxMiB int64   `json:"memory_max_mib,omitempty"`
	DiskMaxMiB   int64   `json:"disk_max_mib,omitempty"`
}

// VCPUs is the number of virtual processors of the machine: the guaranteed
// cores, rounded up.
func (r Resources) VCPUs() int { return max(1, int(math.Ceil(r.CPU))) }

// Resolve applies the defaults, raises and refusals of the "Linux Sandboxes"
// page, parameter "resources". Errors are CodeInvalid and name the field, the
// rule and the bound.
func (q ResourcesRequest) Resolve() (Resources, error) {
	var r Resources
	mem, err := q.memory()
	if err != nil {
		return r, err
	}
	r.MemoryMiB, r.MemoryMaxMiB = mem.guaranteed, mem.limit
	if r.DiskMiB, r.DiskMaxMiB, err = q.disk(); err != nil {
		return r, err
	}
	r.CPU, r.CPUMax, err = q.cpu(r.MemoryMiB)
	return r, err
}

type memoryMiB struct{ guaranteed, limit int64 }

func (q ResourcesRequest) memory() (memoryMiB, error) {
	m := memoryMiB{guaranteed: DefaultMemoryMiB}
	effectiveLimit := int64(MaxMemoryMiB)
	if q.MemoryMax != nil {
		v, err := wholeMiB("resources.memory_max", *q.MemoryMax)
		if err != nil {
			return m, err
		}
		if v < MinMemoryLimitMiB || v > MaxMemoryMiB {
			return m, Invalid("resources.memory_max", "range", "0.25 to 32 GiB", "must be 0.25 to 32 GiB, is %s", formatFloat(*q.MemoryMax))
		}
		m.limit, effectiveLimit = v, v
	}
	if q.Memory == nil {
		m.guaranteed = min(m.guaranteed, effectiveLimit)
		return m, nil
	}
	v, err := wholeMiB("resources.memory", *q.Memory)
	if err != nil {
		return m, err
	}
	m.guaranteed = max(v, MinMemoryMiB)
	if m.guaranteed > MaxMemoryMiB {
		return m, Invalid("resources.memory", "max", "32 GiB", "must be at most 32 GiB, is %s", formatFloat(*q.Memory))
	}
	if m.guaranteed > effectiveLimit {
		return m, Invalid("resources.memory", "max", formatGiB(effectiveLimit), "must be at most the limit memory_max, %s, is %s after the raise to 0.5 GiB",
			formatGiB(effectiveLimit), formatGiB(m.guaranteed))
	}
	return m, nil
}

func (q ResourcesRequest) disk() (guaranteed, limit int64, err error) {
	guaranteed = DefaultDiskMiB
	if q.Disk != nil {
		if guaranteed, err = wholeMiB("resources.disk", *q.Disk); err != nil {
			return 0, 0, err
		}
	}
	if q.CPU != nil || q.Memory != nil || q.Disk != nil {
		guaranteed = max(guaranteed, MinDiskMiB)
	}
	if guaranteed > MaxDiskMiB {
		return 0, 0, Invalid("resources.disk", "max", "256 GiB", "must be at most 256 GiB, is %s", formatFloat(*q.Disk))
	}
	if q.DiskMax == nil {
		return guaranteed, 0, nil
	}
	if limit, err = wholeMiB("resources.disk_max", *q.DiskMax); err != nil {
		return 0, 0, err
	}
	if limit > MaxDiskMiB {
		return 0, 0, Invalid("resources.disk_max", "max", "256 GiB", "must be at most 256 GiB, is %s", formatFloat(*q.DiskMax))
	}
	if limit < guaranteed {
		return 0, 0, Invalid("resources.disk_max", "min", formatGiB(guaranteed), "must be at least the guaranteed disk, %s, is %s", formatGiB(guaranteed), formatFloat(*q.DiskMax))
	}
	return guaranteed, limit, nil
}

func (q ResourcesRequest) cpu(memMiB int64) (cores, limit float64, err error) {
	perMemory := float64(memMiB) / memoryPerCoreMiB
	cores = max(DefaultCPU, perMemory)
	if q.CPU != nil {
		if !finite(*q.CPU) || *q.CPU < 0 {
			return 0, 0, Invalid("resources.cpu", "min", "0.125 cores", "must be a positive number of cores, is %s", formatFloat(*q.CPU))
		}
		cores = max(*q.CPU, MinCPU, perMemory)
	}
	if cores > MaxCPU {
		return 0, 0, Invalid("resources.cpu", "max", "16 cores", "must be at most 16 cores, is %s", formatFloat(cores))
	}
	if q.CPUMax == nil {
		return cores, 0, nil
	}
	limit = *q.CPUMax
	if !finite(limit) || limit <= 0 || limit > MaxCPU || math.Mod(limit, 0.5) != 0 {
		return 0, 0, Invalid("resources.cpu_max", "multiple", "0.5 cores", "must be a multiple of 0.5 from 0.5 to 16 cores, is %s", formatFloat(limit))
	}
	if limit < cores {
		return 0, 0, Invalid("resources.cpu_max", "min", formatFloat(cores)+" cores", "must be at least the guaranteed %s cores, is %s", formatFloat(cores), formatFloat(limit))
	}
	return cores, limit, nil
}

// wholeMiB converts GiB to MiB and refuses fractions of a MiB.
func wholeMiB(field string, gib float64) (int64, error) {
	if !finite(gib) || gib <= 0 {
		return 0, Invalid(field, "min", "more than 0 GiB", "must be a positive number of GiB, is %s", formatFloat(gib))
	}
	if gib > 1<<20 {
		return 0, Invalid(field, "max", "1048576 GiB", "is out of range: %s GiB", formatFloat(gib))
	}
	mib := gib * 1024
	if mib != math.Trunc(mib) {
		return 0, Invalid(field, "whole_mib", "1 MiB", "must convert to a whole number of MiB, %s GiB is %s MiB", formatFloat(gib), formatFloat(mib))
	}
	return int64(mib), nil
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

func formatFloat(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func formatGiB(mib int64) string { return formatFloat(float64(mib)/1024) + " GiB" }
