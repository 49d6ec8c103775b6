package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
)

// Result is the whole outcome, as it is written to the JSON file.
type Result struct {
	Time     time.Time `json:"time"`
	Version  string    `json:"version"` // of the server, git describe
	Host     Host      `json:"host"`
	Settings Settings  `json:"settings"`
	Load     Load      `json:"load"`
	Figures  []Figure  `json:"figures"`
}

// Host is the machine that was measured.
type Host struct {
	CPU         string `json:"cpu"`
	CPUs        int    `json:"cpus"`
	MemoryMiB   int64  `json:"memory_mib"`
	Kernel      string `json:"kernel"`
	Hypervisor  string `json:"hypervisor"`
	Accelerator string `json:"accelerator"`
}

// Settings are what the run was asked for.
type Settings struct {
	N      int      `json:"n"`
	Pool   int      `json:"pool"`
	Sets   []string `json:"sets"`
	Image  string   `json:"image"`
	Digest string   `json:"image_digest"`
}

// describeHost takes what the server knows of the host from its report.
func describeHost(r skerry.Runner) (Host, error) {
	h := Host{CPUs: runtime.NumCPU(), Accelerator: r.Accel}
	for _, c := range r.Facts {
		if c.Name == "QEMU" {
			h.Hypervisor = c.Detail
		}
	}
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return h, err
	}
	for line := range strings.Lines(string(cpuinfo)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			h.CPU = strings.TrimSpace(value)
			break
		}
	}
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return h, err
	}
	total, err := kibField(string(meminfo), "MemTotal:")
	if err != nil {
		return h, err
	}
	h.MemoryMiB = int64(total)
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return h, err
	}
	h.Kernel = unix.ByteSliceToString(u.Release[:])
	return h, nil
}

// write prints the result for people.
func (r *Result) write(out io.Writer) {
	h := r.Host
	fmt.Fprintf(out, "skerry %s, %s, %s, %d x %s, %d MiB, Linux %s\n", r.Version, h.Accelerator, h.Hypervisor, h.CPUs, h.CPU, h.MemoryMiB, h.Kernel)
	fmt.Fprintf(out, "image %s, pool %d, n %d; load average %.1f before, %.0f %% busy, %.1f %% stolen during the run\n\n",
		r.Settings.Image, r.Settings.Pool, r.Settings.N, r.Load.Before, 100*r.Load.BusyShare, 100*r.Load.Steal)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "figure\tunit\tn\tok\tmin\tP50\tP95\tP99\tmax\tpromise\t")
	for _, f := range r.Figures {
		fmt.Fprintf(w, "%s\t%s\t%d\t%.0f %%\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Name, f.Unit, f.N, 100*f.Success,
			number(f.Min), number(f.P50), number(f.P95), number(f.P99), number(f.Max), f.promise(), f.verdict())
	}
	w.Flush()
	r.writeNotes(out)
	r.writeSteps(out)
	for _, warning := range r.Load.Warnings {
		fmt.Fprintf(out, "\nwarning: %s\n", warning)
	}
}

func (f Figure) promise() string {
	if f.Promise == nil {
		return "-"
	}
	return f.Promise.Text
}

func (f Figure) verdict() string {
	switch {
	case f.Kept == nil:
		return ""
	case *f.Kept:
		return "ok"
	}
	return "missed"
}

func (r *Result) writeNotes(out io.Writer) {
	fmt.Fprintln(out)
	for _, f := range r.Figures {
		notes := []string{}
		if f.Score != nil {
			notes = append(notes, fmt.Sprintf("score %.1f, 5 %% dropped at either end", *f.Score))
		}
		if f.Note != "" {
			notes = append(notes, f.Note)
		}
		if len(notes) > 0 {
			fmt.Fprintf(out, "%s: %s\n", strings.TrimSpace(f.Name), strings.Join(notes, "; "))
		}
	}
}

// writeSteps prints the median of each step, a column for each figure that has
// steps. What the client sees holds what the runner and the guest report.
func (r *Result) writeSteps(out io.Writer) {
	var with []Figure
	names := map[string]bool{}
	for _, f := range r.Figures {
		if len(f.Steps) > 0 {
			with = append(with, f)
			for name := range f.Steps {
				names[name] = true
			}
		}
	}
	if len(with) == 0 {
		return
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "P50 of each step, ms")
	for i := range with {
		fmt.Fprintf(w, "\t(%d)", i+1)
	}
	fmt.Fprintln(w)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprint(w, name)
		for _, f := range with {
			cell := "-"
			if v, ok := f.Steps[name]; ok {
				cell = number(v)
			}
			fmt.Fprintf(w, "\t%s", cell)
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	for i, f := range with {
		fmt.Fprintf(out, "(%d) %s\n", i+1, f.Name)
	}
}

// writeFile writes the result as JSON, whole or not at all.
func (r *Result) writeFile(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// number writes a figure with three digits, or all it has before the point.
func number(v float64) string {
	digits := 2
	for limit := 10.0; digits > 0 && (v >= limit || v <= -limit); limit *= 10 {
		digits--
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}
