package main

import (
	"fmt"
	"strconv"
	"strings"
)

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
