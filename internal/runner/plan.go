package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/kernel"
	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/machine/qemu"
	"skerry.dev/skerry/internal/shim"
)

// plan is what a job needs on this host: its image's disk, the shape of the
// machine, and the template that serves both.
type plan struct {
	prep  Prepared
	img   imageDisk
	res   skerry.Resources
	shape machine.Shape
	key   TemplateKey
}

// use is what a machine is made for.
type use int

const (
	ephemeral  use = iota // its disk lives as long as the machine
	persistent            // its disk outlives machines, and their crashes
	restart               // its disk is there and in use
)

// plan looks up what a machine for the image digest and size needs.
func (r *Runner) plan(ctx context.Context, digest string, res skerry.Resources, u use) (plan, error) {
	prep, err := r.prepared(ctx)
	if err != nil {
		return plan{}, err
	}
	img, err := r.disks.get(ctx, digest, prep.Guest)
	if err != nil {
		return plan{}, err
	}
	p := plan{prep: prep, img: img, res: res, shape: shapeFor(res, r.cfg.CPUBurst)}
	p.key = TemplateKey{Image: img.digest, Guest: prep.Guest.Key, Kernel: kernel.CommandLine(prep.Driver.Accel),
		Hypervisor: prep.Hypervisor, Shape: p.shape}
	if u == restart {
		p.key.Bare = true
	} else {
		p.key.ScratchMiB, p.key.Journal = scratchClass(res.DiskLimitMiB()), u == persistent
	}
	return p, nil
}

// shapeFor is the shape of the template that serves a size on a host whose CPU
// limit for all is burst.
func shapeFor(res skerry.Resources, burst float64) machine.Shape {
	return machine.Shape{VCPUs: res.VCPUs(burst), BaseMiB: machine.BaseSizeMiB(res.MemoryMiB), MaxMemMiB: skerry.MaxMemoryMiB}
}

// scratchClass is the size of the writable disk that templates for a disk of
// mib are made with: the default size and the least one that can be asked for.
// The file system of a larger disk is grown in the guest.
func scratchClass(mib int64) int64 {
	if mib < skerry.MinDiskMiB {
		return skerry.DefaultDiskMiB
	}
	return skerry.MinDiskMiB
}

// spec is what every shim of this plan has in common.
func (r *Runner) spec(id skerry.MachineID, p plan) shim.Spec {
	return shim.Spec{MachineID: id, ImageDigest: p.img.digest, Shape: p.shape, Image: p.img.extents,
		Driver: r.driver(id, p.prep), Network: r.cfg.Network, MemoryLedger: filepath.Join(r.cfg.Dir, memoryLedger)}
}

func (r *Runner) driver(id skerry.MachineID, prep Prepared) shim.DriverSpec {
	d := prep.Driver
	if r.cfg.DropPrivileges {
		d.UID = machineUID(id)
		d.GID = d.UID
	}
	return d
}

// machineUID is the user id of a machine's hypervisor, one of its own, so that
// one that was taken over cannot signal or trace another. The range is above
// those that systemd hands out (its "Users, Groups, UIDs and GIDs" page) and
// below 2^31, which old software takes for negative.
func machineUID(id skerry.MachineID) int {
	const first, bits = 0x70000000, 24
	var h uint32 = 2166136261 // FNV-1a
	for i := 0; i < len(id); i++ {
		h = (h ^ uint32(id[i])) * 16777619
	}
	return first + int(h>>(32-bits))
}

// diskPlan is the writable disk of a machine to start: a file, there already or to
// be made with a size.
type diskPlan struct {
	path string
	mib  int64
	kept bool // is there
}

// manner is how far a machine is brought that is started.
type manner int

const (
	loaded manner = iota // for a sandbox
	warmed               // for the ready pool
	frozen               // to fork others from
)

// startMachine starts a shim for a machine of the plan: forked from a zygote of
// the template, or restored from the template, which is made first if there is
// none, or booted. The machine's directory is there and empty.
func (r *Runner) startMachine(ctx context.Context, id skerry.MachineID, p plan, d diskPlan, m manner) (*shim.Process, error) {
	spec := r.spec(id, p)
	spec.Warm, spec.Zygote, spec.Scratch = m == warmed, m == frozen, d.path
	if r.cfg.ColdBoot {
		var err error
		if spec.Boot, err = p.img.boot(p.prep); err != nil {
			return nil, err
		}
		if !d.kept {
			if err := r.cfg.Scratch.Create(ctx, d.path, disk.ScratchOptions{MiB: d.mib, Journal: p.key.Journal}); err != nil {
				return nil, err
			}
		}
		return shim.Start(ctx, r.cfg.ShimArgv, r.machineDir(id), spec, shim.Source{})
	}
	tpl, done, err := r.templates.get(ctx, p)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := r.linkBase(id, r.templates.path(p.key)); err != nil {
		return nil, err
	}
	spec.TemplateScratchBytes = p.key.ScratchMiB << 20
	from, scratch := shim.Source{Template: tpl}, r.templates.scratch(p)
	if m != frozen {
		if z := r.zygotes.take(ctx, p.key); z != nil {
			defer z.release()
			spec.Forked, spec.TemplateScratch = true, scratch
			from.Origin, scratch = z.conn, z.scratch
		}
	}
	if !d.kept {
		if err := disk.CopyScratch(d.path, scratch, d.mib); err != nil {
			return nil, err
		}
	}
	return shim.Start(ctx, r.cfg.ShimArgv, r.machineDir(id), spec, from)
}

// linkBase keeps the memory in dir, which the machine is restored from, for its
// saves: dir itself may go before the machine does.
func (r *Runner) linkBase(id skerry.MachineID, dir string) error {
	for _, f := range qemu.BaseFiles(shim.RAMFile) {
		err := os.Link(filepath.Join(dir, f), filepath.Join(r.machineDir(id), shim.BaseFile+strings.TrimPrefix(f, shim.RAMFile)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("keep memory of the template: %w", err)
		}
	}
	return nil
}
