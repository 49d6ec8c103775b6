package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/shim"
)

// fork saves the source once and makes all its children of that. The source is
// free when it is saved. A child that cannot be made fails by itself.
func (r *Runner) fork(ctx context.Context, c bus.Command) error {
	dir := filepath.Join(r.cfg.Dir, "forks", string(skerry.NewMachineID()))
	sv, err := r.saveForFork(ctx, c, dir)
	if ctx.Err() != nil {
		os.RemoveAll(dir)
		return context.Cause(ctx)
	}
	r.operationOver(ctx, c, skerry.Fork, err)
	if err != nil {
		r.log.Warn("fork", "sandbox_id", c.SandboxID, "err", err)
		sv = &saved{dir: dir, fault: fmt.Errorf("fork of sandbox %s: %s", c.SandboxID, reasonFor(skerry.Fork, err))}
	}
	r.step("fork.saved")
	var children sync.WaitGroup
	for _, job := range c.Jobs {
		children.Add(1)
		if err := r.handleJob(ctx, job, sv, children.Done); err != nil {
			r.log.Warn("fork", "sandbox_id", job.SandboxID, "err", err)
		}
	}
	r.work.Go(func() {
		children.Wait()
		r.memories.drop(dir)
		if err := os.RemoveAll(dir); err != nil {
			r.log.Error("remove what a fork saved", "dir", dir, "err", err)
		}
	})
	return nil
}

// saveForFork saves what the children are made of into dir: of a running
// sandbox memory and disk at one instant, of a paused one what it has saved, of
// a stopped one its disk.
func (r *Runner) saveForFork(ctx context.Context, c bus.Command, dir string) (sv *saved, err error) {
	err = r.withSource(ctx, c, func(ctx context.Context, s *sandbox) error {
		switch {
		case r.live(s, c.MachineID):
			sv, err = r.save(ctx, s, dir, shim.SaveRequest{Disk: true})
		case s.kept == skerry.StatusPaused:
			sv, err = r.copyPaused(s, dir)
		case s.kept == skerry.StatusStopped:
			sv, err = r.copyStopped(s, dir)
		default:
			err = notRunning(s)
		}
		return err
	})
	return sv, err
}

// copyPaused links the memory of a paused sandbox, which nobody writes, and
// copies its disk.
func (r *Runner) copyPaused(s *sandbox, dir string) (*saved, error) {
	from := r.memoryDir(s.id)
	sv, err := openSaved(from)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for _, e := range entries {
		if err := os.Link(filepath.Join(from, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
	}
	sv.dir = dir
	return sv, copyDisk(sv.scratch(), r.scratchPath(s))
}

// copyStopped copies the disk of a stopped sandbox.
func (r *Runner) copyStopped(s *sandbox, dir string) (*saved, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	sv := &saved{dir: dir, diskOnly: true}
	return sv, copyDisk(sv.scratch(), r.scratchPath(s))
}
