package runner

import (
	"context"
	"os"
	"runtime"
	"sync"
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
		r.publishHeartbeat(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *Runner) publishHeartbeat(ctx context.Context) {
	if err := r.cfg.Bus.PublishHeartbeat(r.sign()); err != nil && ctx.Err() == nil {
		r.log.Warn("publish heartbeat", "err", err)
	}
}

// checksInterval is how often the host's prerequisites are checked.
const checksInterval = time.Minute

// check keeps the facts about the host fresh. It is apart from the heartbeat,
// because a check may take long: the first one can fetch a kernel.
func (r *Runner) check(ctx context.Context) error {
	online := sync.OnceFunc(func() { close(r.online) })
	tick := time.NewTicker(checksInterval)
	defer tick.Stop()
	for {
		// The accelerator is known once all is prepared; why it cannot be is
		// what the checks say.
		if _, err := r.prepared(ctx); err != nil {
			r.log.Debug("host is not ready", "err", err)
		}
		checks := r.cfg.Checks(ctx)
		r.checks.Store(&checks)
		r.publishHeartbeat(ctx)
		online()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// sign is this runner's sign of life.
func (r *Runner) sign() bus.Heartbeat {
	return bus.Heartbeat{Runner: r.facts(), Region: r.cfg.Region, Epoch: r.epoch}
}

func (r *Runner) facts() skerry.Runner {
	host, _ := os.Hostname() // display only
	r.mu.Lock()
	n := len(r.sandboxes)
	r.mu.Unlock()
	ready := r.pool.len()
	var checks []skerry.Check
	if c := r.checks.Load(); c != nil {
		checks = *c
	}
	r.cfg.Metrics.machines.Set(float64(n))
	r.cfg.Metrics.ready.Set(float64(ready))
	return skerry.Runner{ID: r.cfg.ID, Hostname: host, Arch: r.cfg.Arch,
		Accel: r.accel(), Facts: checks, Machines: n, ReadyPool: ready,
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
	if p := r.ready.Load(); p != nil {
		return p.Driver.Accel
	}
	return ""
}
