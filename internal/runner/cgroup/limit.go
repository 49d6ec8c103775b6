package cgroup

import (
	"fmt"
	"strconv"

	"skerry.dev/skerry"
)

// setting is one file of a group and what is written to it. Where the kernel does
// not have the file, limit is what is then not enforced ("resources.cpu"), or ""
// if nothing that was asked for.
type setting struct{ file, value, limit string }

// periodMicros is the time over which a quota is counted. The kernel's default
// of 100 ms would let the guest stand still for most of that; below 8 ms the
// smallest quota, an eighth of a core, would be less than the kernel takes.
const periodMicros = 20000

// overheadMiB is what a hypervisor may use besides the memory of its guest: the
// emulator's translations (128 MiB), its own memory and the host's cache of the
// sandbox's disk. Of the last the kernel takes back what is beyond.
const overheadMiB = 640

// cpuSettings give a machine its share of the processors, by which they are
// divided where all want them, and the limit.
func cpuSettings(v2 bool, guaranteed, limit float64) []setting {
	quota := int64(limit * periodMicros)
	if v2 {
		return []setting{
			{"cpu.weight", strconv.Itoa(weight(guaranteed)), "resources.cpu"},
			{"cpu.max", fmt.Sprintf("%d %d", quota, periodMicros), "resources.cpu_max"},
		}
	}
	return []setting{
		{"cpu.shares", strconv.Itoa(shares(guaranteed)), "resources.cpu"},
		{"cpu.cfs_period_us", strconv.Itoa(periodMicros), "resources.cpu_max"},
		{"cpu.cfs_quota_us", strconv.FormatInt(quota, 10), "resources.cpu_max"},
	}
}

// memorySettings bound the hypervisor's process. The guest's memory is the
// machine's size in any case; this is for what comes on top.
func memorySettings(v2 bool, r skerry.Resources) []setting {
	file := "memory.limit_in_bytes"
	if v2 {
		file = "memory.max"
	}
	return []setting{{file, strconv.FormatInt((r.MemoryLimitMiB()+overheadMiB)<<20, 10), ""}}
}

// shares and weight turn guaranteed cores into the relative shares of version 1
// (1024 a core) and 2 (100 a core), within the kernel's bounds.
func shares(cores float64) int { return min(max(int(cores*1024), 2), 262144) }
func weight(cores float64) int { return min(max(int(cores*100), 1), 10000) }
