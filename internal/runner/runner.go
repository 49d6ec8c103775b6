// Package runner is one host: it admits creates, keeps images and templates,
// starts a shim for each machine, and finds its machines again after a
// restart. It knows the control plane by messages only.
//
// A machine has a directory of its own; what is in it is the journal from
// which a successor of this process re-adopts, or removes, the machine.
package runner

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/image"
	"skerry.dev/skerry/internal/runner/cgroup"
	"skerry.dev/skerry/internal/shim"
	"skerry.dev/skerry/internal/shim/growth"
)

// claimsAtOnce bounds how many jobs are taken at a time. Claiming is quick; how
// many machines start at once is bounded by Config.Parallel.
const claimsAtOnce = 64

// Config is what a runner is made of.
type Config struct {
	ID     skerry.RunnerID
	Region string
	Arch   string
	// Dir is the data directory; the runner owns machines, templates, disks
	// and image-ids in it.
	Dir     string
	Bus     *bus.Bus
	Images  *image.Store
	Scratch *disk.Scratch
	// Prepare finds the guest's software and the hypervisor. It is asked
	// again after an error.
	Prepare func(context.Context) (Prepared, error)
	// Checks are the host's facts for the heartbeat.
	Checks func(context.Context) []skerry.Check
	// ShimArgv starts a shim; the machine's directory is appended.
	ShimArgv []string
	Network  shim.NetworkSpec
	// DropPrivileges gives each hypervisor a user id of its own; it needs root.
	DropPrivileges bool
	// PoolSize is the number of started machines kept ready.
	PoolSize int
	// Zygotes is the number of templates for which a machine to fork others
	// from is kept.
	Zygotes int
	// Parallel is how many machines may start at once.
	Parallel int
	// MemoryMiB is the memory this host guarantees and lends to sandboxes.
	MemoryMiB int64
	// CPUBurst is how many cores a sandbox may use that asks for no limit.
	CPUBurst float64
	// ColdBoot boots each sandbox instead of restoring a template.
	ColdBoot bool
	Cgroups  *cgroup.Groups
	Metrics  *Metrics
	Logger   *slog.Logger
	// Step is called at each named step of a create or delete; or nil.
	Step func(string)
}

// Runner is one host.
type Runner struct {
	cfg       Config
	log       *slog.Logger
	epoch     int64 // tells the starts of this runner apart
	memories  *memories
	templates *templates
	disks     *imageDisks
	imageIDs  *imageIDs
	pool      *pool
	zygotes   *zygotes
	starts    chan struct{} // a token for each machine that is being started
	turns     *turns

	prepareMu sync.Mutex               // held while Config.Prepare is asked
	ready     atomic.Pointer[Prepared] // nil until it succeeded
	checks    atomic.Pointer[[]skerry.Check]

	// online is closed when the control plane has been told that this host is
	// there, and in what state.
	online chan struct{}

	// life is done when Run ends; creates and watches are under it, not
	// under the message that caused them.
	life    context.Context
	endLife context.CancelFunc
	work    sync.WaitGroup

	mu        sync.Mutex
	sandboxes map[skerry.SandboxID]*sandbox // guarded by mu
	reserved  int64                         // MiB guaranteed; guarded by mu, changed by guaranteeLocked
	ledger    growth.Ledger
}

// sandbox is what this host knows of a sandbox, in one life of its machine: a
// start makes a new one.
type sandbox struct {
	id skerry.SandboxID
	// machine is set when the sandbox was claimed, under Runner.mu, and not
	// changed after.
	machine skerry.MachineID
	res     skerry.Resources
	memMiB  int64   // set aside for it; 0 while it is stopped or paused
	rec     *record // of a persistent sandbox; changed by who has the turn
	// kept is stopped or paused, or "" while there is a machine.
	kept skerry.Status

	// cancel ends the create or the watch; guarded by Runner.mu.
	cancel context.CancelFunc
	// settled is closed when no create is under way any more; proc and err
	// are set before and not changed after.
	settled chan struct{}
	proc    *shim.Process // nil when the create did not come that far
	err     error         // why the create failed, or nil
	// failed is set when the machine has ended by itself; guarded by Runner.mu.
	failed string
	// full is set while the machine stands still because the host's disk is
	// full; guarded by Runner.mu.
	full bool
}

