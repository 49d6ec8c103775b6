package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/shim"
)

// adoptTimeout is how long a shim may take to answer its runner's successor.
const adoptTimeout = 5 * time.Second

// adopt goes through the machines' and the sandboxes' directories: sandboxes
// that run are taken over, everything half made, dead or anonymous is removed,
// persistent sandboxes without a machine are what their record says. Then it
// tells the control plane what is here, which settles what it believes
// otherwise.
func (r *Runner) adopt(ctx context.Context) error {
	records, err := r.readRecords()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(r.cfg.Dir, "machines"))
	if err != nil {
		return err
	}
	known := map[skerry.MachineID]bool{}
	for _, e := range entries {
		id := skerry.MachineID(e.Name())
		if !id.Valid() {
			r.log.Warn("foreign entry among the machines", "name", e.Name())
			continue
		}
		if err := r.adoptMachine(ctx, id, records); err != nil {
			return fmt.Errorf("machine %s: %w", id, err)
		}
		known[id] = true
	}
	for id, rec := range records {
		if rec == nil || r.current(id) != nil {
			continue // is lost, or runs
		}
		if err := r.adoptKept(rec); err != nil {
			return fmt.Errorf("sandbox %s: %w", id, err)
		}
	}
	for _, id := range r.cfg.Cgroups.Machines() {
		if !known[id] {
			if err := r.cfg.Cgroups.Remove(id); err != nil {
				r.log.Warn("remove left-over control group", "machine_id", id, "err", err)
			}
		}
	}
	if err := r.ledger.Keep(func(id skerry.MachineID) bool { return known[id] }); err != nil {
		return err
	}
	if err := r.sweepSaved(); err != nil {
		return err
	}
	return r.reportAll(ctx)
}

// adoptMachine takes over one machine, or removes it; of a sandbox that failed
// the logs stay until it is deleted.
func (r *Runner) adoptMachine(ctx context.Context, id skerry.MachineID, records map[skerry.SandboxID]*record) error {
	proc, st, alive := shim.Find(r.machineDir(id))
	reason := "the shim ended while the runner was down"
	asked := false // st is the shim's word, not what it wrote last
	if alive {
		now, err := r.askShim(ctx, proc)
		if asked = err == nil; asked {
			st = now
		}
		rec, kept := records[st.SandboxID]
		if err == nil && now.Phase == shim.PhaseSaved && rec != nil && rec.Status == skerry.StatusRunning {
			// The pause did not come to its end. It is asked for again.
			if err = proc.Client.Resume(ctx); err == nil {
				now.Phase = shim.PhaseRunning
			}
		}
		if err == nil && now.Phase.Live() && (!kept || rec != nil && rec.MachineID == id) {
			return r.adoptRunning(proc, now, rec)
		}
		reason = "its shim did not answer the runner's successor"
	}
	if st.Error != "" {
		reason = st.Error
	}
	r.log.Info("machine removed", "machine_id", id, "sandbox_id", st.SandboxID, "phase", st.Phase, "reason", reason)
	rec, kept := records[st.SandboxID]
	earlier := rec != nil && rec.MachineID != id
	// It never was a sandbox. The control plane, which is not told of it, has the
	// sandbox made again.
	unmade := !kept && st.Phase == shim.PhaseActivating || rec != nil && rec.Status == skerry.StatusBooting
	if err := r.clearMachine(ctx, id, st.SandboxID != "" && !earlier && !unmade); err != nil {
		return err
	}
	switch {
	case asked && st.Phase == shim.PhaseReady:
		return r.startUndone(id, records)
	case st.SandboxID == "" || earlier || unmade:
	case kept && rec == nil: // is lost
	case rec == nil:
		r.takeOver(&sandbox{id: st.SandboxID, machine: id, failed: reason})
	case rec.Status != skerry.StatusRunning: // and why is in the record
	case st.Phase == shim.PhaseStopped:
		return r.changeRecord(rec, skerry.StatusStopped, "") // in order
	default:
		return r.changeRecord(rec, skerry.StatusStopped, reason)
	}
	return nil
}

// startUndone settles the persistent sandbox whose machine was started and never
// let run: its disk is as it was, and so its memory, if it was paused, still
// belongs to it.
func (r *Runner) startUndone(id skerry.MachineID, records map[skerry.SandboxID]*record) error {
	for _, rec := range records {
		if rec == nil || rec.MachineID != id || rec.Status != skerry.StatusRunning {
			continue
		}
		status := skerry.StatusStopped
		if _, err := openSaved(r.memoryDir(rec.SandboxID)); err == nil {
			status = skerry.StatusPaused
		}
		return r.changeRecord(rec, status, "it could not be started: the runner ended meanwhile")
	}
	return nil
}

