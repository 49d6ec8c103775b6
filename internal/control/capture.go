package control

import (
	"context"
	"encoding/json"

	"fmt"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// CaptureImage makes an image of the file system of a sandbox, which runs on.
// It returns the image, which is pending. Errors: CodeInvalid, CodeNotFound,
// CodeConflict for a sandbox that neither runs nor is stopped, or has another
// operation under way, and for a name in use, CodeGone.
func (c *Control) CaptureImage(ctx context.Context, idOrName string, req skerry.CaptureRequest) (skerry.Image, error) {
	req, err := req.Resolve()
	if err != nil {
		return skerry.Image{}, err
	}
	window := 0 // of a named image
	if req.IdleExpirySeconds != nil {
		window = *req.IdleExpirySeconds
	}
	var image store.Image
	_, err = c.operate(ctx, idOrName, skerry.CaptureImage, func(t *txn, s *store.Sandbox) error {
		base, err := t.Image(ctx, s.ImageID)
		if err = ignoreNotFound(err); err != nil {
			return err
		}
		image = store.Image{
			Image: skerry.Image{ID: skerry.NewImageID(), Name: req.Name, Source: "sandbox " + s.Name, SourceSandbox: s.ID,
				Anonymous: req.Name == "", IdleExpirySeconds: window},
			Runner: s.Runner,
		}
		if image.Anonymous {
			image.Name = string(image.ID)
		}
		cmd := bus.Command{Kind: bus.CommandCapture, SandboxID: s.ID, MachineID: s.Machine, ImageID: image.ID,
			Capture: &bus.CaptureOrder{BaseDigest: base.Digest, Comment: fmt.Sprintf("files of sandbox %s (%s)", s.Name, s.ID)}}
		if err := t.addImage(ctx, &image, cmd); err != nil {
			return err
		}
		return t.beginCopy(ctx, s, skerry.CaptureImage, string(image.ID))
	})
	if err != nil {
		return skerry.Image{}, err
	}
	return image.Image, nil
}

// captureCommand returns the command that makes an image of s, false if there is
// nothing left to be done.
func captureCommand(ctx context.Context, r store.Reader, id skerry.ImageID, s store.Sandbox) (cmd bus.Command, ok bool, err error) {
	image, err := r.Image(ctx, id)
	if err != nil || settled(image.Status) {
		return cmd, false, ignoreNotFound(err)
	}
	if err := json.Unmarshal(image.Command, &cmd); err != nil {
		return cmd, false, fmt.Errorf("command of image %s: %w", id, err)
	}
	cmd.MachineID = s.Machine
	return cmd, true, nil
}

// captureAgain settles the capture of an image that its runner does not know: it
// is begun again if the sandbox is still there for it, else it has failed.
func (t *txn) captureAgain(ctx context.Context, image store.Image, cmd bus.Command) error {
	s, err := t.Sandbox(ctx, cmd.SandboxID)
	switch {
	case isNotFound(err):
		return t.failImage(ctx, image, "its sandbox is gone")
	case err != nil:
		return err
	case s.Operation == skerry.CaptureImage && s.OperationTarget == string(image.ID):
		return nil // is settled with the source
	case s.Machine != cmd.MachineID:
		return t.failImage(ctx, image, "was interrupted, and its sandbox has started again since")
	}
	if err := skerry.CaptureImage.Check(s.Sandbox); err != nil {
		return t.failImage(ctx, image, "was interrupted: "+err.Error())
	}
	return t.beginCopy(ctx, &s, skerry.CaptureImage, string(image.ID))
}

// expiresLater has the idle window of an anonymous image begin now.
func (t *txn) expiresLater(image *store.Image) {
	if image.Anonymous {
		image.ExpiresAt = after(t.now, image.IdleExpirySeconds)
		t.wakeBy(*image.ExpiresAt)
	}
}

// expireImages deletes the anonymous images whose idle window has passed and
// that nothing uses, and returns when the next one is due, or zero.
func (c *Control) expireImages(ctx context.Context) (next time.Time, err error) {
	for {
		next = time.Time{}
		err := c.update(ctx, func(t *txn) error {
			i, err := t.NextImageExpiry(ctx)
			switch {
			case err != nil:
				return err
			case i.ExpiresAt.After(t.now):
				next = *i.ExpiresAt
				return nil
			}
			return deleteImage(ctx, t, i)
		})
		switch {
		case isNotFound(err):
			return time.Time{}, nil
		case err != nil:
			return time.Time{}, fmt.Errorf("expire images: %w", err)
		case !next.IsZero():
			return next, nil
		}
	}
}
