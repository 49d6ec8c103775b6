package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// maxForkCount bounds the copies of one fork.
const maxForkCount = 64

// ForkSandbox makes copies of a persistent sandbox: of its memory and disk if it
// runs or is paused, of its disk if it is stopped. It returns the copies, which
// make their way to running by themselves; one that does not work fails for
// itself. They have the source's image, resources, user, kind and lifecycle
// policy, but neither its labels nor, unless asked for, its environment.
//
// Errors: CodeInvalid, CodeNotFound, CodeConflict as of StopSandbox and for a
// name in use, CodeGone, CodeTooLarge when the copies' environments are too
// large together.
func (c *Control) ForkSandbox(ctx context.Context, idOrName string, req skerry.ForkRequest) ([]skerry.Sandbox, error) {
	if err := checkFork(&req); err != nil {
		return nil, err
	}
	var children []skerry.Sandbox
	_, err := c.operate(ctx, idOrName, skerry.Fork, func(t *txn, s *store.Sandbox) error {
		children = nil
		runner, err := t.Runner(ctx, s.Runner)
		if err != nil && !isNotFound(err) {
			return err
		}
		for i := range req.Count {
			child := childOf(*s, req, t)
			child.RunnerEpoch = runner.Epoch
			if len(req.Names) > 0 {
				child.Name = req.Names[i]
				if err := nameFree(ctx, t, child.Name); err != nil {
					return err
				}
			}
			if err := t.addSandbox(ctx, &child); err != nil {
				return err
			}
			children = append(children, child.Sandbox)
		}
		return t.beginCopy(ctx, s, skerry.Fork, "")
	})
	if err != nil {
		return nil, err
	}
	return children, nil
}

// checkFork checks a request and sets its default.
func checkFork(req *skerry.ForkRequest) error {
	if req.Count == 0 {
		req.Count = 1
	}
	if req.Count < 1 || req.Count > maxForkCount {
		return skerry.Invalid("count", "range", fmt.Sprintf("1 to %d", maxForkCount), "must be 1 to %d, is %d", maxForkCount, req.Count)
	}
	if n := len(req.Names); n != 0 && n != req.Count {
		return skerry.Invalid("names", "length", fmt.Sprint(req.Count), "must be one for each of the %d copies, or none, are %d", req.Count, n)
	}
	for i, name := range req.Names {
		if err := skerry.ValidateSandboxName(name); err != nil {
			return fieldOf(err, fmt.Sprintf("names[%d]", i))
		}
		if slices.Contains(req.Names[:i], name) {
			return skerry.Invalid("names", "unique", "", "has %q twice", name)
		}
	}
	return skerry.ValidateLabels(req.Labels)
}

// fieldOf has an error of a validation name another field.
func fieldOf(err error, field string) error {
	var e *skerry.Error
	if errors.As(err, &e) {
		e.Message, e.Field = field+e.Message[len(e.Field):], field
	}
	return err
}

// childOf returns a copy's row. It has the runner of its source, which alone can
// make it, but no machine before that claims it.
func childOf(s store.Sandbox, req skerry.ForkRequest, t *txn) store.Sandbox {
	child := store.Sandbox{
		Sandbox: skerry.Sandbox{
			ID: skerry.NewSandboxID(), Status: skerry.StatusPending, ForkedFrom: s.ID,
			Image: s.Image, ImageID: s.ImageID, User: s.User, Resources: s.Resources, Labels: maps.Clone(req.Labels),
			Persistent: s.Persistent, Spot: s.Spot, Lifecycle: skerry.Lifecycle{LifecyclePolicy: s.Lifecycle.LifecyclePolicy},
			Runner: s.Runner, CreateDeadline: t.now.Add(skerry.DefaultCreateTimeout),
		},
		Region: s.Region, Arch: s.Arch,
	}
	if req.InheritEnv {
		child.Env = maps.Clone(s.Env)
	}
	return child
}

// nameFree refuses the name of a sandbox that is not deleted.
func nameFree(ctx context.Context, r store.Reader, name string) error {
	s, err := r.SandboxByName(ctx, name)
	if err == nil && s.Status != skerry.StatusDeleted {
		return skerry.Errorf(skerry.CodeConflict, "the name %q is in use by sandbox %s; delete it first", name, s.ID)
	}
	return ignoreNotFound(err)
}

// forkFailure is why a copy of a sandbox is not made.
func forkFailure(source skerry.SandboxID, why string) string {
	return fmt.Sprintf("fork of sandbox %s: %s", source, why)
}

// forkJobs returns the jobs of the copies of s that are not claimed yet.
func forkJobs(ctx context.Context, r store.Reader, s store.Sandbox) ([]bus.CreateJob, error) {
	children, err := r.SandboxesForkedFrom(ctx, s.ID, unclaimed)
	if err != nil || len(children) == 0 {
		return nil, err
	}
	image, err := r.Image(ctx, s.ImageID)
	if err = ignoreNotFound(err); err != nil {
		return nil, err
	}
	jobs := make([]bus.CreateJob, 0, len(children))
	for _, child := range children {
		jobs = append(jobs, jobOf(child, image))
	}
	return jobs, nil
}
