package qemu

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/machine/machinetest"
	"skerry.dev/skerry/internal/machine/qemu/qmp"
)

// BenchmarkRestore measures a restore step by step, each in milliseconds from
// the one before, as medians: process started (spawn), QEMU answers (qmp),
// state loaded, first answer of the guest (echo); and the memory of the clone
// after that, as its proportional set size.
func BenchmarkRestore(b *testing.B) {
	d := New(Options{PortName: "org.skerry.agent", UID: 65534, GID: 65534})
	shape := machine.Shape{VCPUs: 1, BaseMiB: 256, MaxMemMiB: 8192}
	boot, image := machinetest.Guest(b), machinetest.Image(b)
	template := machinetest.Capture(b, machinetest.Implementation{Driver: d, Load: LoadTemplate}, boot, image, shape)
	times := map[string][]float64{}
	for b.Loop() {
		restoreOnce(b, d, machine.Config{
			Shape: shape, Image: image, Template: template,
			Scratch: machinetest.Disk(b, 1<<30), Dir: b.TempDir(),
		}, times)
	}
	for _, name := range []string{"spawn_ms", "qmp_ms", "load_ms", "echo_ms", "all_ms", "start_cpu_ms", "echo_cpu_ms", "pss_MiB"} {
		b.ReportMetric(median(times[name]), name)
	}
	b.ReportMetric(0, "ns/op")
}

func restoreOnce(b *testing.B, d *Driver, cfg machine.Config, times map[string][]float64) {
	conn, theirs := machinetest.Pair(b)
	_, network := machinetest.Pair(b)
	cfg.Control, cfg.Net = theirs, network
	begin := time.Now()
	last := begin
	lap := func(name string) {
		now := time.Now()
		times[name] = append(times[name], float64(now.Sub(last).Microseconds())/1000)
		last = now
	}
	m, monitor, err := d.launch(cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Kill()
	lap("spawn_ms")
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	mon, err := qmp.New(ctx, monitor, m.onEvent)
	if err != nil {
		b.Fatal(err)
	}
	m.setMonitor(mon)
	lap("qmp_ms")
	if err := m.load(ctx, cfg.Template.State); err != nil {
		b.Fatal(err)
	}
	if err := m.announceScratch(ctx, scratchNode, cfg.Scratch); err != nil {
		b.Fatal(err)
	}
	lap("load_ms")
	startCPU := cpuMillis(b, m.PID())
	last = time.Now()
	if err := m.Resume(ctx); err != nil {
		b.Fatal(err)
	}
	if _, err := io.WriteString(conn, "echo x\n"); err != nil {
		b.Fatal(err)
	}
	if got, err := bufio.NewReader(conn).ReadString('\n'); err != nil || got != "ok x\n" {
		b.Fatalf("got %q, %v", got, err)
	}
	lap("echo_ms")
	times["start_cpu_ms"] = append(times["start_cpu_ms"], startCPU)
	times["echo_cpu_ms"] = append(times["echo_cpu_ms"], cpuMillis(b, m.PID())-startCPU)
	times["all_ms"] = append(times["all_ms"], float64(time.Since(begin).Microseconds())/1000)
	times["pss_MiB"] = append(times["pss_MiB"], pssMiB(b, m.PID()))
}

func pssMiB(b *testing.B, pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "Pss: %f kB", &kib); n == 1 {
			return kib / 1024
		}
	}
	b.Fatal("no Pss in smaps_rollup")
	return 0
}

// cpuMillis is the processor time of all threads so far; unlike the wall clock
// it does not depend on what else the host does.
func cpuMillis(b *testing.B, pid int) float64 {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		b.Fatal(err)
	}
	var sum float64
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // a worker thread that has just ended
		}
		var nanos float64
		fmt.Sscan(string(text), &nanos)
		sum += nanos / 1e6
	}
	return sum
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
