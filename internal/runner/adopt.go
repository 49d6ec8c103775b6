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

// adopt goes through the machines' directories: sandboxes that run are taken
// over, everything half made, dead or anonymous is removed. Then it tells the
// control plane what is here, which settles what it believes otherwise.
func (r *Runner) adopt(ctx context.Context) error {
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
		if err := r.adoptOne(ctx, id); err != nil {
			return fmt.Errorf("machine %s: %w", id, err)
		}
		known[id] = true
	}
	for _, id := range r.cfg.Cgroups.leftovers() {
		if !known[id] {
			if err := r.cfg.Cgroups.remove(id); err != nil {
				r.log.Warn("remove left-over control group", "machine_id", id, "err", err)
			}
		}
	}
	return r.reportAll(ctx)
}

// adoptOne takes over one machine, or removes it; of a sandbox that failed the
// logs stay until it is deleted.
func (r *Runner) adoptOne(ctx context.Context, id skerry.MachineID) error {
	proc, st, alive := shim.Find(r.machineDir(id))
	reason := "the shim ended while the runner was down"
	if alive {
		ask, cancel := context.WithTimeout(ctx, adoptTimeout)
		now, err := proc.Client.Status(ask)
		cancel()
		if err == nil && now.Phase == shim.PhaseRunning {
			r.takeOver(&sandbox{id: now.SandboxID, machine: id, memMiB: now.MemoryMiB, proc: proc})
			return nil
		}
		reason = "the runner ended while the sandbox was being made"
		if err == nil {
			st = now
		}
	}
	if st.Error != "" {
		reason = st.Error
	}
	r.log.Info("machine removed", "machine_id", id, "sandbox_id", st.SandboxID, "reason", reason)
	if err := r.clearMachine(ctx, id, st.SandboxID != ""); err != nil {
		return err
	}
	if st.SandboxID != "" {
		r.takeOver(&sandbox{id: st.SandboxID, machine: id, failed: reason})
	}
	return nil
}

// takeOver records a sandbox that was made by a predecessor.
func (r *Runner) takeOver(s *sandbox) {
	s.settled, s.cancel = make(chan struct{}), func() {}
	close(s.settled)
	r.mu.Lock()
	r.sandboxes[s.id] = s
	r.reserved += s.memMiB
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
	rep := &bus.RunnerReport{Heartbeat: r.sign(), Images: images, Machines: r.machines()}
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
		if s.failed != "" {
			m.Status, m.Reason = skerry.StatusFailed, s.failed
		} else if m.Status == skerry.StatusRunning && s.err != nil {
			m.Status, m.Reason = skerry.StatusFailed, reasonFor(s.err)
		}
		out = append(out, m)
	}
	return out
}
