package runner

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/machine"
)

func TestHostname(t *testing.T) {
	tests := []struct{ name, want string }{
		{"my-sandbox", "my-sandbox"},
		{"My_Sandbox.v2", "my-sandbox-v2"},
		{"---", "sandbox"},
		{"_x_", "x"},
		{strings.Repeat("a", 100), strings.Repeat("a", 63)},
		{strings.Repeat("a", 62) + "..b", strings.Repeat("a", 62)},
		{"", "sandbox"},
		{"größe", "gr--e"},
	}
	for _, tt := range tests {
		if got := hostname(tt.name); got != tt.want {
			t.Errorf("hostname(%q) = %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestReasons: a reason is one line and names the operation that was cancelled.
func TestReasons(t *testing.T) {
	for _, operation := range []skerry.Action{"create", skerry.Start, skerry.Pause, skerry.Fork, skerry.CreateSnapshot, skerry.CaptureImage, "push"} {
		cancelled := fmt.Errorf("save memory: %w", context.Canceled)
		if got, want := reasonFor(operation, cancelled), "the "+string(operation)+" was cancelled"; got != want {
			t.Errorf("reason %q, want %q", got, want)
		}
		if got, want := reasonFor(operation, errors.Join(errors.New("a"), errors.New("b"))), "a; b"; got != want {
			t.Errorf("reason %q, want %q", got, want)
		}
	}
}

// TestReserveAgain: a sandbox that is here is not made twice. A job that was not
// claimed yet stays in the queue, as its claim may not be answered.
func TestReserveAgain(t *testing.T) {
	job := bus.CreateJob{SandboxID: "sbx_a"}
	for _, tt := range []struct {
		machine   skerry.MachineID
		mine, err bool
	}{{"", false, true}, {"mch_a", false, false}, {"", true, false}, {"mch_a", true, false}} {
		r := &Runner{sandboxes: map[skerry.SandboxID]*sandbox{"sbx_a": {id: "sbx_a", machine: tt.machine}}}
		if s, err := r.reserve(job, tt.mine); s != nil || (err != nil) != tt.err {
			t.Errorf("%+v: %+v, %v", tt, s, err)
		}
	}
}

func TestActivationsDiffer(t *testing.T) {
	job := bus.CreateJob{Name: "n", Resources: skerry.Resources{MemoryMiB: 1024, DiskMiB: 512}}
	a, b := activation("sbx_a", job), activation("sbx_b", job)
	if a.MachineID == b.MachineID || a.BootID == b.BootID || a.MAC == b.MAC {
		t.Errorf("two activations share an identity: %+v, %+v", a, b)
	}
	if again := activation("sbx_a", job); again.MachineID != a.MachineID || again.MAC != a.MAC || again.BootID == a.BootID {
		t.Errorf("a second start has %+v, the first had %+v", again, a)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(a.BootID) {
		t.Errorf("boot id %q is no version 4 UUID", a.BootID)
	}
	if c := a.MAC[1]; !strings.ContainsRune("26ae", rune(c)) {
		t.Errorf("MAC %q is not a locally administered unicast address", a.MAC)
	}
	if want := int64(512 << 20 / 512); a.ScratchSectors != want {
		t.Errorf("scratch sectors = %d, want %d", a.ScratchSectors, want)
	}
}

func TestShape(t *testing.T) {
	tests := []struct {
		res         skerry.Resources
		burst       float64
		vcpus       int
		base, class int64
	}{
		{skerry.Resources{CPU: 0.5, MemoryMiB: 1024, DiskMiB: 512}, 1, 1, 1024, 512},
		{skerry.Resources{CPU: 0.5, MemoryMiB: 1024, DiskMiB: 512}, 2, 2, 1024, 512},
		{skerry.Resources{CPU: 2, MemoryMiB: 4096, DiskMiB: 20 * 1024}, 1, 2, 1024, 10 * 1024},
		{skerry.Resources{CPU: 1.5, MemoryMiB: 600, DiskMiB: 10 * 1024}, 1, 2, 512, 10 * 1024},
		{skerry.Resources{CPU: 0.125, CPUMax: 3, MemoryMiB: 256, DiskMiB: 512}, 1, 3, 256, 512},
		{skerry.Resources{CPU: 0.125, MemoryMiB: 256, DiskMiB: 512, DiskMaxMiB: 4096}, 1, 1, 256, 512},
		{skerry.Resources{CPU: 0.125, MemoryMiB: 256, DiskMiB: 512, DiskMaxMiB: 40960}, 1, 1, 256, 10 * 1024},
		{skerry.Resources{Mode: skerry.Dedicated, CPU: 0.5, CPUMax: 0.5, MemoryMiB: 1024, MemoryMaxMiB: 1024, DiskMiB: 512, DiskMaxMiB: 512}, 4, 1, 1024, 512},
	}
	for _, tt := range tests {
		got := shapeFor(tt.res, tt.burst)
		if got.VCPUs != tt.vcpus || got.BaseMiB != tt.base || got.MaxMemMiB != skerry.MaxMemoryMiB {
			t.Errorf("shapeFor(%+v) = %+v, want %d processors and base %d", tt.res, got, tt.vcpus, tt.base)
		}
		if class := scratchClass(tt.res.DiskLimitMiB()); class != tt.class {
			t.Errorf("scratchClass of %+v = %d, want %d", tt.res, class, tt.class)
		}
	}
}

func TestCheckDisk(t *testing.T) {
	res := skerry.Resources{DiskMiB: 512, DiskMaxMiB: 1 << 20}
	if err := checkDisk(res, 512); err != nil {
		t.Errorf("a host with just what is guaranteed: %v", err)
	}
	if err := checkDisk(res, 511); skerry.CodeOf(err) != skerry.CodeExhausted || !strings.Contains(err.Error(), "resources.disk") {
		t.Errorf("a host with less: %v", err)
	}
}

func TestTemplateKeyNamesEverything(t *testing.T) {
	base := TemplateKey{Image: "i", Guest: "g", Kernel: "k", Hypervisor: "h", Shape: machine.Shape{VCPUs: 1, BaseMiB: 256}, ScratchMiB: 512}
	seen := map[string]string{base.dirName(): "base"}
	for name, change := range map[string]func(*TemplateKey){
		"image":      func(k *TemplateKey) { k.Image = "x" },
		"guest":      func(k *TemplateKey) { k.Guest = "x" },
		"kernel":     func(k *TemplateKey) { k.Kernel = "x" },
		"hypervisor": func(k *TemplateKey) { k.Hypervisor = "x" },
		"vcpus":      func(k *TemplateKey) { k.Shape.VCPUs = 2 },
		"memory":     func(k *TemplateKey) { k.Shape.BaseMiB = 512 },
		"disk":       func(k *TemplateKey) { k.ScratchMiB = 10240 },
	} {
		k := base
		change(&k)
		if other, ok := seen[k.dirName()]; ok {
			t.Errorf("a template for another %s has the directory of %s", name, other)
		}
		seen[k.dirName()] = name
	}
}

func TestMachineUID(t *testing.T) {
	seen := map[int]bool{}
	for range 1000 {
		uid := machineUID(skerry.NewMachineID())
		if uid < 0x70000000 || uid > 0x70ffffff {
			t.Fatalf("uid %#x is out of its range", uid)
		}
		seen[uid] = true
	}
	if len(seen) < 990 {
		t.Errorf("1000 machines have only %d user ids", len(seen))
	}
}

func TestUndo(t *testing.T) {
	var order []string
	step := func(name string, err error) func(context.Context) error {
		return func(ctx context.Context) error {
			if ctx.Err() != nil {
				t.Errorf("step %s got a context that is over", name)
			}
			order = append(order, name)
			return err
		}
	}
	var u undo
	failed := errors.New("stuck")
	u.add("first", step("first", nil))
	u.add("second", step("second", failed))
	u.add("third", step("third", nil))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := u.run(ctx)
	if !errors.Is(err, failed) || !strings.Contains(err.Error(), "undo second") {
		t.Errorf("run = %v, want the error of step second", err)
	}
	if want := []string{"third", "second", "first"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if err := u.run(ctx); err != nil || len(order) != 3 {
		t.Errorf("second run = %v, steps %v: nothing was left to do", err, order)
	}
	u.add("kept", step("kept", nil))
	u.release()
	if err := u.run(ctx); err != nil || len(order) != 3 {
		t.Errorf("run after release took back %v", order[3:])
	}
}

func TestPoolMakesRoom(t *testing.T) {
	a, b := TemplateKey{Image: "a"}, TemplateKey{Image: "b"}
	p := &pool{size: 2, wake: make(chan struct{}, 1)}
	if add, old := p.next(); add != nil || old != nil {
		t.Errorf("a pool nobody wants anything of adds %v, drops %v", add, old)
	}
	p.want = &plan{key: a}
	p.ready = []*pooled{{id: "1", key: b}, {id: "2", key: b}}
	add, old := p.next()
	if add == nil || add.key != a || old == nil || old.id != "1" {
		t.Errorf("next = %v, %v; want one of a, and the oldest of b to go", add, old)
	}
	p.giveBack(&pooled{id: "3", key: a})
	if add, old = p.next(); add == nil || old == nil || old.id != "2" {
		t.Errorf("next = %v, %v; want one more of a, and the last of b to go", add, old)
	}
	p.giveBack(&pooled{id: "4", key: a})
	if add, old = p.next(); add != nil || old != nil {
		t.Errorf("a full pool adds %v, drops %v", add, old)
	}
	if m := p.take(b); m != nil {
		t.Errorf("took %v of b, there is none", m)
	}
	if m := p.take(a); m == nil || m.id != "3" {
		t.Errorf("took %v, want the oldest of a", m)
	}
}

func TestLoadID(t *testing.T) {
	dir := t.TempDir()
	first, err := LoadID(dir)
	if err != nil || !first.Valid() {
		t.Fatalf("LoadID = %q, %v", first, err)
	}
	if again, err := LoadID(dir); err != nil || again != first {
		t.Errorf("second LoadID = %q, %v; want %q", again, err, first)
	}
}
