package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/image"
)

// progressInterval is how often the progress of a pull is reported at most.
const progressInterval = 250 * time.Millisecond

// imageIDs is the journal of the images this host was told to register: a file
// per image id with what was reported of it. Several ids may name one digest.
type imageIDs struct {
	dir string
	mu  sync.Mutex // serialises changes, so that a digest is deleted once

	underWayMu sync.Mutex
	underWay   map[skerry.ImageID]*registration // guarded by underWayMu
}

// registration is a pull, import or build under way.
type registration struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// begin notes that an image is being registered; a deletion cancels ctx. It waits
// for the end of another registration of the same id: the command may come twice
// at once.
func (i *imageIDs) begin(ctx context.Context, id skerry.ImageID) (_ context.Context, end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	r := &registration{cancel, make(chan struct{})}
	for {
		i.underWayMu.Lock()
		other := i.underWay[id]
		if other == nil {
			break
		}
		i.underWayMu.Unlock()
		select {
		case <-other.done:
		case <-ctx.Done():
			cancel()
			return nil, nil, context.Cause(ctx)
		}
	}
	defer i.underWayMu.Unlock()
	i.underWay[id] = r
	return ctx, func() {
		cancel()
		i.underWayMu.Lock()
		defer i.underWayMu.Unlock()
		delete(i.underWay, id)
		close(r.done)
	}, nil
}

