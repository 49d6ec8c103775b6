package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// imageEvent applies what a runner says of an image. It is told to remove
// images that were deleted.
func (c *Control) imageEvent(ctx context.Context, t *txn, runner skerry.RunnerID, r bus.ImageReport) error {
	image, err := t.Image(ctx, r.ImageID)
	switch {
	case errors.Is(err, store.ErrNotFound) && !r.Deleted && r.ImageID.Valid():
		return t.command(ctx, runner, bus.Command{Kind: bus.CommandDeleteImage, ImageID: r.ImageID})
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return err
	case image.Runner != runner:
		return nil // this one did not make it
	case r.Deleted:
		return missingImage(ctx, t, image)
	case r.Push != nil:
		return t.pushEvent(ctx, image, *r.Push)
	case image.Status != skerry.ImagePending && image.Status != skerry.ImageBuilding:
		return nil // is settled
	}
	if err := t.applyImage(ctx, image, r); err != nil || !settled(r.Status) {
		return err
	}
	return t.productSettled(ctx, image.SourceSandbox, string(image.ID))
}

// applyImage takes over the fields of a report on an image under way.
func (t *txn) applyImage(ctx context.Context, image store.Image, r bus.ImageReport) error {
	config, err := json.Marshal(r.Config)
	if err != nil {
		return fmt.Errorf("encode image configuration: %w", err)
	}
	image.Progress = r.Progress
	switch {
	case r.Status == skerry.ImageReady && len(config) > maxConfigBytes:
		return t.failImage(ctx, image, fmt.Sprintf("its configuration is %d bytes, at most %d are supported", len(config), maxConfigBytes))
	case r.Status == skerry.ImageReady:
		image.Default = wantsDefault(image.Command)
		image.Digest, image.Platform, image.Bytes, image.LayerCount, image.Config = r.Digest, r.Platform, r.Bytes, r.LayerCount, r.Config
		image.Progress, image.Command = nil, nil
	case r.Status == skerry.ImageFailed:
		return t.failImage(ctx, image, r.Error)
	case r.Status != skerry.ImageBuilding:
		return nil
	}
	if settled(r.Status) {
		t.expiresLater(&image)
	}
	changed := image.Status != r.Status
	image.Status = r.Status
	if err := t.putImage(ctx, image); err != nil || !changed {
		return err
	}
	return t.logImage(ctx, image.Image, string(image.Status))
}

// wantsDefault reports whether the command asks to make the image the default
// once it is ready.
func wantsDefault(command []byte) bool {
	var cmd bus.Command
	if json.Unmarshal(command, &cmd) != nil {
		return false
	}
	return cmd.Kind == bus.CommandBuildDefault || cmd.Pull != nil && cmd.Pull.Default || cmd.Import != nil && cmd.Import.Default
}

func (t *txn) putImage(ctx context.Context, image store.Image) error {
	image.UpdatedAt = t.now
	t.images = append(t.images, image.Image)
	return t.UpdateImage(ctx, image)
}

func (t *txn) failImage(ctx context.Context, image store.Image, why string) error {
	image.Status, image.Error, image.Progress, image.Command = skerry.ImageFailed, why, nil, nil
	image.Default = false
	failPush(&image, why)
	t.expiresLater(&image)
	if err := t.putImage(ctx, image); err != nil {
		return err
	}
	return t.logImage(ctx, image.Image, string(image.Status))
}

// imageUsed has the idle window of an anonymous image begin again, as a sandbox
// is created from it.
func (t *txn) imageUsed(ctx context.Context, image store.Image) error {
	if !image.Anonymous {
		return nil
	}
	t.expiresLater(&image)
	return t.putImage(ctx, image)
}

// imageUnused has the timers look at an image, one user of which is gone.
func (t *txn) imageUnused(ctx context.Context, id skerry.ImageID) error {
	image, err := t.Image(ctx, id)
	if err == nil && image.ExpiresAt != nil {
		t.wakeBy(*image.ExpiresAt)
	}
	return ignoreNotFound(err)
}

// missingImage settles an image that its runner does not have: one under way is
// asked for again, as the command may have got lost.
func missingImage(ctx context.Context, t *txn, image store.Image) error {
	switch image.Status {
	case skerry.ImageFailed:
		return nil
	case skerry.ImageReady:
		return t.failImage(ctx, image, "its files are gone from its runner")
	}
	var cmd bus.Command
	if err := json.Unmarshal(image.Command, &cmd); err != nil {
		return t.failImage(ctx, image, "was interrupted")
	}
	if cmd.Kind == bus.CommandCapture {
		return t.captureAgain(ctx, image, cmd)
	}
	return t.command(ctx, image.Runner, cmd)
}

// failUnfinishedImages fails those that a runner can no longer make, and the
// uploads of others.
func failUnfinishedImages(ctx context.Context, t *txn, runner skerry.RunnerID, why string) error {
	images, err := t.Images(ctx)
	if err != nil {
		return err
	}
	for _, i := range images {
		switch {
		case i.Runner != runner:
			continue
		case !settled(i.Status):
			err = t.failImage(ctx, i, why)
		case pushing(i):
			failPush(&i, why)
			if err = t.putImage(ctx, i); err == nil {
				err = t.logImage(ctx, i.Image, string(i.Status))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
