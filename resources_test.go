package skerry_test

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
)

func f(v float64) *float64 { return &v }

func TestResourcesResolve(t *testing.T) {
	type q = skerry.ResourcesRequest
	type r = skerry.Resources
	tests := []struct {
		name string
		in   q
		want r
	}{
		{"nothing asked for", q{}, r{CPU: 0.5, MemoryMiB: 1024, DiskMiB: 512}},
		{"cpu raises the disk", q{CPU: f(2)}, r{CPU: 2, MemoryMiB: 1024, DiskMiB: 10240}},
		{"memory raises the disk", q{Memory: f(1)}, r{CPU: 0.5, MemoryMiB: 1024, DiskMiB: 10240}},
		{"disk is raised", q{Disk: f(1)}, r{CPU: 0.5, MemoryMiB: 1024, DiskMiB: 10240}},
		{"disk above the raise", q{Disk: f(20)}, r{CPU: 0.5, MemoryMiB: 1024, DiskMiB: 20480}},
		{"limits alone do not raise the disk", q{CPUMax: f(4), MemoryMax: f(4)}, r{CPU: 0.5, MemoryMiB: 1024, DiskMiB: 512, CPUMax: 4, MemoryMaxMiB: 4096}},
		{"cpu raised to its minimum", q{CPU: f(0.01)}, r{CPU: 0.125, MemoryMiB: 1024, DiskMiB: 10240}},
		{"cpu zero", q{CPU: f(0)}, r{CPU: 0.125, MemoryMiB: 1024, DiskMiB: 10240}},
		{"cpu raised to one for 8 GiB", q{CPU: f(0.5), Memory: f(16)}, r{CPU: 2, MemoryMiB: 16384, DiskMiB: 10240}},
		{"cpu omitted, one for 8 GiB", q{Memory: f(32)}, r{CPU: 4, MemoryMiB: 32768, DiskMiB: 10240}},
		{"cpu omitted, a fraction", q{Memory: f(6)}, r{CPU: 0.75, MemoryMiB: 6144, DiskMiB: 10240}},
		{"memory raised", q{Memory: f(0.125)}, r{CPU: 0.5, MemoryMiB: 512, DiskMiB: 10240}},
		{"memory of whole MiB", q{Memory: f(1.5)}, r{CPU: 0.5, MemoryMiB: 1536, DiskMiB: 10240}},
		{"omitted memory lowered to the limit", q{MemoryMax: f(0.5)}, r{CPU: 0.5, MemoryMiB: 512, DiskMiB: 512, MemoryMaxMiB: 512}},
		{"omitted memory lowered below 0.5 GiB", q{MemoryMax: f(0.25)}, r{CPU: 0.5, MemoryMiB: 256, DiskMiB: 512, MemoryMaxMiB: 256}},
		{"memory at its limit", q{Memory: f(2), MemoryMax: f(2)}, r{CPU: 0.5, MemoryMiB: 2048, DiskMiB: 10240, MemoryMaxMiB: 2048}},
		{"disk limit", q{Disk: f(20), DiskMax: f(40)}, r{CPU: 0.5, MemoryMiB: 1024, DiskMiB: 20480, DiskMaxMiB: 40960}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.in.Resolve()
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestResourcesRefused(t *testing.T) {
	type q = skerry.ResourcesRequest
	tests := []struct {
		in          q
		field, rule string
	}{
		{q{CPU: f(-1)}, "resources.cpu", "min"},
		{q{CPU: f(math.NaN())}, "resources.cpu", "min"},
		{q{CPU: f(math.Inf(1))}, "resources.cpu", "min"},
		{q{CPU: f(16.5)}, "resources.cpu", "max"},
		{q{CPUMax: f(0)}, "resources.cpu_max", "multiple"},
		{q{CPUMax: f(0.75)}, "resources.cpu_max", "multiple"},
		{q{CPUMax: f(-0.5)}, "resources.cpu_max", "multiple"},
		{q{CPU: f(4), CPUMax: f(2)}, "resources.cpu_max", "min"},
		{q{Memory: f(0)}, "resources.memory", "min"},
		{q{Memory: f(1.0 / 1024 / 2)}, "resources.memory", "whole_mib"},
		{q{Memory: f(math.NaN())}, "resources.memory", "min"},
		{q{Memory: f(1e300)}, "resources.memory", "max"},
		{q{Memory: f(32.5)}, "resources.memory", "max"},
		{q{Memory: f(3), MemoryMax: f(2)}, "resources.memory", "max"},
		// The raise to 0.5 GiB comes first, then the limit.
		{q{Memory: f(0.25), MemoryMax: f(0.25)}, "resources.memory", "max"},
		{q{MemoryMax: f(0.125)}, "resources.memory_max", "range"},
		{q{MemoryMax: f(33)}, "resources.memory_max", "range"},
		{q{Disk: f(-1)}, "resources.disk", "min"},
		{q{Disk: f(257)}, "resources.disk", "max"},
		{q{DiskMax: f(0.25)}, "resources.disk_max", "min"},
		{q{DiskMax: f(1000)}, "resources.disk_max", "max"},
	}
	for _, tt := range tests {
		t.Run(tt.field+" "+tt.rule, func(t *testing.T) {
			_, err := tt.in.Resolve()
			var e *skerry.Error
			if !errors.As(err, &e) || e.Code != skerry.CodeInvalid || e.Field != tt.field || e.Rule != tt.rule || e.Bound == "" {
				t.Errorf("got %+v, want %s of %s", e, tt.rule, tt.field)
			}
		})
	}
}

func TestVCPUs(t *testing.T) {
	for cpu, want := range map[float64]int{0.125: 1, 1: 1, 1.5: 2, 4: 4} {
		if got := (skerry.Resources{CPU: cpu}).VCPUs(); got != want {
			t.Errorf("%v cores are %d vCPUs, want %d", cpu, got, want)
		}
	}
}
