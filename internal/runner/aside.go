package runner

import (
	"context"
	"path/filepath"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/shim"
)

// aside is a machine that is of no sandbox, at least not yet: of the ready
// pool, or a zygote.
type aside struct {
	*shim.Process
	id skerry.MachineID
}

// startAside starts a machine and waits until it has come to a phase. On an
// error nothing is left of it.
func (r *Runner) startAside(ctx context.Context, pl plan, m manner, want shim.Phase) (aside, error) {
	a := aside{id: skerry.NewMachineID()}
	release, err := r.startToken(ctx)
	if err != nil {
		return a, err
	}
	defer release()
	if err := r.makeMachineDir(a.id); err != nil {
		return a, err
	}
	disk := diskPlan{path: filepath.Join(r.machineDir(a.id), shim.ScratchFile), mib: pl.key.ScratchMiB}
	if a.Process, err = r.startMachine(ctx, a.id, pl, disk, m); err == nil {
		err = awaitPhase(ctx, a.Process, want)
	}
	if err != nil {
		r.dropMachine(ctx, a.id)
	}
	return a, err
}

// awaitReady waits until a machine is loaded, and a warm one rehearsed, and is
// paused.
func awaitReady(ctx context.Context, proc *shim.Process) error {
	return awaitPhase(ctx, proc, shim.PhaseReady)
}

func awaitPhase(ctx context.Context, proc *shim.Process, want shim.Phase) error {
	st, err := proc.Client.WaitChange(ctx, shim.PhaseStarting)
	if err == nil && st.Phase != want {
		err = skerry.Errorf(skerry.CodeUnavailable, "machine is %s: %s", st.Phase, st.Error)
	}
	return err
}

// dropMachine ends a machine that nobody else knows of; it goes on when ctx
// ends.
func (r *Runner) dropMachine(ctx context.Context, id skerry.MachineID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if err := r.clearMachine(ctx, id, false); err != nil {
		r.log.Warn("drop machine", "machine_id", id, "err", err)
	}
}
