package control

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// report compares what a runner has with what is recorded, and settles each
// difference: by the runner's word on what it has, by giving up what it does
// not have, by a command to remove what it should not have.
func (c *Control) report(ctx context.Context, r bus.RunnerReport) error {
	var current bool
	err := c.updateLazily(ctx, func(t *txn) (err error) {
		_, current, err = c.recordHeartbeat(ctx, t, r.Heartbeat)
		if err != nil || !current {
			return err
		}
		machines := map[skerry.MachineID]bool{}
		for _, m := range r.Machines {
			machines[m.MachineID] = true
		}
		listed := map[skerry.SandboxID]bool{}
		for _, m := range r.Machines {
			has, err := c.reportedMachine(ctx, t, r, m, machines)
			if err != nil {
				return fmt.Errorf("machine %s: %w", m.MachineID, err)
			}
			if has {
				listed[m.SandboxID] = true
			}
		}
		if err := c.unlistedSandboxes(ctx, t, r, listed); err != nil {
			return err
		}
		if err := c.reportedImages(ctx, t, r); err != nil {
			return err
		}
		return c.reportedSnapshots(ctx, t, r)
	})
	if err != nil {
		return fmt.Errorf("report of %s: %w", r.Runner.ID, err)
	}
	if current {
		c.sawRunner(r.Heartbeat)
	}
	return nil
}

// reportedMachine settles a machine of a report, which lists machines. It
// returns true when the runner has what it should have of the sandbox.
func (c *Control) reportedMachine(ctx context.Context, t *txn, r bus.RunnerReport, m bus.MachineReport, machines map[skerry.MachineID]bool) (has bool, err error) {
	if !m.SandboxID.Valid() || !m.MachineID.Valid() {
		c.logger.Error("ignore malformed machine in a report", "runner_id", r.Runner.ID, "machine_id", m.MachineID)
		return false, nil
	}
	s, err := t.Sandbox(ctx, m.SandboxID)
	if err != nil && !isNotFound(err) {
		return false, err
	}
	over := err != nil || s.Status == skerry.StatusDeleted || s.Status == skerry.StatusDeleting
	own := s.Runner == r.Runner.ID && s.Machine == m.MachineID
	switch {
	case m.Status == skerry.StatusDeleted:
		return false, nil // as good as not listed
	case over:
		return c.deleteReported(ctx, t, r, m, s)
	case waitsForRunner(s) && s.Machine == "" && (s.Runner == "" || s.Runner == r.Runner.ID):
		// Its claim was answered, and that lost in a power failure.
		s.Runner, s.Machine, s.RunnerEpoch = r.Runner.ID, m.MachineID, r.Epoch
		if err := t.move(ctx, &s, skerry.StatusAssigned); err != nil {
			return false, err
		}
		return true, c.ownMachine(ctx, t, r, m, s)
	case own && (s.Persistent || s.Status != skerry.StatusLost):
		return true, c.ownMachine(ctx, t, r, m, s)
	case !own && s.Persistent && s.Runner == r.Runner.ID && s.Machine != "" && !machines[s.Machine]:
		return c.earlierMachine(ctx, t, r, m, s)
	}
	c.logger.Warn("remove machine that its sandbox does not have", "runner_id", r.Runner.ID, "sandbox_id", m.SandboxID, "machine_id", m.MachineID)
	return own, t.removeMachine(ctx, r.Runner.ID, m.SandboxID, m.MachineID)
}

// deleteReported has all removed that a runner has of a sandbox that is being
// deleted, is deleted, or unknown.
func (c *Control) deleteReported(ctx context.Context, t *txn, r bus.RunnerReport, m bus.MachineReport, s store.Sandbox) (has bool, err error) {
	c.logger.Warn("delete sandbox that should not be there", "runner_id", r.Runner.ID, "sandbox_id", m.SandboxID, "machine_id", m.MachineID)
	if err := t.deleteMachine(ctx, r.Runner.ID, m.SandboxID, m.MachineID); err != nil {
		return false, err
	}
	if s.Status != skerry.StatusDeleting || s.Runner != r.Runner.ID || s.Machine == m.MachineID {
		return s.Runner == r.Runner.ID, nil
	}
	return true, t.deleteMachine(ctx, r.Runner.ID, s.ID, s.Machine) // whose answer ends the delete
}

