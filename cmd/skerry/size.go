package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"skerry.dev/skerry"
)

// size is the part of a create that says how large the machine is.
type size struct {
	cpu, cpuMax                      cores
	memory, memoryMax, disk, diskMax gibibytes
	mode                             string
}

func (s *size) flags(f *pflag.FlagSet) {
	f.Var(&s.cpu, "cpu", "guaranteed CPU cores, like 0.5")
	f.Var(&s.memory, "memory", "guaranteed memory, like 2 (GiB), 2GiB or 512MiB")
	f.Var(&s.disk, "disk", "guaranteed writable disk, like 20 (GiB)")
	f.Var(&s.cpuMax, "cpu-max", "limit of CPU cores, a multiple of 0.5")
	f.Var(&s.memoryMax, "memory-max", "limit of memory")
	f.Var(&s.diskMax, "disk-max", "limit of the writable disk")
	f.StringVar(&s.mode, "mode", "", "burstable, up to the limits (default), or dedicated, exactly what is guaranteed")
}

// request is nil if no flag was given.
func (s *size) request() *skerry.ResourcesRequest {
	q := skerry.ResourcesRequest{CPU: s.cpu.value, Memory: s.memory.value, Disk: s.disk.value,
		CPUMax: s.cpuMax.value, MemoryMax: s.memoryMax.value, DiskMax: s.diskMax.value}
	if q == (skerry.ResourcesRequest{}) {
		return nil
	}
	return &q
}

// cores is a flag for a number of processors.
type cores struct{ value *float64 }

// Set implements pflag.Value.
func (c *cores) Set(s string) error {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return fmt.Errorf("%q is not a number of cores", s)
	}
	c.value = &v
	return nil
}

// String implements pflag.Value.
func (c *cores) String() string {
	if c.value == nil {
		return ""
	}
	return strconv.FormatFloat(*c.value, 'f', -1, 64)
}

// Type implements pflag.Value.
func (c *cores) Type() string { return "cores" }

// gibibytes is a flag for a size: "2" and "2GiB" are 2 GiB, "512MiB" is half of
// one.
type gibibytes struct{ value *float64 }

// Set implements pflag.Value.
func (g *gibibytes) Set(s string) error {
	v, err := parseGiB(s)
	if err != nil {
		return err
	}
	g.value = &v
	return nil
}

// String implements pflag.Value.
func (g *gibibytes) String() string {
	if g.value == nil {
		return ""
	}
	return strconv.FormatFloat(*g.value, 'f', -1, 64) + "GiB"
}

// Type implements pflag.Value.
func (g *gibibytes) Type() string { return "size" }

func parseGiB(s string) (float64, error) {
	number, factor := strings.TrimSpace(s), 1.0
	for _, unit := range []struct {
		suffix string
		factor float64
	}{{"mib", 1.0 / 1024}, {"gib", 1}, {"tib", 1024}} {
		if rest, ok := strings.CutSuffix(strings.ToLower(number), unit.suffix); ok {
			number, factor = strings.TrimSpace(rest), unit.factor
			break
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || strings.Trim(number, "0123456789.") != "" {
		return 0, fmt.Errorf("%q is not a size like 2, 2GiB or 512MiB", s)
	}
	return v * factor, nil
}

// formatMiB writes a size for people.
func formatMiB(mib int64) string {
	if mib >= 1024 && mib%1024 == 0 {
		return strconv.FormatInt(mib/1024, 10) + " GiB"
	}
	if mib >= 10*1024 {
		return fmt.Sprintf("%.1f GiB", float64(mib)/1024)
	}
	return strconv.FormatInt(mib, 10) + " MiB"
}

func formatBytes(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
}
