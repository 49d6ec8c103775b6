package control

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
)

// fakeRunner speaks a runner's part over the bus. Its machines are files, which
// outlive it as shims do.
type fakeRunner struct {
	bus   runnerBus
	dir   string // one file per machine: "<machine>.<sandbox>"
	epoch int64

	// skip, if set, is asked before each thing it does; true: it does not.
	skip func(what string) bool
	// twice has it say everything twice.
	twice bool
}

// runnerBus is what a runner needs of bus.Bus.
type runnerBus interface {
	ConsumeJobs(ctx context.Context, region, arch string, parallel int, handler func(context.Context, bus.CreateJob) error) error
	ConsumeCommands(ctx context.Context, runner skerry.RunnerID, handler func(context.Context, bus.Command) error) error
	Claim(ctx context.Context, r bus.ClaimRequest) (bus.ClaimReply, error)
	PublishEvent(ctx context.Context, e bus.Event) error
}

func (r *fakeRunner) run(ctx context.Context) error {
	if err := r.report(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.bus.ConsumeJobs(ctx, DefaultRegion, "amd64", 4, r.create) })
	group.Go(func() error { return r.bus.ConsumeCommands(ctx, runnerA, r.command) })
	return group.Wait()
}

func (r *fakeRunner) does(what string) bool { return r.skip == nil || !r.skip(what) }

func (r *fakeRunner) say(ctx context.Context, e bus.Event) error {
	e.RunnerID, e.Time = runnerA, time.Now()
	if e.Status != "" && !r.does(string(e.Status)) {
		return nil
	}
	err := r.bus.PublishEvent(ctx, e)
	if r.twice {
		err = errors.Join(err, r.bus.PublishEvent(ctx, e))
	}
	return err
}

func (r *fakeRunner) report(ctx context.Context) error {
	machines, err := r.machines()
	if err != nil {
		return err
	}
	report := newReport(runnerA, r.epoch)
	for machine, sandbox := range machines {
		report.Machines = append(report.Machines, bus.MachineReport{SandboxID: sandbox, MachineID: machine, Status: skerry.StatusRunning})
	}
	images, err := os.ReadDir(filepath.Join(r.dir, "images"))
	if err != nil {
		return err
	}
	for _, i := range images {
		report.Images = append(report.Images, bus.ImageReport{ImageID: skerry.ImageID(i.Name()), Status: skerry.ImageReady})
	}
	return r.say(ctx, bus.Event{Kind: bus.EventReport, Report: &report})
}

func (r *fakeRunner) machines() (map[skerry.MachineID]skerry.SandboxID, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, err
	}
	machines := map[skerry.MachineID]skerry.SandboxID{}
	for _, e := range entries {
		if machine, sandbox, ok := strings.Cut(e.Name(), "."); ok {
			machines[skerry.MachineID(machine)] = skerry.SandboxID(sandbox)
		}
	}
	return machines, nil
}

func (r *fakeRunner) create(ctx context.Context, j bus.CreateJob) error {
	machine := skerry.NewMachineID()
	if !r.does("claim") {
		return nil
	}
	for range 2 {
		reply, err := r.bus.Claim(ctx, bus.ClaimRequest{SandboxID: j.SandboxID, RunnerID: runnerA, MachineID: machine, Epoch: r.epoch})
		if err != nil || !reply.OK {
			return err
		}
		if !r.twice {
			break
		}
	}
	event := bus.Event{Kind: bus.EventSandbox, SandboxID: j.SandboxID, MachineID: machine, Status: skerry.StatusBooting}
	if err := r.say(ctx, event); err != nil {
		return err
	}
	path := filepath.Join(r.dir, string(machine)+"."+string(j.SandboxID))
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	event.Status = skerry.StatusRunning
	return r.say(ctx, event)
}

func (r *fakeRunner) command(ctx context.Context, c bus.Command) error {
	switch c.Kind {
	case bus.CommandDeleteSandbox:
		if !r.does("delete") {
			return nil
		}
		err := os.Remove(filepath.Join(r.dir, string(c.MachineID)+"."+string(c.SandboxID)))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return r.say(ctx, bus.Event{Kind: bus.EventSandbox, SandboxID: c.SandboxID, MachineID: c.MachineID, Status: skerry.StatusDeleted})
	case bus.CommandPullImage:
		if err := os.WriteFile(filepath.Join(r.dir, "images", string(c.ImageID)), nil, 0o600); err != nil {
			return err
		}
		return r.say(ctx, bus.Event{Kind: bus.EventImage, Image: &bus.ImageReport{ImageID: c.ImageID, Status: skerry.ImageReady}})
	case bus.CommandDeleteImage:
		return os.RemoveAll(filepath.Join(r.dir, "images", string(c.ImageID)))
	case bus.CommandReport:
		return r.report(ctx)
	}
	return errors.New("unknown command " + c.Kind)
}
