package control

import (
	"context"
	"errors"
	"fmt"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// An operation is begun by one transaction, which checks that it is valid now,
// records it in the row of its sandbox and queues the command for the runner.
// It is over when the runner says so, by a status or by an EventOperation, or
// when the sandbox ends. What it needs follows from the rows, so that the same
// command can be given again to a runner that may have lost it.

// unclaimed are the statuses of a sandbox that no runner has claimed.
var unclaimed = []skerry.Status{skerry.StatusQueued, skerry.StatusPending}

// StopSandbox stops a persistent sandbox: compute is released, its files are
// kept. It returns with the sandbox stopping. Errors: CodeNotFound,
// CodeConflict for an ephemeral sandbox, one that does not run, or one with
// another operation under way, CodeGone for a deleted one.
func (c *Control) StopSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return c.operate(ctx, idOrName, skerry.Stop, func(t *txn, s *store.Sandbox) error { return c.beginStop(ctx, t, s) })
}

// StartSandbox starts a stopped sandbox, or resumes a paused one; one whose
// memory does not fit its host any more boots from its disk. It returns with the
// sandbox booting; if that does not work, it is again what it was, with
// a reason. Errors: as StopSandbox.
func (c *Control) StartSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return c.operate(ctx, idOrName, skerry.Start, func(t *txn, s *store.Sandbox) error { return c.beginStart(ctx, t, s, skerry.Start) })
}

// PauseSandbox saves memory and processes of a persistent sandbox and releases
// its compute. It returns with the sandbox pausing; if that does not work, it
// runs on, with a reason. Errors: as StopSandbox.
func (c *Control) PauseSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return c.operate(ctx, idOrName, skerry.Pause, func(t *txn, s *store.Sandbox) error { return c.beginPause(ctx, t, s) })
}

// ResumeSandbox continues a paused sandbox where it was. Otherwise it is as
// StartSandbox.
func (c *Control) ResumeSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return c.operate(ctx, idOrName, skerry.Resume, func(t *txn, s *store.Sandbox) error { return c.beginStart(ctx, t, s, skerry.Resume) })
}

// operate runs begin if the action is valid for the sandbox now.
func (c *Control) operate(ctx context.Context, idOrName string, action skerry.Action, begin func(*txn, *store.Sandbox) error) (skerry.Sandbox, error) {
	var s store.Sandbox
	err := c.update(ctx, func(t *txn) (err error) {
		if s, err = findSandbox(ctx, t, idOrName); err != nil {
			return err
		}
		if err := action.Check(s.Sandbox); err != nil {
			return err
		}
		return begin(t, &s)
	})
	if err != nil {
		return skerry.Sandbox{}, fmt.Errorf("%s sandbox: %w", action, err)
	}
	return s.Sandbox, nil
}

func (c *Control) beginStop(ctx context.Context, t *txn, s *store.Sandbox) error {
	s.Operation = skerry.Stop
	if err := t.move(ctx, s, skerry.StatusStopping); err != nil {
		return err
	}
	return t.order(ctx, *s)
}

func (c *Control) beginPause(ctx context.Context, t *txn, s *store.Sandbox) error {
	s.Operation = skerry.Pause
	if err := t.move(ctx, s, skerry.StatusPausing); err != nil {
		return err
	}
	return t.order(ctx, *s)
}

// beginStart gives s a new machine, so that what is said of the one before is
// told apart.
func (c *Control) beginStart(ctx context.Context, t *txn, s *store.Sandbox, action skerry.Action) error {
	runner, err := t.Runner(ctx, s.Runner)
	if err != nil && !isNotFound(err) {
		return err
	}
	s.Operation, s.OperationTarget = action, string(s.Status)
	s.Machine, s.RunnerEpoch = skerry.NewMachineID(), runner.Epoch
	active(s, t.now)
	if err := t.move(ctx, s, skerry.StatusBooting); err != nil {
		return err
	}
	return t.order(ctx, *s)
}

// beginCopy begins an operation during which s stays what it is.
func (t *txn) beginCopy(ctx context.Context, s *store.Sandbox, action skerry.Action, target string) error {
	s.Operation, s.OperationTarget = action, target
	if err := t.put(ctx, s); err != nil {
		return err
	}
	return t.order(ctx, *s)
}

// changesStatus reports whether an operation is over with the status it leads
// to. The others leave the status alone, and are over when the runner says so.
func changesStatus(a skerry.Action) bool {
	switch a {
	case skerry.Stop, skerry.Start, skerry.Pause, skerry.Resume:
		return true
	}
	return false
}

