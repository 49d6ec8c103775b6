package control

import (
	"context"
	"encoding/json"
	"fmt"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// maxReferenceLength bounds a reference of a registry.
const maxReferenceLength = 1024

// PushImage has the runner of a ready image upload it to a registry; Image.Push
// tells how far it is. Errors: CodeInvalid, CodeNotFound, CodeConflict for an
// image that is not ready or is being uploaded, CodeTooLarge.
func (c *Control) PushImage(ctx context.Context, idOrName string, req skerry.PushRequest) (skerry.Image, error) {
	if n := len(req.Reference); n == 0 || n > maxReferenceLength {
		return skerry.Image{}, skerry.Invalid("reference", "length", fmt.Sprintf("1 to %d characters", maxReferenceLength), "must be 1 to %d characters, is %d", maxReferenceLength, n)
	}
	var image store.Image
	err := c.update(ctx, func(t *txn) (err error) {
		if image, err = findImage(ctx, t, idOrName); err != nil {
			return err
		}
		switch {
		case image.Status != skerry.ImageReady:
			return skerry.Errorf(skerry.CodeConflict, "image %s is %s; it must be ready", image.Name, image.Status)
		case pushing(image):
			return skerry.Errorf(skerry.CodeConflict, "image %s is being uploaded to %s", image.Name, image.Push.Reference)
		}
		cmd := bus.Command{Kind: bus.CommandPushImage, ImageID: image.ID, Push: &req}
		if image.PushCommand, err = encodeCommand(cmd); err != nil {
			return err
		}
		image.Push = &skerry.PushProgress{Reference: req.Reference, Status: skerry.ImagePending}
		if err := t.putImage(ctx, image); err != nil {
			return err
		}
		if err := t.logImage(ctx, image.Image, string(image.Status)); err != nil {
			return err
		}
		image.UpdatedAt = t.now
		return t.command(ctx, image.Runner, cmd)
	})
	if err != nil {
		return skerry.Image{}, fmt.Errorf("push image: %w", err)
	}
	return image.Image, nil
}

// pushing reports whether an upload of the image is under way.
func pushing(i store.Image) bool { return i.Push != nil && !settled(i.Push.Status) }

// pushEvent applies what a runner says of the upload of an image.
func (t *txn) pushEvent(ctx context.Context, image store.Image, p skerry.PushProgress) error {
	if !pushing(image) || p.Reference != image.Push.Reference || p.Status != skerry.ImageBuilding && !settled(p.Status) {
		return nil
	}
	changed := p.Status != image.Push.Status
	image.Push = &p
	if settled(p.Status) {
		image.PushCommand = nil
	}
	if err := t.putImage(ctx, image); err != nil || !changed {
		return err
	}
	return t.logImage(ctx, image.Image, string(image.Status))
}

// pushAgain gives the command of an upload again that the runner may have lost.
func (t *txn) pushAgain(ctx context.Context, image store.Image) error {
	var cmd bus.Command
	if err := json.Unmarshal(image.PushCommand, &cmd); err != nil {
		return fmt.Errorf("command to push image %s: %w", image.ID, err)
	}
	return t.command(ctx, image.Runner, cmd)
}

// failPush ends the upload of image, if one is under way. The caller writes it.
func failPush(image *store.Image, why string) {
	if pushing(*image) {
		failed := *image.Push
		failed.Status, failed.Error = skerry.ImageFailed, why
		image.Push, image.PushCommand = &failed, nil
	}
}
