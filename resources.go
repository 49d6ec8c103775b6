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

// Mode is how the numbers of a size are enforced ("Sandboxes" page, section
// "Resources").
type Mode string

// The modes. A burstable sandbox is guaranteed what it asked for and may use
// what is idle beyond it, up to its limits; a dedicated one is shaped exactly as
// asked for.
const (
	Burstable Mode = "burstable"
	Dedicated Mode = "dedicated"
)

// ResolveMode checks the mode of a create; "" is burstable.
func ResolveMode(m Mode) (Mode, error) {
	switch m {
	case "":
		return Burstable, nil
	case Burstable, Dedicated:
		return m, nil
	}
	return "", Invalid("mode", "one_of", "burstable, dedicated", "must be burstable or dedicated, is %q", m)
}

// ResourcesRequest is what a create asks for, in the units of the "Linux
// Sandboxes" page: cores and GiB. A nil field was omitted.
type ResourcesRequest struct {
	CPU       *float64 `json:"cpu,omitempty" doc:"Guaranteed CPU cores. Raised to 0.125 and to one core per 8 GiB of guaranteed memory."`
	Memory    *float64 `json:"memory,omitempty" doc:"Guaranteed memory in GiB. Raised to 0.5. Default 1."`
	Disk      *float64 `json:"disk,omitempty" doc:"Guaranteed writable disk in GiB. Default 0.5; at least 10 once cpu, memory or disk is set."`
	CPUMax    *float64 `json:"cpu_max,omitempty" doc:"CPU limit in cores, a multiple of 0.5. Default: the limit that the server has for all."`
	MemoryMax *float64 `json:"memory_max,omitempty" doc:"Memory limit in GiB, 0.25 to 32. Default 32, and never more than the host has free."`
	DiskMax   *float64 `json:"disk_max,omitempty" doc:"Writable disk limit in GiB. Default: the guaranteed disk."`
}

// Resources is the resolved size of a sandbox. Of a dedicated one the limits
// are what is guaranteed. A zero CPUMax is the limit that the host has for all, a
// zero DiskMaxMiB the guaranteed disk.
type Resources struct {
	Mode         Mode    `json:"mode"`
	CPU          float64 `json:"cpu"` // cores, guaranteed
	MemoryMiB    int64   `json:"memory_mib"`
	DiskMiB      int64   `json:"disk_mib"`
	CPUMax       float64 `json:"cpu_max,omitempty"` // cores
	MemoryMaxMiB int64   `json:"memory_max_mib,omitempty"`
	DiskMaxMiB   int64   `json:"disk_max_mib,omitempty"`
}

// CPULimit is how many cores the sandbox may use on a host whose limit for all
// is burst.
func (r Resources) CPULimit(burst float64) float64 {
	switch {
	case r.Mode == Dedicated:
		return r.CPU
	case r.CPUMax > 0:
		return r.CPUMax
	}
	return max(r.CPU, burst)
}

// VCPUs is the number of virtual processors of the machine: the limit, rounded
// up.
func (r Resources) VCPUs(burst float64) int { return max(1, int(math.Ceil(r.CPULimit(burst)))) }

// MemoryLimitMiB is how far the memory may grow.
func (r Resources) MemoryLimitMiB() int64 { return max(r.MemoryMiB, r.MemoryMaxMiB) }

// DiskLimitMiB is the size of the writable disk. Only DiskMiB of it are
// guaranteed.
func (r Resources) DiskLimitMiB() int64 { return max(r.DiskMiB, r.DiskMaxMiB) }

// Resolve applies the defaults, raises and refusals of the "Linux Sandboxes"
// page, parameter "resources", for a mode that ResolveMode has checked. Errors
// are CodeInvalid and name the field, the rule and the bound.
func (q ResourcesRequest) Resolve(mode Mode) (Resources, error) {
	r := Resources{Mode: mode}
	mem, err := q.memory()
	if err != nil {
		return r, err
	}
	r.MemoryMiB, r.MemoryMaxMiB = mem.guaranteed, mem.limit
	if r.DiskMiB, r.DiskMaxMiB, err = q.disk(); err != nil {
		return r, err
	}
	if r.CPU, r.CPUMax, err = q.cpu(r.MemoryMiB); err != nil {
		return r, err
	}
	if mode == Dedicated {
		return q.dedicated(r)
	}
	return r, nil
}

// dedicated sets the limits to what is guaranteed, and refuses those that were
// given and differ.
func (q ResourcesRequest) dedicated(r Resources) (Resources, error) {
	switch {
	case q.CPUMax != nil && r.CPUMax != r.CPU:
		return r, notDedicated("cpu", formatFloat(r.CPU)+" cores", formatFloat(r.CPUMax)+" cores")
	case q.MemoryMax != nil && r.MemoryMaxMiB != r.MemoryMiB:
		return r, notDedicated("memory", formatGiB(r.MemoryMiB), formatGiB(r.MemoryMaxMiB))
	case q.DiskMax != nil && r.DiskMaxMiB != r.DiskMiB:
		return r, notDedicated("disk", formatGiB(r.DiskMiB), formatGiB(r.DiskMaxMiB))
	}
	r.CPUMax, r.MemoryMaxMiB, r.DiskMaxMiB = r.CPU, r.MemoryMiB, r.DiskMiB
	return r, nil
}

func notDedicated(name, guaranteed, limit string) error {
	return Invalid("resources."+name+"_max", "dedicated", guaranteed, "must be omitted or equal the %s of a dedicated sandbox, %s, is %s", name, guaranteed, limit)
}

type memoryMiB struct{ guaranteed, limit int64 }

func (q ResourcesRequest) memory() (memoryMiB, error) {
	m := memoryMiB{guaranteed: DefaultMemoryMiB, limit: MaxMemoryMiB}
	if q.MemoryMax != nil {
		v, err := wholeMiB("resources.memory_max", *q.MemoryMax)
		if err != nil {
			return m, err
		}
		if v < MinMemoryLimitMiB || v > MaxMemoryMiB {
			return m, Invalid("resources.memory_max", "range", "0.25 to 32 GiB", "must be 0.25 to 32 GiB, is %s", formatFloat(*q.MemoryMax))
		}
		m.limit = v
	}
	if q.Memory == nil {
		m.guaranteed = min(m.guaranteed, m.limit)
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
	if m.guaranteed > m.limit {
		return m, Invalid("resources.memory", "max", formatGiB(m.limit), "must be at most the limit memory_max, %s, is %s after the raise to 0.5 GiB",
			formatGiB(m.limit), formatGiB(m.guaranteed))
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
