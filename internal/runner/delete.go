package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/shim"
)

// delete removes whatever this host has of a sandbox and says "deleted" when
// nothing is left. It may be called in any state and again: a create under way
// is cancelled and waited for.
func (r *Runner) delete(ctx context.Context, id skerry.SandboxID, machineID skerry.MachineID) error {
	r.turns.interrupt(id)
	ctx, release, err := r.turns.take(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	r.mu.Lock()
	s := r.sandboxes[id]
	if s != nil {
		s.cancel()
	}
	r.mu.Unlock()
	if s != nil {
		select {
		case <-s.settled:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// Nothing here, or a job that came again and was refused: the machine is
	// the one the control plane believes in.
	if s == nil || s.machine == "" {
		s = &sandbox{id: id, machine: machineID, cancel: func() {}}
	}
	r.step("delete.settled")
	if s.machine.Valid() {
		if err := r.clearMachine(ctx, s.machine, false); err != nil {
			return fmt.Errorf("delete sandbox %s: %w", id, err)
		}
	}
	if err := r.removeSandboxDir(id); err != nil {
		return fmt.Errorf("delete sandbox %s: %w", id, err)
	}
	r.step("delete.cleared")
	r.forget(s)
	// The answer is for the machine that was asked about: a start may have been
	// on its way here that never came.
	r.report(ctx, s, skerry.StatusDeleted, func(ev *bus.Event) {
		if machineID.Valid() {
			ev.MachineID = machineID
		}
	})
	r.log.Info("sandbox deleted", "sandbox_id", id, "machine_id", s.machine)
	return nil
}

// removeSandboxDir removes disk and memory of a persistent sandbox.
func (r *Runner) removeSandboxDir(id skerry.SandboxID) error {
	r.memories.drop(r.memoryDir(id))
	return os.RemoveAll(r.sandboxDir(id))
}

// removeMachine removes a machine that its sandbox has no more. It is not for
// the one that a sandbox of this host runs in.
func (r *Runner) removeMachine(ctx context.Context, id skerry.MachineID) error {
	if !id.Valid() {
		return nil
	}
	r.mu.Lock()
	for _, s := range r.sandboxes {
		if s.machine == id && s.kept == "" {
			r.mu.Unlock()
			r.log.Warn("refuse to remove a machine that is in use", "machine_id", id, "sandbox_id", s.id)
			return nil
		}
	}
	r.mu.Unlock()
	return r.clearMachine(ctx, id, false)
}

// clearMachine ends the processes of a machine and removes its control group
// and files. With keepLogs the directory stays with the logs, for a sandbox
// that has failed and is not deleted yet.
func (r *Runner) clearMachine(ctx context.Context, id skerry.MachineID, keepLogs bool) error {
	dir := r.machineDir(id)
	if proc, _, alive := shim.Find(dir); alive {
		if err := proc.Kill(ctx); err != nil {
			return err
		}
	}
	if err := shim.KillLeftover(ctx, dir); err != nil {
		return err
	}
	if err := errors.Join(r.cfg.Cgroups.Remove(id), r.ledger.Return(id)); err != nil {
		return err
	}
	r.step("delete.killed")
	if keepLogs {
		return clearAllButLogs(dir)
	}
	return os.RemoveAll(dir)
}

func clearAllButLogs(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".log" && e.Name() != shim.StatusFile {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
