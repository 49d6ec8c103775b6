package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

const (
	// DefaultImageName is the name of the image that is built from packages.
	DefaultImageName = skerry.DefaultImageName
	// maxConfigBytes bounds an image's configuration, which goes into every
	// create job.
	maxConfigBytes = 256 << 10
	// maxCommandBytes bounds the order to make an image.
	maxCommandBytes = 64 << 10
)

// PullImage registers an image of a registry; a runner fetches it. Errors:
// CodeInvalid, CodeConflict when the name is in use, CodeUnavailable.
func (c *Control) PullImage(ctx context.Context, req skerry.PullRequest) (skerry.Image, error) {
	if req.Reference == "" {
		return skerry.Image{}, skerry.Invalid("reference", "required", "", "is required")
	}
	field := "name"
	if req.Name == "" {
		field, req.Name = "reference", req.Reference
	}
	if err := skerry.ValidateImageName(field, req.Name); err != nil {
		return skerry.Image{}, err
	}
	image, err := c.registerImage(ctx, req.Name, req.Reference, bus.Command{Kind: bus.CommandPullImage, Pull: &req})
	if err != nil {
		return skerry.Image{}, fmt.Errorf("pull image: %w", err)
	}
	return image, nil
}

// ImportImage registers the image in an archive on the runner's disk. The
// runner removes the archive when it is done. Errors: as PullImage.
func (c *Control) ImportImage(ctx context.Context, req skerry.ImportRequest) (skerry.Image, error) {
	if err := skerry.ValidateImageName("name", req.Name); err != nil {
		return skerry.Image{}, err
	}
	source := req.Kind
	if source == skerry.ArchiveAuto {
		source = "archive"
	}
	image, err := c.registerImage(ctx, req.Name, source, bus.Command{Kind: bus.CommandImportImage, Import: &req})
	if err != nil {
		return skerry.Image{}, fmt.Errorf("import image: %w", err)
	}
	return image, nil
}

// BuildDefaultImage registers the default image, which a runner builds from the
// packages of a distribution. If it is there, or under way, that is returned.
// Errors: CodeUnavailable.
func (c *Control) BuildDefaultImage(ctx context.Context) (skerry.Image, error) {
	image, err := c.Image(ctx, DefaultImageName)
	if err == nil && image.Status != skerry.ImageFailed {
		return image, nil
	}
	image, err = c.registerImage(ctx, DefaultImageName, "packages of Debian 12", bus.Command{Kind: bus.CommandBuildDefault})
	if err != nil {
		return skerry.Image{}, fmt.Errorf("build default image: %w", err)
	}
	return image, nil
}

// registerImage records an image and has a runner make it.
func (c *Control) registerImage(ctx context.Context, name, source string, cmd bus.Command) (skerry.Image, error) {
	var image store.Image
	err := c.update(ctx, func(t *txn) error {
		runner, err := c.chooseRunner(ctx, t)
		if err != nil {
			return err
		}
		image = store.Image{Image: skerry.Image{ID: skerry.NewImageID(), Name: name, Source: source}, Runner: runner}
		cmd.ImageID = image.ID
		if err := t.addImage(ctx, &image, cmd); err != nil {
			return err
		}
		return t.command(ctx, runner, cmd)
	})
	return image.Image, err
}

// addImage writes a new image with the command to make it.
func (t *txn) addImage(ctx context.Context, image *store.Image, cmd bus.Command) (err error) {
	image.Status, image.CreatedAt, image.UpdatedAt = skerry.ImagePending, t.now, t.now
	if image.Command, err = encodeCommand(cmd); err != nil {
		return err
	}
	if err := t.freeName(ctx, image.Name); err != nil {
		return err
	}
	if err := t.InsertImage(ctx, *image); err != nil {
		return err
	}
	t.images = append(t.images, image.Image)
	return t.logImage(ctx, image.Image, string(image.Status))
}

func encodeCommand(cmd bus.Command) ([]byte, error) {
	text, err := json.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	if len(text) > maxCommandBytes {
		return nil, skerry.Errorf(skerry.CodeTooLarge, "the request is %d bytes, at most %d are allowed", len(text), maxCommandBytes)
	}
	return text, nil
}

// freeName refuses a name that an image or a snapshot has. One that failed and
// is not in use gives its name free.
func (t *txn) freeName(ctx context.Context, name string) error {
	image, err := t.ImageByName(ctx, name)
	switch {
	case err == nil && image.Status == skerry.ImageFailed:
		if err := deleteImage(ctx, t, image); err != nil {
			return err
		}
	case err == nil:
		return skerry.Errorf(skerry.CodeConflict, "the name %q is in use by image %s, which is %s", name, image.ID, image.Status)
	case !isNotFound(err):
		return err
	}
	snapshot, err := t.SnapshotByName(ctx, name)
	switch {
	case err == nil && snapshot.Status == skerry.ImageFailed:
		return t.deleteSnapshot(ctx, snapshot)
	case err == nil:
		return skerry.Errorf(skerry.CodeConflict, "the name %q is in use by snapshot %s, which is %s", name, snapshot.ID, snapshot.Status)
	}
	return ignoreNotFound(err)
}

