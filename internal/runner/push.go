package runner

import (
	"context"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
)

// pushImage uploads an image to a registry and reports how that goes. An upload
// that this process's end interrupts begins again; what is there already is not
// sent twice.
func (r *Runner) pushImage(ctx context.Context, c bus.Command) error {
	if c.Push == nil {
		r.log.Error("malformed push", "image_id", c.ImageID)
		return nil
	}
	report := func(p skerry.PushProgress) {
		p.Reference = c.Push.Reference
		r.reportImage(ctx, bus.ImageReport{ImageID: c.ImageID, Status: skerry.ImageReady, Push: &p})
	}
	report(skerry.PushProgress{Status: skerry.ImageBuilding})
	digest, err := r.push(ctx, c, report)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		r.log.Warn("push image", "image_id", c.ImageID, "err", err)
		report(skerry.PushProgress{Status: skerry.ImageFailed, Error: reasonFor("push", err)})
		return nil
	}
	report(skerry.PushProgress{Status: skerry.ImageReady, Digest: digest})
	return nil
}

func (r *Runner) push(ctx context.Context, c bus.Command, report func(skerry.PushProgress)) (digest string, err error) {
	rep, err := r.imageIDs.get(c.ImageID)
	if err != nil {
		return "", err
	}
	var last time.Time
	return r.cfg.Images.Push(ctx, rep.Digest, *c.Push, func(p skerry.PushProgress) {
		if time.Since(last) >= progressInterval {
			last = time.Now()
			p.Status = skerry.ImageBuilding
			report(p)
		}
	})
}
