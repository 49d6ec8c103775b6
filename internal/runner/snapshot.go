package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/shim"
)

func (r *Runner) snapshotDir(id skerry.SnapshotID) string {
	return filepath.Join(r.cfg.Dir, "snapshots", string(id))
}

// snapshot saves memory and disk of a running sandbox, which runs on.
func (r *Runner) snapshot(ctx context.Context, c bus.Command) error {
	if !c.SnapshotID.Valid() {
		r.log.Error("malformed snapshot", "sandbox_id", c.SandboxID)
		return nil
	}
	sv, err := openSaved(r.snapshotDir(c.SnapshotID))
	if errors.Is(err, fs.ErrNotExist) {
		r.reportSnapshot(ctx, bus.SnapshotReport{SnapshotID: c.SnapshotID, Status: skerry.ImageBuilding})
		err = r.withSource(ctx, c, func(ctx context.Context, s *sandbox) (err error) {
			if !r.live(s, c.MachineID) {
				return notRunning(s)
			}
			sv, err = r.takeSnapshot(ctx, s, r.snapshotDir(c.SnapshotID))
			return err
		})
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.operationOver(ctx, c, skerry.CreateSnapshot, err)
	if err != nil {
		r.log.Warn("snapshot", "sandbox_id", c.SandboxID, "snapshot_id", c.SnapshotID, "err", err)
		r.reportSnapshot(ctx, bus.SnapshotReport{SnapshotID: c.SnapshotID, Status: skerry.ImageFailed, Error: reasonFor(skerry.CreateSnapshot, err)})
		return nil
	}
	r.reportSnapshot(ctx, sv.report(c.SnapshotID))
	return nil
}

// takeSnapshot saves s into dir, unless that was done before this turn: the
// command may come twice at once.
func (r *Runner) takeSnapshot(ctx context.Context, s *sandbox, dir string) (*saved, error) {
	if sv, err := openSaved(dir); !errors.Is(err, fs.ErrNotExist) {
		return sv, err
	}
	tmp := dir + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return nil, err
	}
	sv, err := r.save(ctx, s, tmp, shim.SaveRequest{Disk: true})
	r.step("snapshot.saved")
	if err == nil {
		err = sv.write()
	}
	if err == nil {
		err = errors.Join(os.Rename(tmp, dir), syncDir(filepath.Dir(dir)))
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(tmp))
	}
	sv.dir = dir
	return sv, nil
}

// withSource runs the source's part of a copy in its turn. A source that is not
// here is an error, as somebody waits for what was to be made of it.
func (r *Runner) withSource(ctx context.Context, c bus.Command, run func(context.Context, *sandbox) error) error {
	here := false
	err := r.inTurn(ctx, c, func(ctx context.Context, s *sandbox) error {
		here = true
		return run(ctx, s)
	})
	if err == nil && !here {
		err = skerry.Errorf(skerry.CodeConflict, "sandbox %s is not on this host", c.SandboxID)
	}
	return err
}

func notRunning(s *sandbox) error {
	return skerry.Errorf(skerry.CodeConflict, "sandbox %s does not run any more", s.id)
}

// operationOver tells that the source's part of an operation is over.
func (r *Runner) operationOver(ctx context.Context, c bus.Command, op skerry.Action, err error) {
	ev := bus.Event{Kind: bus.EventOperation, RunnerID: r.cfg.ID, Time: time.Now(), SandboxID: c.SandboxID, MachineID: c.MachineID, Operation: op}
	// What was made of it tells this operation from the next one of its kind.
	if c.SnapshotID != "" {
		ev.Snapshot = &bus.SnapshotReport{SnapshotID: c.SnapshotID}
	}
	if c.ImageID != "" {
		ev.Image = &bus.ImageReport{ImageID: c.ImageID}
	}
	if err != nil {
		ev.Reason = reasonFor(op, err)
	}
	if err := r.cfg.Bus.PublishEvent(context.WithoutCancel(ctx), ev); err != nil {
		r.log.Error("publish event", "sandbox_id", c.SandboxID, "operation", op, "err", err)
	}
}

// report is what the control plane is told of a snapshot.
func (sv *saved) report(id skerry.SnapshotID) bus.SnapshotReport {
	rep := bus.SnapshotReport{SnapshotID: id, Status: skerry.ImageReady, MemoryBytes: sv.MemoryBytes, PauseMillis: (sv.StillMicros + 999) / 1000}
	var st unix.Stat_t
	if err := unix.Stat(sv.scratch(), &st); err == nil {
		rep.DiskBytes = st.Blocks * 512
	}
	return rep
}

func (r *Runner) reportSnapshot(ctx context.Context, rep bus.SnapshotReport) {
	ev := bus.Event{Kind: bus.EventSnapshot, RunnerID: r.cfg.ID, Time: time.Now(), Snapshot: &rep}
	if err := r.cfg.Bus.PublishEvent(context.WithoutCancel(ctx), ev); err != nil {
		r.log.Error("publish event", "snapshot_id", rep.SnapshotID, "status", rep.Status, "err", err)
	}
}

// deleteSnapshot removes a snapshot. Sandboxes restored from it keep what they
// have open.
func (r *Runner) deleteSnapshot(ctx context.Context, id skerry.SnapshotID) error {
	if !id.Valid() {
		return nil
	}
	dir := r.snapshotDir(id)
	r.memories.drop(dir)
	if err := errors.Join(os.RemoveAll(dir), os.RemoveAll(dir+".new")); err != nil {
		return fmt.Errorf("delete snapshot %s: %w", id, err)
	}
	r.reportSnapshot(ctx, bus.SnapshotReport{SnapshotID: id, Deleted: true})
	return nil
}

// snapshots lists what is there.
func (r *Runner) snapshots() ([]bus.SnapshotReport, error) {
	entries, err := os.ReadDir(filepath.Join(r.cfg.Dir, "snapshots"))
	if err != nil {
		return nil, err
	}
	var out []bus.SnapshotReport
	for _, e := range entries {
		id := skerry.SnapshotID(e.Name())
		if !id.Valid() {
			continue // is being made
		}
		sv, err := openSaved(r.snapshotDir(id))
		if err != nil {
			r.log.Warn("snapshot without a description", "snapshot_id", id, "err", err)
			continue
		}
		out = append(out, sv.report(id))
	}
	return out, nil
}

// restore makes a sandbox of a snapshot of this host.
func (r *Runner) restore(ctx context.Context, c bus.Command) error {
	if c.Job == nil {
		r.log.Error("malformed create", "sandbox_id", c.SandboxID)
		return nil
	}
	sv, err := openSaved(r.snapshotDir(c.Job.Snapshot))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", errDamaged, err)
	}
	if err != nil {
		sv = &saved{fault: fmt.Errorf("snapshot %s: %w", c.Job.Snapshot, err)}
	}
	return r.handleJob(ctx, *c.Job, sv, func() {})
}