// New prepares the directories. It does not touch machines; Run does.
func New(cfg Config) (*Runner, error) {
	for _, d := range []string{"machines", "sandboxes", "snapshots", "forks", "templates", "disks"} {
		if err := os.MkdirAll(filepath.Join(cfg.Dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	ids, err := openImageIDs(filepath.Join(cfg.Dir, "image-ids"))
	if err != nil {
		return nil, err
	}
	r := &Runner{cfg: cfg, log: cfg.Logger.With("component", "runner"), epoch: time.Now().UnixNano(),
		disks:     newImageDisks(filepath.Join(cfg.Dir, "disks"), cfg.Images),
		imageIDs:  ids,
		memories:  newMemories(),
		turns:     newTurns(),
		starts:    make(chan struct{}, cfg.Parallel),
		online:    make(chan struct{}),
		sandboxes: map[skerry.SandboxID]*sandbox{}}
	r.ledger = growth.NewLedger(filepath.Join(cfg.Dir, memoryLedger))
	if err := r.ledger.Open(cfg.MemoryMiB); err != nil {
		return nil, err
	}
	r.life, r.endLife = context.WithCancel(context.Background())
	r.templates = newTemplates(r)
	r.pool = newPool(r, cfg.PoolSize)
	r.zygotes = newZygotes(r, cfg.Zygotes)
	return r, nil
}

// Run adopts what an earlier process left and serves until ctx ends. Machines
// run on afterwards.
func (r *Runner) Run(ctx context.Context) error {
	defer r.close()
	if err := r.adopt(ctx); err != nil {
		return fmt.Errorf("adopt machines: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.heartbeat(ctx) })
	g.Go(func() error { return r.check(ctx) })
	g.Go(func() error { return r.templates.sweep(ctx) })
	g.Go(func() error { return r.pool.run(ctx) })
	g.Go(func() error { return r.cfg.Bus.ConsumeCommands(ctx, r.cfg.ID, r.handleCommand) })
	g.Go(func() error {
		return r.cfg.Bus.ConsumeJobs(ctx, r.cfg.Region, r.cfg.Arch, claimsAtOnce, func(ctx context.Context, job bus.CreateJob) error {
			return r.handleJob(ctx, job, nil, func() {})
		})
	})
	return g.Wait()
}

// Online is closed when the runner has told the control plane of itself and has
// checked the host.
func (r *Runner) Online() <-chan struct{} { return r.online }

// close waits for creates under way and ends the pool; sandboxes stay.
func (r *Runner) close() {
	r.endLife()
	r.work.Wait()
	r.pool.close()
	r.zygotes.close()
	r.memories.close()
	r.disks.close()
	r.cfg.Cgroups.Close()
}

// handleCommand carries out one order of the control plane. An error has it
// come again, so only what a later try may do better is one.
func (r *Runner) handleCommand(ctx context.Context, c bus.Command) error {
	switch c.Kind {
	case bus.CommandDeleteSandbox:
		return r.delete(ctx, c.SandboxID, c.MachineID)
	case bus.CommandRemoveMachine:
		return r.removeMachine(ctx, c.MachineID)
	case bus.CommandCreateSandbox:
		return r.restore(ctx, c)
	case bus.CommandStop:
		return r.stop(ctx, c)
	case bus.CommandStart:
		return r.start(ctx, c)
	case bus.CommandPause:
		return r.pause(ctx, c)
	case bus.CommandFork:
		return r.fork(ctx, c)
	case bus.CommandCapture:
		return r.capture(ctx, c)
	case bus.CommandSnapshot:
		return r.snapshot(ctx, c)
	case bus.CommandDeleteSnapshot:
		return r.deleteSnapshot(ctx, c.SnapshotID)
	case bus.CommandActivity:
		return r.activity(ctx, c)
	case bus.CommandPullImage, bus.CommandImportImage, bus.CommandBuildDefault:
		return r.registerImage(ctx, c, r.fetchImage)
	case bus.CommandPushImage:
		return r.pushImage(ctx, c)
	case bus.CommandDeleteImage:
		return r.deleteImage(ctx, c.ImageID)
	case bus.CommandReport:
		return r.reportAll(ctx)
	}
	r.log.Warn("unknown command", "kind", c.Kind)
	return nil
}

// report tells the control plane the new status of a sandbox. The bus keeps
// events until they are taken, so an error here means that the bus is gone;
// the successor's report of all machines then makes up for it.
func (r *Runner) report(ctx context.Context, s *sandbox, status skerry.Status, change func(*bus.Event)) {
	ev := bus.Event{Kind: bus.EventSandbox, RunnerID: r.cfg.ID, Time: time.Now(),
		SandboxID: s.id, MachineID: s.machine, Status: status}
	if change != nil {
		change(&ev)
	}
	if err := r.cfg.Bus.PublishEvent(context.WithoutCancel(ctx), ev); err != nil {
		r.log.Error("publish event", "sandbox_id", s.id, "status", status, "err", err)
	}
}

func (r *Runner) machineDir(id skerry.MachineID) string {
	return filepath.Join(r.cfg.Dir, "machines", string(id))
}

func (r *Runner) makeMachineDir(id skerry.MachineID) error {
	return os.Mkdir(r.machineDir(id), 0o700)
}

// step names a point at which tests end this process.
func (r *Runner) step(name string) {
	if r.cfg.Step != nil {
		r.cfg.Step(name)
	}
}
