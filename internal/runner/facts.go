package runner

import (
	"context"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
)

// heartbeat reports the host's facts at once and then regularly.
func (r *Runner) heartbeat(ctx context.Context) error {
	tick := time.NewTicker(bus.HeartbeatInterval)
	defer tick.Stop()
	for {
		if err := r.cfg.Bus.PublishHeartbeat(r.sign(ctx)); err != nil && ctx.Err() == nil {
			r.log.Warn("publish heartbeat", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// sign is this runner's sign of life.
func (r *Runner) sign(ctx context.Context) bus.Heartbeat {
	return bus.Heartbeat{Runner: r.facts(ctx), Region: r.cfg.Region, Epoch: r.epoch}
}

func (r *Runner) facts(ctx context.Context) skerry.Runner {
	host, _ := os.Hostname() // display only
	r.mu.Lock()
	n := len(r.sandboxes)
	r.mu.Unlock()
	ready := r.pool.len()
	r.cfg.Metrics.machines.Set(float64(n))
	r.cfg.Metrics.ready.Set(float64(ready))
	return skerry.Runner{ID: r.cfg.ID, Hostname: host, Arch: r.cfg.Arch,
		Accel: r.accel(), Facts: r.cfg.Checks(ctx), Machines: n, ReadyPool: ready,
		CPUs: runtime.NumCPU(), MemoryMiB: r.cfg.MemoryMiB, DiskFreeMiB: diskFreeMiB(r.cfg.Dir)}
}

func diskFreeMiB(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize >> 20
}

// accel is the accelerator in use, "" as long as the hypervisor is not ready.
func (r *Runner) accel() string {
	r.prepareMu.Lock()
	defer r.prepareMu.Unlock()
	if r.ready == nil {
		return ""
	}
	return r.ready.Driver.Accel
}