// order queues the command of the operation of s.
func (t *txn) order(ctx context.Context, s store.Sandbox) error {
	cmd, ok, err := command(ctx, t, s)
	switch {
	case err != nil:
		return err
	case !ok:
		return fmt.Errorf("operation %s of sandbox %s has no object", s.Operation, s.ID)
	}
	return t.command(ctx, s.Runner, cmd)
}

// command returns the command of the operation of s; false tells that there is
// nothing left to be done.
func command(ctx context.Context, r store.Reader, s store.Sandbox) (cmd bus.Command, ok bool, err error) {
	cmd = bus.Command{SandboxID: s.ID, MachineID: s.Machine}
	switch s.Operation {
	case skerry.Stop:
		cmd.Kind = bus.CommandStop
	case skerry.Pause:
		cmd.Kind = bus.CommandPause
	case skerry.Start, skerry.Resume:
		cmd.Kind = bus.CommandStart
		job, err := startJob(ctx, r, s)
		if err != nil {
			return cmd, false, err
		}
		cmd.Job, cmd.Boot = &job, s.Operation == skerry.Start
	case skerry.Fork:
		cmd.Kind = bus.CommandFork
		if cmd.Jobs, err = forkJobs(ctx, r, s); err != nil || len(cmd.Jobs) == 0 {
			return cmd, false, err
		}
	case skerry.CaptureImage:
		return captureCommand(ctx, r, skerry.ImageID(s.OperationTarget), s)
	case skerry.CreateSnapshot:
		cmd.Kind, cmd.SnapshotID = bus.CommandSnapshot, skerry.SnapshotID(s.OperationTarget)
		snapshot, err := r.Snapshot(ctx, cmd.SnapshotID)
		if err != nil || settled(snapshot.Status) {
			return cmd, false, ignoreNotFound(err)
		}
	default:
		return cmd, false, nil
	}
	return cmd, true, nil
}

// startJob says what the machine of s is made of. Its image is there as long as
// it is used; if it is not, the runner says what is missing.
func startJob(ctx context.Context, r store.Reader, s store.Sandbox) (bus.CreateJob, error) {
	image, err := r.Image(ctx, s.ImageID)
	if err = ignoreNotFound(err); err != nil {
		return bus.CreateJob{}, err
	}
	job := jobOf(s, image)
	job.Snapshot = "" // it goes on from its own disk
	job.Deadline = s.UpdatedAt.Add(skerry.DefaultCreateTimeout)
	return job, nil
}

// jobOf says what a sandbox is made of.
func jobOf(s store.Sandbox, image store.Image) bus.CreateJob {
	return bus.CreateJob{
		SandboxID: s.ID, Name: s.Name, ImageID: s.ImageID, Digest: image.Digest, Config: image.Config, User: s.User, Env: s.Env,
		Resources: s.Resources, Region: s.Region, Arch: s.Arch, Deadline: s.CreateDeadline,
		Persistent: s.Persistent, Snapshot: s.Snapshot,
	}
}

// orderAgain gives a command again that the runner may have lost, in its start
// epoch. If nothing is left to be done, the operation is over.
func (t *txn) orderAgain(ctx context.Context, s *store.Sandbox, epoch int64) error {
	cmd, ok, err := command(ctx, t, *s)
	if err != nil {
		return err
	}
	if !ok {
		if err := t.endOperation(ctx, s, ""); err != nil {
			return err
		}
		return t.put(ctx, s)
	}
	for _, job := range cmd.Jobs {
		child, err := t.Sandbox(ctx, job.SandboxID)
		if err != nil {
			return err
		}
		child.RunnerEpoch = epoch
		if err := t.put(ctx, &child); err != nil {
			return err
		}
	}
	if s.RunnerEpoch != epoch {
		s.RunnerEpoch = epoch
		if err := t.put(ctx, s); err != nil {
			return err
		}
	}
	return t.command(ctx, s.Runner, cmd)
}