// askShim returns the status of a shim. An activation under way comes to its end
// without the runner that began it.
func (r *Runner) askShim(ctx context.Context, proc *shim.Process) (shim.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	st, err := proc.Client.Status(ctx)
	if err == nil && st.Phase == shim.PhaseActivating {
		st, err = proc.Client.WaitChange(ctx, shim.PhaseActivating)
	}
	return st, err
}

// adoptRunning takes over a sandbox that runs.
func (r *Runner) adoptRunning(proc *shim.Process, st shim.Status, rec *record) error {
	s := &sandbox{id: st.SandboxID, machine: st.MachineID, memMiB: st.MemoryMiB, rec: rec, proc: proc, full: st.Phase == shim.PhaseFull}
	if rec != nil {
		if rec.Status != skerry.StatusRunning {
			if err := r.setRecord(s, skerry.StatusRunning, st.MachineID, ""); err != nil {
				return err
			}
		}
		if err := r.dropMemory(s.id); err != nil {
			return err
		}
	}
	r.takeOver(s)
	return nil
}

// adoptKept settles a persistent sandbox whose machine is gone.
func (r *Runner) adoptKept(rec *record) error {
	switch rec.Status {
	case skerry.StatusBooting:
		return r.removeSandboxDir(rec.SandboxID) // it never was a sandbox, see adoptMachine
	case skerry.StatusRunning:
		if err := r.changeRecord(rec, skerry.StatusStopped, "its machine ended while the runner was down"); err != nil {
			return err
		}
	}
	if rec.Status != skerry.StatusPaused {
		if err := r.dropMemory(rec.SandboxID); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(r.memoryDir(rec.SandboxID) + ".new"); err != nil {
		return err
	}
	s := keptSandbox(rec)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sandboxes[s.id] = s
	return nil
}

// sweepSaved removes what saves, forks and captures have left half made.
func (r *Runner) sweepSaved() error {
	unfinished, err := filepath.Glob(filepath.Join(r.cfg.Dir, "snapshots", "*.new"))
	if err != nil {
		return err
	}
	forks, err := filepath.Glob(filepath.Join(r.cfg.Dir, "forks", "*"))
	if err != nil {
		return err
	}
	for _, path := range append(unfinished, forks...) {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// takeOver records a sandbox that was made by a predecessor.
func (r *Runner) takeOver(s *sandbox) {
	s.settled, s.cancel = make(chan struct{}), func() {}
	close(s.settled)
	r.mu.Lock()
	r.sandboxes[s.id] = s
	r.guaranteeLocked(r.reserved+s.memMiB, true)
	r.mu.Unlock()
	if s.failed == "" {
		r.log.Info("sandbox adopted", "sandbox_id", s.id, "machine_id", s.machine)
		r.watch(s)
	}
}

// reportAll tells the control plane everything this host has.
func (r *Runner) reportAll(ctx context.Context) error {
	images, err := r.imageIDs.all()
	if err != nil {
		return err
	}
	snapshots, err := r.snapshots()
	if err != nil {
		return err
	}
	rep := &bus.RunnerReport{Heartbeat: r.sign(), Images: images, Machines: r.machines(), Snapshots: snapshots}
	return r.cfg.Bus.PublishEvent(ctx, bus.Event{Kind: bus.EventReport, RunnerID: r.cfg.ID, Time: time.Now(), Report: rep})
}

// machines lists the sandboxes that are settled; of one that is being made its
// own events tell.
func (r *Runner) machines() []bus.MachineReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []bus.MachineReport
	for _, s := range r.sandboxes {
		m := bus.MachineReport{SandboxID: s.id, MachineID: s.machine, Status: skerry.StatusRunning}
		select {
		case <-s.settled:
		default:
			if s.machine == "" {
				continue // not claimed yet
			}
			m.Status = skerry.StatusBooting
		}
		if s.kept != "" {
			m.Status, m.Reason = s.kept, s.rec.Reason
		} else if s.failed != "" {
			m.Status, m.Reason = skerry.StatusFailed, s.failed
		} else if m.Status == skerry.StatusRunning && s.err != nil {
			m.Status, m.Reason = skerry.StatusFailed, reasonFor("create", s.err)
		} else if s.full {
			m.Reason = bus.ReasonFull
		}
		out = append(out, m)
	}
	return out
}
