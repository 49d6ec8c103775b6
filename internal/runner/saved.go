package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/machine/qemu"
	"skerry.dev/skerry/internal/shim"
)

const savedFile = "saved.json"

// saved describes a directory with the memory of a machine that ran: of a
// paused sandbox, a memory snapshot, a fork. It names all that the memory needs
// besides itself. The parts of the image's disk are hard links in the same
// directory, so that neither an upgrade of the guest's software nor the
// deletion of the image takes them away.
type saved struct {
	dir string
	// diskOnly: there is no memory, only the disk of a stopped sandbox.
	diskOnly bool
	// fault is why there is nothing, or nil: what should be made of it fails.
	fault error

	ImageDigest  string           `json:"image_digest"`
	Hypervisor   string           `json:"hypervisor"`
	Shape        machine.Shape    `json:"shape"`
	Image        []machine.Extent `json:"image"` // paths are names in the directory
	ScratchBytes int64            `json:"scratch_bytes"`
	MemoryBytes  int64            `json:"memory_bytes"`
	StillMicros  int64            `json:"still_micros"`
}

// errUnfit: the memory was saved by another hypervisor or on another processor.
// errDamaged: its files are not what was saved.
var (
	errUnfit   = skerry.Errorf(skerry.CodeConflict, "the saved memory does not fit this host")
	errDamaged = skerry.Errorf(skerry.CodeUnavailable, "the saved memory is damaged")
)

// save has the shim of a running sandbox save it into dir, which is made. It lasts
// only once it is written; see write.
func (r *Runner) save(ctx context.Context, s *sandbox, dir string, req shim.SaveRequest) (*saved, error) {
	prep, err := r.prepared(ctx)
	if err != nil {
		return nil, err
	}
	spec, err := shim.ReadSpec(r.machineDir(s.machine))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	info, err := os.Stat(r.scratchPath(s))
	if err != nil {
		return nil, err
	}
	sv := &saved{dir: dir, ImageDigest: spec.ImageDigest, Hypervisor: prep.Hypervisor, Shape: spec.Shape,
		ScratchBytes: info.Size()}
	links, err := linkExtents(dir, spec.Image)
	if err != nil {
		return nil, err
	}
	for _, e := range links {
		sv.Image = append(sv.Image, machine.Extent{Path: filepath.Base(e.Path), Sectors: e.Sectors})
	}
	req.Dir = dir
	rep, err := s.proc.Client.Save(ctx, req)
	if err != nil {
		return nil, err
	}
	sv.MemoryBytes, sv.StillMicros = rep.MemoryBytes, rep.StillMicros
	r.log.Info("sandbox saved", "sandbox_id", s.id, "still_micros", rep.StillMicros, "memory_bytes", rep.MemoryBytes)
	return sv, nil
}

// linkExtents keeps the parts of an image's disk in dir, under their numbers.
func linkExtents(dir string, extents []machine.Extent) ([]machine.Extent, error) {
	out := make([]machine.Extent, len(extents))
	for i, e := range extents {
		out[i] = machine.Extent{Path: filepath.Join(dir, fmt.Sprintf("image-%d", i)), Sectors: e.Sectors}
		if err := os.Link(e.Path, out[i].Path); err != nil {
			return nil, fmt.Errorf("keep image: %w", err)
		}
	}
	return out, nil
}

// write makes everything in the directory last; the description comes last of
// all, so that a directory without it is unfinished.
func (sv *saved) write() error {
	if err := syncFiles(sv.dir); err != nil {
		return err
	}
	b, err := json.Marshal(sv)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(sv.dir, savedFile), b)
}

// openSaved reads the description of a saved memory; fs.ErrNotExist is in the
// chain when there is none.
func openSaved(dir string) (*saved, error) {
	b, err := os.ReadFile(filepath.Join(dir, savedFile))
	if err != nil {
		return nil, err
	}
	sv := &saved{dir: dir}
	if err := json.Unmarshal(b, sv); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errDamaged, savedFile, err)
	}
	return sv, nil
}

// fits refuses a memory that this host's hypervisor or processor could not go
// on with: the machine would be dead, or worse.
func (sv *saved) fits(prep Prepared) error {
	if sv.Hypervisor != prep.Hypervisor {
		return fmt.Errorf("%w: it was saved by %q, here is %q", errUnfit, sv.Hypervisor, prep.Hypervisor)
	}
	return nil
}

// scratch is the disk that was saved with the memory.
func (sv *saved) scratch() string { return filepath.Join(sv.dir, shim.ScratchFile) }

func (sv *saved) extents() []machine.Extent {
	out := make([]machine.Extent, len(sv.Image))
	for i, e := range sv.Image {
		out[i] = machine.Extent{Path: filepath.Join(sv.dir, e.Path), Sectors: e.Sectors}
	}
	return out
}

// startSaved starts a shim that goes on with a saved memory. The disk is in
// place: the saved one, or a copy of it.
func (r *Runner) startSaved(ctx context.Context, s *sandbox, sv *saved) (*shim.Process, error) {
	prep, err := r.prepared(ctx)
	if err != nil {
		return nil, err
	}
	if err := sv.fits(prep); err != nil {
		return nil, err
	}
	tpl, done, err := r.memories.get(ctx, sv.dir, func(context.Context) (*machine.Template, error) {
		return qemu.LoadTemplate(filepath.Join(sv.dir, shim.RAMFile), filepath.Join(sv.dir, shim.StateFile))
	})
	if errors.Is(err, qemu.ErrCorruptTemplate) {
		err = fmt.Errorf("%w: %w", errDamaged, err)
	}
	if err != nil {
		return nil, err
	}
	defer done()
	// The directory may go before the machine does: a fork's at once.
	if err := r.linkBase(s.machine, sv.dir); err != nil {
		return nil, err
	}
	image, err := linkExtents(r.machineDir(s.machine), sv.extents())
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", errDamaged, err)
	}
	if err != nil {
		return nil, err
	}
	return shim.Start(ctx, r.cfg.ShimArgv, r.machineDir(s.machine), shim.Spec{
		MachineID: s.machine, ImageDigest: sv.ImageDigest, Shape: sv.Shape, Image: image, Driver: r.driver(s.machine, prep),
		Network: r.cfg.Network, MemoryLedger: filepath.Join(r.cfg.Dir, memoryLedger), Scratch: r.scratchPath(s), TemplateScratchBytes: sv.ScratchBytes, Saved: true}, shim.Source{Template: tpl})
}

// copySavedDisk gives a new sandbox a copy of the saved disk.
func (r *Runner) copySavedDisk(s *sandbox, sv *saved) error {
	return copyDisk(r.scratchPath(s), sv.scratch())
}

// copyDisk makes path a copy of a writable disk that is at rest.
func copyDisk(path, original string) error {
	info, err := os.Stat(original)
	if err != nil {
		return err
	}
	return disk.CopyScratch(path, original, info.Size()>>20)
}