// ownMachine applies what a runner says of the machine that s has. A report may
// be older than the command of an operation, or the command lost: a status that
// the operation begins with has it given again.
func (c *Control) ownMachine(ctx context.Context, t *txn, r bus.RunnerReport, m bus.MachineReport, s store.Sandbox) error {
	begins := m.Status == skerry.StatusRunning && (s.Operation == skerry.Stop || s.Operation == skerry.Pause)
	if !begins {
		if _, err := c.applyStatus(ctx, t, &s, bus.Event{Status: m.Status, Reason: m.Reason}); err != nil {
			return err
		}
	}
	if s.Operation == "" || s.Status == skerry.StatusDeleting {
		return nil
	}
	return t.orderAgain(ctx, &s, r.Epoch)
}

// earlierMachine settles a persistent sandbox of which its runner has another
// machine than it should. If the command to start the new one may not have
// reached it, it is given again. Else the runner's word on what it has counts, if
// it was started again since or was given up.
func (c *Control) earlierMachine(ctx context.Context, t *txn, r bus.RunnerReport, m bus.MachineReport, s store.Sandbox) (has bool, err error) {
	atRest := m.Status == skerry.StatusStopped || m.Status == skerry.StatusPaused
	lost := s.Status == skerry.StatusLost
	switch {
	case s.Operation == skerry.Start || s.Operation == skerry.Resume:
		return true, t.orderAgain(ctx, &s, r.Epoch)
	case !atRest:
		return false, t.removeMachine(ctx, r.Runner.ID, s.ID, m.MachineID)
	case !lost && s.RunnerEpoch >= r.Epoch:
		return true, nil // the new one is newer than the report
	}
	if lost { // its start, still on the way, must not have its way
		if err := t.removeMachine(ctx, r.Runner.ID, s.ID, s.Machine); err != nil {
			return false, err
		}
	}
	s.Machine, s.RunnerEpoch = m.MachineID, r.Epoch
	applied, err := c.applyStatus(ctx, t, &s, bus.Event{Status: m.Status, Reason: m.Reason})
	if err != nil || applied {
		return true, err
	}
	return true, t.put(ctx, &s)
}

// unlistedSandboxes settles the sandboxes of a runner that it does not have.
// Those claimed since its start may be on their way: their claim may have been
// answered after the report was written. So may copies of a fork that was
// ordered since. A create that was under way is offered again.
func (c *Control) unlistedSandboxes(ctx context.Context, t *txn, r bus.RunnerReport, listed map[skerry.SandboxID]bool) error {
	sandboxes, err := t.SandboxesOnRunner(ctx, r.Runner.ID)
	if err != nil {
		return err
	}
	for _, s := range sandboxes {
		// Read again: a copy may have failed with its source.
		if s, err = t.Sandbox(ctx, s.ID); err != nil {
			return err
		}
		switch {
		case listed[s.ID]:
		case waitsForRunner(s):
			if s.ForkedFrom != "" && s.RunnerEpoch < r.Epoch {
				err = t.fail(ctx, &s, skerry.StatusFailed, forkFailure(s.ForkedFrom, "its runner was restarted before this copy was made"))
			}
		case s.RunnerEpoch < r.Epoch && beingMade(s):
			err = t.offerAgain(ctx, &s)
		case s.RunnerEpoch < r.Epoch:
			_, err = c.machineGone(ctx, t, &s, "its runner was restarted and does not have its machine")
		case s.Status == skerry.StatusDeleting:
			err = t.deleteMachine(ctx, r.Runner.ID, s.ID, s.Machine)
		}
		if err != nil {
			return fmt.Errorf("sandbox %s: %w", s.ID, err)
		}
	}
	return nil
}

// reportedImages compares the images of a runner with those it was told to make.
func (c *Control) reportedImages(ctx context.Context, t *txn, r bus.RunnerReport) error {
	reports := map[skerry.ImageID]bus.ImageReport{}
	for _, i := range r.Images {
		if !i.Deleted {
			reports[i.ImageID] = i
		}
	}
	for _, id := range slices.Sorted(maps.Keys(reports)) {
		if err := c.imageEvent(ctx, t, r.Runner.ID, reports[id]); err != nil {
			return err
		}
	}
	images, err := t.Images(ctx)
	if err != nil {
		return err
	}
	for _, i := range images {
		report, listed := reports[i.ID]
		switch {
		case i.Runner != r.Runner.ID:
		case !listed:
			err = missingImage(ctx, t, i)
		case pushing(i) && report.Push == nil:
			err = t.pushAgain(ctx, i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
