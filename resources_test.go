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
		{"nothing asked for", q{}, r{Mode: skerry.Burstable, CPU: 0.5, MemoryMiB: 1024, DiskMiB: 512, MemoryMaxMiB: 32768}},
		{"cpu raises the disk", q{CPU: f(2)}, r{Mode: skerry.Burstable, CPU: 2, MemoryMiB: 1024, DiskMiB: 10240, MemoryMaxMiB: 32768}},
		{"memory raises the disk", q{Memory: f(1)}, r{Mode: skerry.Burstable, CPU: 0.5, MemoryMiB: 1024, DiskMiB: 10240, MemoryMaxMiB: 32768}},
		{"disk is raised", q{Disk: f(1)}, r{Mode: skerry.Burstable, CPU: 0.5, MemoryMiB: 1024, DiskMiB: 10240, MemoryMaxMiB: 32768}},
		{"disk above the raise", q{Disk: f(20)}, r{Mode: skerry.Burstable, CPU: 0.5, MemoryMiB: 1024, DiskMiB: 20480, MemoryMaxMiB: 32768}},
		{"limits alone do not raise the disk", q{CPUMax: f(4), MemoryMax: f(4)}, r{Mode: skerry.Burstable, CPU: 0.5, MemoryMiB: 1024, DiskMiB: 512, CPUMax: 4, MemoryMaxMiB: 4096}},
		{"cpu raised to its minimum", q{CPU: f(0.01)}, r{Mode: skerry.Burstable, CPU: 0.125, MemoryMiB: 1024, DiskMiB: 10240, MemoryMaxMiB: 32768}},
		{"cpu zero", q{CPU: f(0)}, r{Mode: skerry.Burstable, CPU: 0.125, MemoryMiB: 1024, DiskMiB: 10240, MemoryMaxMiB: 32768}},
		{"cpu raised to one for 8 GiB", q{CPU: f(0.5), Memory: f(16)}, r{Mode: skerry.Burstable, CPU: 2, MemoryMiB: 16384, DiskMiB: 10240, MemoryMaxMiB: 32768}},
		{"cpu omitted, one for 8 GiB", q{Memory: f(32)}, r{Mode: skerry.Burstable, CPU: 4, MemoryMiB: 32768, DiskMiB: 10240, MemoryMaxMiB: 32768}},
		{"cpu omitted, a fraction", q{Memory: f(6)}, r{Mode: skerry.Burstable, CPU: 0.75, MemoryMiB: 6144, DiskMiB: 10240, MemoryMaxMiB: 32768}},
		{"memory raised", q{Memory: f(0.125)}, r{Mode: skerry.Burstable, CPU: 0.5, MemoryMiB: 512, DiskMiB: 10240, MemoryMaxMiB: 32768}},
		{"memory of whole MiB", q{Memory: f(1.5)}, r{Mode: skerry.Burstable, CPU: 0.5, MemoryMiB: 1536, DiskMiB: 10240, MemoryMaxMiB: 32768}},
		{"omitted memory lowered to the limit", q{MemoryMax: f(0.5)}, r{Mode: skerry.Burstable, CPU: 0.5, MemoryMiB: 512, DiskMiB: 512, MemoryMaxMiB: 512}},
		{"omitted memory lowered below 0.5 GiB", q{MemoryMax: f(0.25)}, r{Mode: skerry.Burstable, CPU: 0.5, MemoryMiB: 256, DiskMiB: 512, MemoryMaxMiB: 256}},
		{"memory at its limit", q{Memory: f(2), MemoryMax: f(2)}, r{Mode: skerry.Burstable, CPU: 0.5, MemoryMiB: 2048, DiskMiB: 10240, MemoryMaxMiB: 2048}},
		{"disk limit", q{Disk: f(20), DiskMax: f(40)}, r{Mode: skerry.Burstable, CPU: 0.5, MemoryMiB: 1024, DiskMiB: 20480, MemoryMaxMiB: 32768, DiskMaxMiB: 40960}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.in.Resolve(skerry.Burstable)
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
			_, err := tt.in.Resolve(skerry.Burstable)
			var e *skerry.Error
			if !errors.As(err, &e) || e.Code != skerry.CodeInvalid || e.Field != tt.field || e.Rule != tt.rule || e.Bound == "" {
				t.Errorf("got %+v, want %s of %s", e, tt.rule, tt.field)
			}
		})
	}
}

