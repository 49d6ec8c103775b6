package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/image"
	"skerry.dev/skerry/internal/shim"
)

// capture makes an image of a sandbox's files: one more layer on its image. The
// sandbox is free as soon as its disk is copied.
func (r *Runner) capture(ctx context.Context, c bus.Command) error {
	if c.Capture == nil {
		r.log.Error("malformed capture", "sandbox_id", c.SandboxID)
		return nil
	}
	return r.registerImage(ctx, c, r.captureImage)
}

func (r *Runner) captureImage(ctx context.Context, c bus.Command, progress func(skerry.PullProgress)) (image.Info, error) {
	progress(skerry.PullProgress{Phase: "copying"})
	path := filepath.Join(r.cfg.Dir, "forks", string(c.ImageID)+".img")
	defer os.Remove(path)
	err := r.copyForCapture(ctx, c, path)
	if ctx.Err() == nil {
		r.operationOver(ctx, c, skerry.CaptureImage, err)
	}
	if err != nil {
		return image.Info{}, err
	}
	r.step("capture.copied")
	scratch, err := os.Open(path)
	if err != nil {
		return image.Info{}, err
	}
	defer scratch.Close()
	progress(skerry.PullProgress{Phase: "converting"})
	layer := func(ctx context.Context, w io.Writer) error {
		_, err := disk.WriteUpperLayer(ctx, w, scratch, disk.Limits{})
		return err
	}
	return r.cfg.Images.Append(ctx, c.Capture.BaseDigest, layer, image.AppendOptions{Source: "sandbox " + string(c.SandboxID), Created: time.Now().UTC(), CreatedBy: "skerry sandbox capture", Comment: c.Capture.Comment}, progress)
}

// copyForCapture copies the disk of a running sandbox at one instant, or of a
// stopped one.
func (r *Runner) copyForCapture(ctx context.Context, c bus.Command, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	err := r.withSource(ctx, c, func(ctx context.Context, s *sandbox) error {
		switch {
		case r.live(s, c.MachineID):
			rep, err := s.proc.Client.CopyDisk(ctx, shim.CopyDiskRequest{Path: path})
			r.log.Info("disk copied", "sandbox_id", s.id, "frozen_micros", rep.FrozenMicros)
			return err
		case s.kept == skerry.StatusStopped:
			return copyDisk(path, r.scratchPath(s))
		}
		return notRunning(s)
	})
	if err != nil {
		return fmt.Errorf("copy disk: %w", err)
	}
	return nil
}