// findImage finds an image by id or name.
func findImage(ctx context.Context, r store.Reader, idOrName string) (i store.Image, err error) {
	if id := skerry.ImageID(idOrName); id.Valid() {
		i, err = r.Image(ctx, id)
	} else {
		i, err = r.ImageByName(ctx, idOrName)
	}
	if errors.Is(err, store.ErrNotFound) {
		return i, skerry.Errorf(skerry.CodeNotFound, "no image %q; `skerry image list` shows the images there are, `skerry image pull` adds one", idOrName)
	}
	return i, err
}

// imageForCreate finds the image of a create that names it, or the default.
func imageForCreate(ctx context.Context, r store.Reader, idOrName string) (i store.Image, err error) {
	if idOrName == "" {
		i, err = r.DefaultImage(ctx)
		if errors.Is(err, store.ErrNotFound) {
			return i, skerry.Invalid("image", "required", "", "is required, as no image is the default; `skerry image build-default` makes one, and so does `skerry image pull --default REFERENCE`")
		}
	} else {
		i, err = findImage(ctx, r, idOrName)
	}
	if err != nil {
		return i, err
	}
	switch i.Status {
	case skerry.ImageReady:
		return i, nil
	case skerry.ImageFailed:
		return i, skerry.Errorf(skerry.CodeConflict, "image %s failed: %s; pull it again", i.Name, i.Error)
	default:
		return i, skerry.Errorf(skerry.CodeConflict, "image %s is not ready, it is %s; `skerry image get %s` shows how far it is", i.Name, i.Status, i.Name)
	}
}

// Image finds an image by id or name. Errors: CodeNotFound.
func (c *Control) Image(ctx context.Context, idOrName string) (skerry.Image, error) {
	var i store.Image
	err := c.store.View(ctx, func(r store.Reader) (err error) {
		i, err = findImage(ctx, r, idOrName)
		return err
	})
	if err != nil {
		return skerry.Image{}, fmt.Errorf("get image: %w", err)
	}
	return i.Image, nil
}

// ListImages returns all images, newest first.
func (c *Control) ListImages(ctx context.Context) ([]skerry.Image, error) {
	var rows []store.Image
	err := c.store.View(ctx, func(r store.Reader) (err error) {
		rows, err = r.Images(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	images := make([]skerry.Image, 0, len(rows))
	for _, i := range rows {
		images = append(images, i.Image)
	}
	return images, nil
}

// WaitImage returns the image once it is ready or failed, or the time is over.
// One that is deleted meanwhile is returned as failed. Errors: CodeNotFound,
// CodeUnavailable at Close.
func (c *Control) WaitImage(ctx context.Context, idOrName string, timeout time.Duration) (skerry.Image, error) {
	settled := func(i skerry.Image) bool { return i.Status == skerry.ImageReady || i.Status == skerry.ImageFailed }
	i, err := c.Image(ctx, idOrName)
	if err != nil || settled(i) || timeout <= 0 {
		return i, err
	}
	return waitFor(ctx, c, c.images, i.ID, timeout, c.Image, settled)
}

// DeleteImage forgets an image and has its runner remove what only it uses. An
// image that a sandbox uses which is not deleted is kept, whatever the
// sandbox's state, since its layers are the lower part of the sandbox's disk.
// Errors: CodeNotFound, CodeConflict.
func (c *Control) DeleteImage(ctx context.Context, idOrName string) error {
	err := c.update(ctx, func(t *txn) error {
		image, err := findImage(ctx, t, idOrName)
		if err != nil {
			return err
		}
		return deleteImage(ctx, t, image)
	})
	if err != nil {
		return fmt.Errorf("delete image: %w", err)
	}
	return nil
}

func deleteImage(ctx context.Context, t *txn, image store.Image) error {
	n, err := t.CountSandboxesOfImage(ctx, image.ID)
	if err != nil {
		return err
	}
	if n > 0 {
		return skerry.Errorf(skerry.CodeConflict, "image %s is in use by %d sandboxes; delete them first", image.Name, n)
	}
	if n, err = t.CountSnapshotsOfImage(ctx, image.ID); err != nil {
		return err
	}
	if n > 0 {
		return skerry.Errorf(skerry.CodeConflict, "image %s is in use by %d snapshots; delete them first", image.Name, n)
	}
	if err := t.DeleteImage(ctx, image.ID); err != nil {
		return err
	}
	image.Status, image.Error = skerry.ImageFailed, "deleted"
	t.images = append(t.images, image.Image)
	if err := t.logImage(ctx, image.Image, statusDeleted); err != nil {
		return err
	}
	return t.command(ctx, image.Runner, bus.Command{Kind: bus.CommandDeleteImage, ImageID: image.ID})
}