// settleOperation ends the operation of s if it is over when s gets the status:
// one that changes the status when that stays so for now, another when s comes
// to its end. While s is being deleted, its copies may still be finished.
func (t *txn) settleOperation(ctx context.Context, s *store.Sandbox, to skerry.Status) error {
	switch to {
	case skerry.StatusStopping, skerry.StatusPausing, skerry.StatusBooting:
		return nil
	case skerry.StatusFailed, skerry.StatusLost, skerry.StatusDeleted:
		why := fmt.Sprintf("sandbox %s, which it was to be made of, is %s", s.ID, to)
		if to != skerry.StatusDeleted && s.Reason != "" {
			why += ": " + s.Reason
		}
		return t.endOperation(ctx, s, why)
	}
	if changesStatus(s.Operation) {
		return t.endOperation(ctx, s, "")
	}
	return nil
}

// endOperation ends the operation of s, if there is one. With a reason it did
// not work, and what it was to make has failed. The caller writes s.
func (t *txn) endOperation(ctx context.Context, s *store.Sandbox, failure string) error {
	operation, target := s.Operation, s.OperationTarget
	s.Operation, s.OperationTarget = "", ""
	if failure == "" {
		return nil
	}
	switch operation {
	case skerry.Fork:
		children, err := t.SandboxesForkedFrom(ctx, s.ID, unclaimed)
		if err != nil {
			return err
		}
		for _, child := range children {
			if err := t.fail(ctx, &child, skerry.StatusFailed, failure); err != nil {
				return err
			}
		}
	case skerry.CaptureImage:
		image, err := t.Image(ctx, skerry.ImageID(target))
		if err != nil || settled(image.Status) {
			return ignoreNotFound(err)
		}
		return t.failImage(ctx, image, failure)
	case skerry.CreateSnapshot:
		snapshot, err := t.Snapshot(ctx, skerry.SnapshotID(target))
		if err != nil || settled(snapshot.Status) {
			return ignoreNotFound(err)
		}
		return t.failSnapshot(ctx, snapshot, failure)
	}
	return nil
}

// productSettled ends the operation of a sandbox that made an image or a
// snapshot, when that is ready or failed.
func (t *txn) productSettled(ctx context.Context, source skerry.SandboxID, target string) error {
	if source == "" {
		return nil
	}
	s, err := t.Sandbox(ctx, source)
	if err != nil || s.OperationTarget != target {
		return ignoreNotFound(err)
	}
	if err := t.endOperation(ctx, &s, ""); err != nil {
		return err
	}
	return t.put(ctx, &s)
}

// operationEvent is a runner's word that the source's part of an operation is
// over. A status that comes with it is told by an event of its own, before.
func (c *Control) operationEvent(ctx context.Context, t *txn, e bus.Event) error {
	s, err := t.Sandbox(ctx, e.SandboxID)
	switch {
	case err != nil:
		return ignoreNotFound(err)
	case s.Runner != e.RunnerID || s.Machine != e.MachineID || e.Operation == "" || s.Operation != e.Operation || !isTarget(e, s.OperationTarget):
		return nil // is over already
	case !changesStatus(s.Operation):
		if s.Status != skerry.StatusDeleting {
			s.Reason = e.Reason
		}
		failure := e.Reason
		if failure != "" && s.Operation == skerry.Fork {
			failure = forkFailure(s.ID, failure)
		}
		if err := t.endOperation(ctx, &s, failure); err != nil {
			return err
		}
		return t.put(ctx, &s)
	case e.Reason == "":
		return nil // its status tells
	}
	s.Reason = e.Reason
	back := skerry.StatusRunning // of a pause
	switch s.Operation {
	case skerry.Start, skerry.Resume:
		back = skerry.Status(s.OperationTarget)
	case skerry.Stop:
		// A machine that is being stopped cannot run on; the next report has
		// the command given again.
		c.logger.Error("sandbox is not stopped", "sandbox_id", s.ID, "machine_id", s.Machine, "runner_id", s.Runner, "reason", e.Reason)
		return t.put(ctx, &s)
	}
	return t.move(ctx, &s, back)
}

// isTarget reports whether an event, if it names an image or a snapshot, names
// this one.
func isTarget(e bus.Event, target string) bool {
	return (e.Image == nil || string(e.Image.ImageID) == target) && (e.Snapshot == nil || string(e.Snapshot.SnapshotID) == target)
}

// settled reports whether an image or a snapshot is ready or failed.
func settled(s skerry.ImageStatus) bool {
	return s == skerry.ImageReady || s == skerry.ImageFailed
}

func isNotFound(err error) bool { return errors.Is(err, store.ErrNotFound) }

func ignoreNotFound(err error) error {
	if isNotFound(err) {
		return nil
	}
	return err
}