// stop cancels the registration of an image and waits for its end.
func (i *imageIDs) stop(ctx context.Context, id skerry.ImageID) error {
	i.underWayMu.Lock()
	r := i.underWay[id]
	i.underWayMu.Unlock()
	if r == nil {
		return nil
	}
	r.cancel()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func openImageIDs(dir string) (*imageIDs, error) {
	return &imageIDs{dir: dir, underWay: map[skerry.ImageID]*registration{}}, os.MkdirAll(dir, 0o700)
}

func (i *imageIDs) path(id skerry.ImageID) string { return filepath.Join(i.dir, string(id)+".json") }

func (i *imageIDs) put(rep bus.ImageReport) error {
	b, err := json.Marshal(rep)
	if err != nil {
		return err
	}
	return replaceFile(i.path(rep.ImageID), b)
}

func (i *imageIDs) get(id skerry.ImageID) (bus.ImageReport, error) {
	var rep bus.ImageReport
	b, err := os.ReadFile(i.path(id))
	if err != nil {
		return rep, err
	}
	return rep, json.Unmarshal(b, &rep)
}

func (i *imageIDs) all() ([]bus.ImageReport, error) {
	entries, err := os.ReadDir(i.dir)
	if err != nil {
		return nil, err
	}
	var out []bus.ImageReport
	for _, e := range entries {
		id, ok := cutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		rep, err := i.get(skerry.ImageID(id))
		if err != nil {
			return nil, fmt.Errorf("image journal %s: %w", e.Name(), err)
		}
		out = append(out, rep)
	}
	return out, nil
}

func cutSuffix(s, suffix string) (string, bool) {
	if filepath.Ext(s) != suffix {
		return s, false
	}
	return s[:len(s)-len(suffix)], true
}

// registerImage pulls, imports or builds an image and reports its way to ready
// or failed. Only a failure that a later try may not have, the end of this
// process, is an error; the command is then delivered again.
func (r *Runner) registerImage(whole context.Context, c bus.Command, fetch func(context.Context, bus.Command, func(skerry.PullProgress)) (image.Info, error)) error {
	ctx, end, err := r.imageIDs.begin(whole, c.ImageID)
	if err != nil {
		return err
	}
	defer end()
	if rep, err := r.imageIDs.get(c.ImageID); err == nil {
		r.reportImage(ctx, rep) // done before; the report got lost
		return nil
	}
	last := time.Time{}
	progress := func(p skerry.PullProgress) {
		if time.Since(last) < progressInterval {
			return
		}
		last = time.Now()
		r.reportImage(ctx, bus.ImageReport{ImageID: c.ImageID, Status: skerry.ImageBuilding, Progress: &p})
	}
	r.reportImage(ctx, bus.ImageReport{ImageID: c.ImageID, Status: skerry.ImageBuilding})
	info, err := fetch(ctx, c, progress)
	if err == nil && wantsWarm(c) {
		last = time.Time{}
		progress(skerry.PullProgress{Phase: "warming"})
		err = r.warmImage(ctx, info.Digest)
	}
	if whole.Err() != nil {
		return whole.Err()
	}
	if ctx.Err() != nil {
		err = skerry.Errorf(skerry.CodeGone, "the image was deleted while it was being registered")
	}
	rep := bus.ImageReport{ImageID: c.ImageID, Status: skerry.ImageReady, Digest: info.Digest, Platform: info.Platform,
		Bytes: info.Bytes, LayerCount: info.LayerCount, Config: info.Config}
	if err == nil {
		err = r.imageIDs.put(rep)
	}
	if err != nil {
		r.log.Warn("register image", "image_id", c.ImageID, "err", err)
		rep = bus.ImageReport{ImageID: c.ImageID, Status: skerry.ImageFailed, Error: reasonFor("registration of the image", err)}
	}
	if c.Import != nil {
		if err := os.Remove(c.Import.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.log.Warn("remove spooled upload", "path", c.Import.Path, "err", err)
		}
	}
	r.reportImage(ctx, rep)
	return nil
}

func (r *Runner) fetchImage(ctx context.Context, c bus.Command, progress func(skerry.PullProgress)) (image.Info, error) {
	switch {
	case c.Kind == bus.CommandPullImage && c.Pull != nil:
		return r.cfg.Images.Pull(ctx, *c.Pull, progress)
	case c.Kind == bus.CommandImportImage && c.Import != nil:
		return r.cfg.Images.Import(ctx, *c.Import, progress)
	case c.Kind == bus.CommandBuildDefault:
		return r.cfg.Images.BuildDefault(ctx, progress)
	}
	return image.Info{}, fmt.Errorf("command %s without its argument", c.Kind)
}

// wantsWarm reports whether a template is to be made at once. The default image
// always gets one: it is what a newcomer runs first.
func wantsWarm(c bus.Command) bool {
	return c.Kind == bus.CommandBuildDefault || (c.Pull != nil && c.Pull.Warm) || (c.Import != nil && c.Import.Warm)
}

// warmImage makes the template for sandboxes of the default size.
func (r *Runner) warmImage(ctx context.Context, digest string) error {
	res, err := skerry.ResourcesRequest{}.Resolve(skerry.Burstable)
	if err != nil {
		return err
	}
	p, err := r.plan(ctx, digest, res, ephemeral)
	if err != nil {
		return err
	}
	release, err := r.startToken(ctx)
	if err != nil {
		return err
	}
	defer release()
	_, done, err := r.templates.get(ctx, p)
	if err != nil {
		return fmt.Errorf("boot the image: %w", err)
	}
	done()
	r.pool.keep(p)
	return nil
}

// deleteImage forgets an image id, ends its registration if that is under way,
// and removes the image's files with the last
// id that names them. Sandboxes that run keep what they have open.
func (r *Runner) deleteImage(ctx context.Context, id skerry.ImageID) error {
	if err := r.imageIDs.stop(ctx, id); err != nil {
		return err
	}
	r.imageIDs.mu.Lock()
	defer r.imageIDs.mu.Unlock()
	rep, err := r.imageIDs.get(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := r.removeImage(ctx, rep); err != nil {
			return fmt.Errorf("delete image %s: %w", id, err)
		}
	}
	r.reportImage(ctx, bus.ImageReport{ImageID: id, Deleted: true})
	return nil
}

func (r *Runner) removeImage(ctx context.Context, rep bus.ImageReport) error {
	all, err := r.imageIDs.all()
	if err != nil {
		return err
	}
	last := true
	for _, other := range all {
		if other.ImageID != rep.ImageID && other.Digest == rep.Digest {
			last = false
		}
	}
	if last {
		r.pool.dropImage(ctx, rep.Digest)
		r.zygotes.dropImage(ctx, rep.Digest)
		if err := r.disks.drop(rep.Digest); err != nil {
			return err
		}
		if err := r.cfg.Images.Delete(rep.Digest); err != nil && skerry.CodeOf(err) != skerry.CodeNotFound {
			return err
		}
		if err := r.templates.removeImage(rep.Digest); err != nil {
			return err
		}
	}
	return os.Remove(r.imageIDs.path(rep.ImageID))
}

func (r *Runner) reportImage(ctx context.Context, rep bus.ImageReport) {
	ev := bus.Event{Kind: bus.EventImage, RunnerID: r.cfg.ID, Time: time.Now(), Image: &rep}
	if err := r.cfg.Bus.PublishEvent(context.WithoutCancel(ctx), ev); err != nil {
		r.log.Error("publish event", "image_id", rep.ImageID, "status", rep.Status, "err", err)
	}
}
