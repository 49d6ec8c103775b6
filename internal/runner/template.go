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
	"sync"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/kernel"
	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/machine/qemu"
	"skerry.dev/skerry/internal/shim"
)

// loadedTemplates is how many templates stay in memory. Each holds the touched
// pages of a booted guest, about 100 MiB.
const loadedTemplates = 8

// TemplateKey is everything the state of a template depends on.
type TemplateKey struct {
	Image      string        `json:"image"`  // digests of the image's disk
	Guest      string        `json:"guest"`  // kernel, agent and platform
	Kernel     string        `json:"kernel"` // its command line
	Hypervisor string        `json:"hypervisor"`
	Shape      machine.Shape `json:"shape"`
	ScratchMiB int64         `json:"scratch_mib"`
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

	mu    sync.Mutex
	byKey map[TemplateKey]*template // guarded by mu
}

// template is one entry; its own lock is held while it is made or loaded, so
// that creates of one image wait for each other and others do not.
type template struct {
	mu     sync.Mutex
	loaded *machine.Template // guarded by mu; nil when not in memory
	used   time.Time         // guarded by templates.mu
	users  int               // guarded by templates.mu
}

func newTemplates(r *Runner) *templates {
	return &templates{r: r, dir: filepath.Join(r.cfg.Dir, "templates"), byKey: map[TemplateKey]*template{}}
}

// get returns the loaded template, made first if need be. done must be called
// when its descriptors have been handed on.
func (t *templates) get(ctx context.Context, p plan) (tpl *machine.Template, done func(), err error) {
	e := t.hold(p.key)
	done = func() { t.release(e) }
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.loaded == nil {
		if e.loaded, err = t.loadOrMake(ctx, p); err != nil {
			done()
			return nil, nil, err
		}
	}
	return e.loaded, done, nil
}

func (t *templates) hold(key TemplateKey) *template {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byKey[key]
	if e == nil {
		e = &template{}
		t.byKey[key] = e
	}
	e.users++
	e.used = time.Now()
	t.evictLocked()
	return e
}

func (t *templates) release(e *template) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.users--
}

// evictLocked drops the longest unused templates from memory. Machines that
// run keep the pages they share.
func (t *templates) evictLocked() {
	for len(t.byKey) > loadedTemplates {
		var oldest *template
		var oldestKey TemplateKey
		for k, e := range t.byKey {
			if e.users == 0 && (oldest == nil || e.used.Before(oldest.used)) {
				oldest, oldestKey = e, k
			}
		}
		if oldest == nil {
			return
		}
		delete(t.byKey, oldestKey)
		closeTemplate(oldest.loaded)
	}
}

func closeTemplate(tpl *machine.Template) {
	if tpl != nil {
		tpl.RAM.Close()
		tpl.State.Close()
	}
}

func (t *templates) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.byKey {
		closeTemplate(e.loaded)
	}
	clear(t.byKey)
}

// loadOrMake loads the template from its directory. One that is damaged is
// made anew, once.
func (t *templates) loadOrMake(ctx context.Context, p plan) (*machine.Template, error) {
	tpl, err := t.load(p)
	if err == nil {
		return tpl, nil
	}
	dir := filepath.Join(t.dir, p.key.dirName())
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
	dir := filepath.Join(t.dir, p.key.dirName())
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	if err := t.checkScratch(p, dir); err != nil {
		return nil, fmt.Errorf("disk of the template: %v", err) // the rest is there, so not fs.ErrNotExist
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
	if want := p.scratchMiB << 20; info.Size() != want {
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
	spec.Capture = true
	if spec.Boot, err = p.img.boot(p.prep); err != nil {
		return err
	}
	scratch := filepath.Join(mdir, shim.ScratchFile)
	if err := t.r.cfg.Scratch.Create(ctx, scratch, disk.ScratchOptions{MiB: p.scratchMiB}); err != nil {
		return err
	}
	proc, err := shim.Start(ctx, t.r.cfg.ShimArgv, mdir, spec, nil)
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
	return filepath.Join(t.dir, p.key.dirName(), shim.ScratchFile)
}

// store moves the captured files to dir in one step, with the disk's checksum:
// the machine has ended, so it is at rest.
func (t *templates) store(key TemplateKey, from, dir string) error {
	tmp, err := os.MkdirTemp(t.dir, "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, f := range append(qemu.TemplateFiles(shim.StateFile, shim.RAMFile), shim.ScratchFile) {
		if err := os.Rename(filepath.Join(from, f), filepath.Join(tmp, f)); err != nil {
			return err
		}
	}
	crc, err := disk.ScratchCRC(filepath.Join(tmp, shim.ScratchFile))
	if err != nil {
		return err
	}
	b, err := json.Marshal(templateRecord{key, crc})
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

// sweep removes templates that no create can use any more: of another kernel,
// agent or hypervisor, of deleted images, and half-made ones. While kernel or
// hypervisor are missing, nothing can be told and nothing is removed.
func (t *templates) sweep(ctx context.Context) error {
	prep, err := t.r.prepared(ctx)
	if err != nil {
		t.r.log.Warn("the host is not ready to run sandboxes", "err", err)
		return nil
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
	t.mu.Lock()
	for key, e := range t.byKey {
		if key.Image == digest && e.users == 0 {
			closeTemplate(e.loaded)
			delete(t.byKey, key)
		}
	}
	t.mu.Unlock()
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
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove stale template: %w", err)
		}
	}
	return nil
}