func TestDedicated(t *testing.T) {
	type q = skerry.ResourcesRequest
	tests := []struct {
		name string
		in   q
		want skerry.Resources // without mode; zero if refused
		bad  string
	}{
		{"nothing asked for", q{}, skerry.Resources{CPU: 0.5, MemoryMiB: 1024, DiskMiB: 512, CPUMax: 0.5, MemoryMaxMiB: 1024, DiskMaxMiB: 512}, ""},
		{"a fraction", q{CPU: f(0.75)}, skerry.Resources{CPU: 0.75, MemoryMiB: 1024, DiskMiB: 10240, CPUMax: 0.75, MemoryMaxMiB: 1024, DiskMaxMiB: 10240}, ""},
		{"equal limits", q{CPU: f(2), Memory: f(4), Disk: f(20), CPUMax: f(2), MemoryMax: f(4), DiskMax: f(20)},
			skerry.Resources{CPU: 2, MemoryMiB: 4096, DiskMiB: 20480, CPUMax: 2, MemoryMaxMiB: 4096, DiskMaxMiB: 20480}, ""},
		{"memory lowered to its limit", q{MemoryMax: f(0.25)}, skerry.Resources{CPU: 0.5, MemoryMiB: 256, DiskMiB: 512, CPUMax: 0.5, MemoryMaxMiB: 256, DiskMaxMiB: 512}, ""},
		{"higher cpu_max", q{CPU: f(1), CPUMax: f(2)}, skerry.Resources{}, "resources.cpu_max"},
		{"cpu_max beside the default", q{CPUMax: f(1)}, skerry.Resources{}, "resources.cpu_max"},
		{"higher memory_max", q{Memory: f(1), MemoryMax: f(2)}, skerry.Resources{}, "resources.memory_max"},
		{"memory_max beside the default", q{MemoryMax: f(2)}, skerry.Resources{}, "resources.memory_max"},
		{"higher disk_max", q{Disk: f(20), DiskMax: f(40)}, skerry.Resources{}, "resources.disk_max"},
		{"other refusals come first", q{CPU: f(2), CPUMax: f(1)}, skerry.Resources{}, "resources.cpu_max"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.in.Resolve(skerry.Dedicated)
			if tt.bad != "" {
				var e *skerry.Error
				if !errors.As(err, &e) || e.Code != skerry.CodeInvalid || e.Field != tt.bad || e.Bound == "" {
					t.Errorf("got %+v, want a refusal of %s", err, tt.bad)
				}
				return
			}
			tt.want.Mode = skerry.Dedicated
			if d := cmp.Diff(tt.want, got); err != nil || d != "" {
				t.Error(err, d)
			}
		})
	}
}

func TestResolveMode(t *testing.T) {
	for in, want := range map[skerry.Mode]skerry.Mode{"": skerry.Burstable, "burstable": skerry.Burstable, "dedicated": skerry.Dedicated} {
		if got, err := skerry.ResolveMode(in); got != want || err != nil {
			t.Errorf("mode %q is %q, %v", in, got, err)
		}
	}
	for _, in := range []skerry.Mode{"Dedicated", "spot", " "} {
		var e *skerry.Error
		if _, err := skerry.ResolveMode(in); !errors.As(err, &e) || e.Field != "mode" {
			t.Errorf("mode %q: %v", in, err)
		}
	}
}

func TestCPULimit(t *testing.T) {
	type r = skerry.Resources
	tests := []struct {
		in    r
		burst float64
		limit float64
		vcpus int
	}{
		{r{CPU: 0.125}, 1, 1, 1},
		{r{CPU: 1}, 1, 1, 1},
		{r{CPU: 1.5}, 1, 1.5, 2},
		{r{CPU: 4}, 2, 4, 4},
		{r{CPU: 0.5}, 2, 2, 2},
		{r{CPU: 0.5, CPUMax: 1.5}, 4, 1.5, 2},
		{r{CPU: 0.5, CPUMax: 0.5}, 4, 0.5, 1},
		{r{CPU: 0.5, CPUMax: 8}, 1, 8, 8},
		{r{CPU: 0.75, CPUMax: 0.75, Mode: skerry.Dedicated}, 4, 0.75, 1},
		{r{CPU: 2.5, CPUMax: 2.5, Mode: skerry.Dedicated}, 1, 2.5, 3},
	}
	for _, tt := range tests {
		if got, n := tt.in.CPULimit(tt.burst), tt.in.VCPUs(tt.burst); got != tt.limit || n != tt.vcpus {
			t.Errorf("%+v with %v for all: limit %v, %d vCPUs, want %v, %d", tt.in, tt.burst, got, n, tt.limit, tt.vcpus)
		}
	}
}
