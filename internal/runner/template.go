package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/kernel"
	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/machine/qemu"
	"skerry.dev/skerry/internal/shim"
)

// TemplateKey is everything the state of a template depends on.
type TemplateKey struct {
	Image      string        `json:"image"`  // digests of the image's disk
	Guest      string        `json:"guest"`  // kernel, agent and platform
	Kernel     string        `json:"kernel"` // its command line
	Hypervisor string        `json:"hypervisor"`
	Shape      machine.Shape `json:"shape"`
	ScratchMiB int64         `json:"scratch_mib"`
	Journal    bool          `json:"journal,omitempty"` // the disk has one
	// Bare templates are for disks that are in use already: nothing of the
	// machine depends on the disk yet, so it has neither size nor journal.
	Bare bool `json:"bare,omitempty"`
}

// dirName is the name of the template's directory.
func (k TemplateKey) dirName() string {
	b, _ := json.Marshal(k) // strings and numbers only: cannot fail
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

const templateKeyFile = "template.json"

// templateRecord is what stands in templateKeyFile.
type templateRecord struct {
	TemplateKey
	ScratchCRC uint32 `json:"scratch_crc32c"` // see disk.ScratchCRC
}

// templates makes, loads and drops templates.
type templates struct {
	r   *Runner
	dir string
}

func newTemplates(r *Runner) *templates {
	return &templates{r: r, dir: filepath.Join(r.cfg.Dir, "templates")}
}

// path is the directory of a template.
func (t *templates) path(key TemplateKey) string { return filepath.Join(t.dir, key.dirName()) }

// get returns the loaded template, made first if need be. done must be called
// when its descriptors have been handed on.
func (t *templates) get(ctx context.Context, p plan) (tpl *machine.Template, done func(), err error) {
	return t.r.memories.get(ctx, t.path(p.key), func(ctx context.Context) (*machine.Template, error) { return t.loadOrMake(ctx, p) })
}

// loadOrMake loads the template from its directory. One that is damaged is
// made anew, once.
func (t *templates) loadOrMake(ctx context.Context, p plan) (*machine.Template, error) {
	tpl, err := t.load(p)
	if err == nil {
		return tpl, nil
	}
	dir := t.path(p.key)
	if !errors.Is(err, fs.ErrNotExist) {
		t.r.log.Warn("template is damaged, it is made anew", "dir", dir, "err", err)
	}
	if err := t.make(ctx, p, dir); err != nil {
		return nil, err
	}
	return t.load(p)
}

// load loads and checks the template of a plan; fs.ErrNotExist is in the chain
// if there is none.
func (t *templates) load(p plan) (*machine.Template, error) {
	dir := t.path(p.key)
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	if !p.key.Bare {
		if err := t.checkScratch(p, dir); err != nil {
			return nil, fmt.Errorf("disk of the template: %v", err) // the rest is there, so not fs.ErrNotExist
		}
	}
	return qemu.LoadTemplate(filepath.Join(dir, shim.RAMFile), filepath.Join(dir, shim.StateFile))
}

// checkScratch compares the template's disk, of which each machine gets a copy,
// with the one that was captured.
func (t *templates) checkScratch(p plan, dir string) error {
	record, err := readTemplateRecord(dir)
	if err != nil {
		return err
	}
	info, err := os.Stat(t.scratch(p))
	if err != nil {
		return err
	}
	if want := p.key.ScratchMiB << 20; info.Size() != want {
		return fmt.Errorf("it has %d bytes, want %d", info.Size(), want)
	}
	crc, err := disk.ScratchCRC(t.scratch(p))
	if err == nil && crc != record.ScratchCRC {
		err = fmt.Errorf("checksum %08x, want %08x", crc, record.ScratchCRC)
	}
	return err
}

func readTemplateRecord(dir string) (templateRecord, error) {
	var record templateRecord
	b, err := os.ReadFile(filepath.Join(dir, templateKeyFile))
	if err != nil {
		return record, err
	}
	return record, json.Unmarshal(b, &record)
}

// make boots the image in a machine of its own and captures it into dir. A
// crash leaves at most a machine's directory, which the next start removes.
func (t *templates) make(ctx context.Context, p plan, dir string) (err error) {
	start := time.Now()
	id := skerry.NewMachineID()
	if err := t.r.makeMachineDir(id); err != nil {
		return err
	}
	mdir := t.r.machineDir(id)
	defer func() {
		err = errors.Join(err, t.r.clearMachine(context.WithoutCancel(ctx), id, false))
	}()
	spec := t.r.spec(id, p)
	spec.Capture, spec.Bare = true, p.key.Bare
	if spec.Boot, err = p.img.boot(p.prep); err != nil {
		return err
	}
	if !p.key.Bare {
		scratch := filepath.Join(mdir, shim.ScratchFile)
		if err := t.r.cfg.Scratch.Create(ctx, scratch, disk.ScratchOptions{MiB: p.key.ScratchMiB, Journal: p.key.Journal}); err != nil {
			return err
		}
	}
	proc, err := shim.Start(ctx, t.r.cfg.ShimArgv, mdir, spec, shim.Source{})
	if err != nil {
		return err
	}
	if err := proc.Wait(ctx); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(mdir, shim.StateFile)); err != nil {
		return skerry.Errorf(skerry.CodeInternal, "the image did not boot: %s", proc.LastWords())
	}
	if err := t.store(p.key, mdir, dir); err != nil {
		return err
	}
	t.r.log.Info("template made", "image", p.key.Image, "shape", p.key.Shape, "dur_ms", time.Since(start).Milliseconds())
	return nil
}

