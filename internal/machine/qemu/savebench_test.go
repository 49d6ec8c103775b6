package qemu

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/machine/machinetest"
)

// BenchmarkSave measures saves of a running machine with its disk, as medians:
// how long it stood still, the whole save with the copy of the disk, what is
// stored beyond the template, reading that back, and a restore to the first
// answer, of it and of the template, by turns.
func BenchmarkSave(b *testing.B) {
	d := New(Options{PortName: "org.skerry.agent", UID: 65534, GID: 65534})
	shape := machine.Shape{VCPUs: 1, BaseMiB: 256, MaxMemMiB: 8192}
	boot, image := machinetest.Guest(b), machinetest.Image(b)
	impl := machinetest.Implementation{Driver: d, Load: LoadTemplate}
	ram, state := machinetest.CaptureFiles(b, d, boot, image, shape)
	template := machinetest.Load(b, impl, ram, state)
	for _, dirtyMiB := range []int64{0, 1024} {
		b.Run(fmt.Sprintf("dirty=%dMiB", dirtyMiB), func(b *testing.B) {
			cfg := machine.Config{Shape: shape, Image: image, Template: template, Scratch: machinetest.Disk(b, 1<<30)}
			v := machinetest.Start(b, d, cfg)
			v.Resume()
			v.Hello()
			if dirtyMiB > 0 {
				if err := v.SetMemory(b.Context(), shape.BaseMiB+dirtyMiB+256); err != nil {
					b.Fatal(err)
				}
				machinetest.Wait(b, "memory", func() bool {
					n, err := v.MemoryMiB(b.Context())
					return err != nil || n == shape.BaseMiB+dirtyMiB+256
				})
				v.Do(fmt.Sprintf("alloc %d 3", dirtyMiB))
			}
			times := map[string][]float64{}
			for b.Loop() {
				saveOnce(b, v, cfg, impl, ram, times)
			}
			for name, t := range times {
				b.ReportMetric(median(t), name)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func saveOnce(b *testing.B, v *machinetest.VM, cfg machine.Config, impl machinetest.Implementation, base string, times map[string][]float64) {
	dir, err := os.MkdirTemp(filepath.Dir(base), "save") // beside the base, which is linked
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	last := time.Now()
	lap := func(name string) {
		times[name] = append(times[name], float64(time.Since(last).Microseconds())/1000)
		last = time.Now()
	}
	ram, state := filepath.Join(dir, "ram"), filepath.Join(dir, "state")
	disk := machinetest.Disk(b, 0)
	dc, err := v.CopyScratch(b.Context(), disk)
	if err != nil {
		b.Fatal(err)
	}
	defer dc.Close()
	saved, err := v.Save(b.Context(), machine.SaveRequest{StatePath: state, RAMPath: ram, BasePath: base, Disk: dc})
	if err != nil {
		b.Fatal(err)
	}
	if err := dc.Wait(b.Context()); err != nil {
		b.Fatal(err)
	}
	lap("save_ms")
	times["pause_ms"] = append(times["pause_ms"], float64(saved.Pause.Microseconds())/1000)
	times["stored_MiB"] = append(times["stored_MiB"], float64(saved.MemoryBytes)/(1<<20))
	template, err := impl.Load(ram, state)
	if err != nil {
		b.Fatal(err)
	}
	defer template.RAM.Close()
	defer template.State.Close()
	template.ScratchBytes = 1 << 30
	lap("load_ms")
	for name, t := range map[string]*machine.Template{"restore_ms": template, "template_ms": cfg.Template} {
		cfg := cfg
		cfg.Template, cfg.Scratch = t, disk
		last = time.Now()
		c := machinetest.Start(b, impl.Driver, cfg)
		c.Resume()
		c.Hello()
		lap(name)
		c.Kill()
	}
}