// scratch is the writable disk the template of a plan was captured with.
func (t *templates) scratch(p plan) string {
	return filepath.Join(t.path(p.key), shim.ScratchFile)
}

// store moves the captured files to dir in one step, with the disk's checksum:
// the machine has ended, so it is at rest.
func (t *templates) store(key TemplateKey, from, dir string) error {
	tmp, err := os.MkdirTemp(t.dir, "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	record := templateRecord{TemplateKey: key}
	files := qemu.TemplateFiles(shim.StateFile, shim.RAMFile)
	if !key.Bare {
		files = append(files, shim.ScratchFile)
		if record.ScratchCRC, err = disk.ScratchCRC(filepath.Join(from, shim.ScratchFile)); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := os.Rename(filepath.Join(from, f), filepath.Join(tmp, f)); err != nil {
			return err
		}
	}
	b, err := json.Marshal(record)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, templateKeyFile), b, 0o600); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// sweepDisks removes what earlier versions of the guest's software have left of
// images' disks, except what machines still run from.
func (r *Runner) sweepDisks(g Guest) error {
	specs, err := filepath.Glob(filepath.Join(r.cfg.Dir, "machines", "*", shim.SpecFile))
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, path := range specs {
		spec, err := shim.ReadSpec(filepath.Dir(path))
		if err != nil {
			continue // is being made, with the present software
		}
		for _, e := range spec.Image {
			used[filepath.Dir(e.Path)] = true
		}
	}
	return r.disks.sweep(g, used)
}

// sweep removes templates that no create can use any more: of another kernel,
// agent or hypervisor, of deleted images, and half-made ones. While kernel or
// hypervisor are missing, nothing can be told and nothing is removed.
func (t *templates) sweep(ctx context.Context) error {
	prep, err := t.r.prepared(ctx)
	if err != nil {
		t.r.log.Warn("the host is not ready to run sandboxes", "err", err)
		return nil
	}
	if err := t.r.sweepDisks(prep.Guest); err != nil {
		return fmt.Errorf("remove old disks: %w", err)
	}
	digests := map[string]bool{}
	for _, info := range t.r.cfg.Images.List() {
		digests[info.Digest] = true
	}
	return t.remove(func(key TemplateKey) bool {
		return key.Guest != prep.Guest.Key || key.Kernel != kernel.CommandLine(prep.Driver.Accel) || key.Hypervisor != prep.Hypervisor || !digests[key.Image]
	})
}

// removeImage removes the templates of an image that is deleted.
func (t *templates) removeImage(digest string) error {
	return t.remove(func(key TemplateKey) bool { return key.Image == digest })
}

// remove deletes the directories of stale and of damaged templates.
func (t *templates) remove(stale func(TemplateKey) bool) error {
	entries, err := os.ReadDir(t.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		dir := filepath.Join(t.dir, e.Name())
		record, err := readTemplateRecord(dir)
		if err == nil && record.dirName() == e.Name() && !stale(record.TemplateKey) {
			continue
		}
		t.r.memories.drop(dir)
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove stale template: %w", err)
		}
	}
	return nil
}
