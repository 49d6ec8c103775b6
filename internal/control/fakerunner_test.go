package control

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
)

// fakeRunner speaks a runner's part over the bus. What it has is in files,
// which outlive it as shims and disks do.
type fakeRunner struct {
	bus   runnerBus
	dir   string
	epoch int64
	clock Clock

	// skip, if set, is asked before each thing it does; true: it does not.
	skip func(what string) bool
	// fault, if set, is asked before each operation; other than "" it is why
	// that does not work.
	fault func(what string) string
	// use, if set, tells whether a sandbox is in use.
	use func(skerry.SandboxID) (busy bool, last time.Time)
	// twice has it say everything twice.
	twice bool
	// crash, if set, is asked before and after each thing it says; an error
	// ends what it is doing there.
	crash func() error

	mu sync.Mutex // held while it handles a message that changes what it has
}

// hostDisk is the file of a persistent sandbox, which its machines share.
type hostDisk struct {
	Machine skerry.MachineID
	Status  skerry.Status // booting: while it is made; running: while the file of the machine is there
	Files   int           // stands for what is on the disk
}

// runnerBus is what a runner needs of bus.Bus.
type runnerBus interface {
	ConsumeJobs(ctx context.Context, region, arch string, parallel int, handler func(context.Context, bus.CreateJob) error) error
	ConsumeCommands(ctx context.Context, runner skerry.RunnerID, handler func(context.Context, bus.Command) error) error
	Claim(ctx context.Context, r bus.ClaimRequest) (bus.ClaimReply, error)
	PublishEvent(ctx context.Context, e bus.Event) error
}

func (r *fakeRunner) run(ctx context.Context) error {
	if err := errors.Join(r.adopt(), r.report(ctx)); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.bus.ConsumeJobs(ctx, DefaultRegion, "amd64", 4, r.create) })
	group.Go(func() error { return r.bus.ConsumeCommands(ctx, runnerA, r.command) })
	return group.Wait()
}

// init makes the directories of a host.
func (r *fakeRunner) init() error {
	for _, d := range []string{"images", "snapshots", "disks"} {
		if err := os.MkdirAll(filepath.Join(r.dir, d), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// adopt removes what an earlier runner has left half made, or half ended.
func (r *fakeRunner) adopt() error {
	machines, err := r.machines()
	if err != nil {
		return err
	}
	for machine, id := range machines {
		if disk, ok := r.disk(id); ok && disk.Status != skerry.StatusRunning {
			err = errors.Join(err, os.Remove(r.machinePath(machine, id)))
		}
	}
	for _, name := range r.list("disks") {
		if disk, _ := r.disk(skerry.SandboxID(name)); disk.Status == skerry.StatusBooting {
			err = errors.Join(err, os.Remove(filepath.Join(r.dir, "disks", name)))
		}
	}
	return err
}

func (r *fakeRunner) does(what string) bool { return r.skip == nil || !r.skip(what) }

func (r *fakeRunner) fails(what string) string {
	if r.fault == nil {
		return ""
	}
	return r.fault(what)
}

func (r *fakeRunner) say(ctx context.Context, e bus.Event) error {
	e.RunnerID, e.Time = runnerA, time.Now()
	if e.Status != "" && !r.does(string(e.Status)) || e.Operation != "" && !r.does("end of "+string(e.Operation)) {
		return nil
	}
	if err := r.crashes(); err != nil {
		return err
	}
	err := r.bus.PublishEvent(ctx, e)
	if r.twice {
		err = errors.Join(err, r.bus.PublishEvent(ctx, e))
	}
	return errors.Join(err, r.crashes())
}

func (r *fakeRunner) crashes() error {
	if r.crash == nil {
		return nil
	}
	return r.crash()
}

// sandbox says the status of a machine.
func (r *fakeRunner) sandbox(ctx context.Context, id skerry.SandboxID, m skerry.MachineID, status skerry.Status, reason string) error {
	return r.say(ctx, bus.Event{Kind: bus.EventSandbox, SandboxID: id, MachineID: m, Status: status, Reason: reason})
}

func (r *fakeRunner) report(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	machines, err := r.machines()
	if err != nil {
		return err
	}
	report := newReport(runnerA, r.epoch)
	for machine, sandbox := range machines {
		report.Machines = append(report.Machines, bus.MachineReport{SandboxID: sandbox, MachineID: machine, Status: skerry.StatusRunning})
	}
	for _, name := range r.list("disks") {
		disk, _ := r.disk(skerry.SandboxID(name))
		m := bus.MachineReport{SandboxID: skerry.SandboxID(name), MachineID: disk.Machine, Status: disk.Status}
		switch {
		case disk.Status != skerry.StatusRunning:
		case machines[disk.Machine] != "":
			continue
		default: // its machine ended while no runner was there
			disk.Status, m.Status, m.Reason = skerry.StatusStopped, skerry.StatusStopped, "its machine ended"
			if err := r.putDisk(m.SandboxID, disk); err != nil {
				return err
			}
		}
		report.Machines = append(report.Machines, m)
	}
	for _, name := range r.list("images") {
		report.Images = append(report.Images, bus.ImageReport{ImageID: skerry.ImageID(name), Status: skerry.ImageReady})
	}
	for _, name := range r.list("snapshots") {
		report.Snapshots = append(report.Snapshots, bus.SnapshotReport{SnapshotID: skerry.SnapshotID(name), Status: skerry.ImageReady})
	}
	return r.say(ctx, bus.Event{Kind: bus.EventReport, Report: &report})
}

func (r *fakeRunner) list(dir string) (names []string) {
	entries, err := os.ReadDir(filepath.Join(r.dir, dir))
	if err != nil {
		panic(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// machines are the files "<machine>.<sandbox>".
func (r *fakeRunner) machines() (map[skerry.MachineID]skerry.SandboxID, error) {
	machines := map[skerry.MachineID]skerry.SandboxID{}
	for _, name := range r.list("") {
		if machine, sandbox, ok := strings.Cut(name, "."); ok {
			machines[skerry.MachineID(machine)] = skerry.SandboxID(sandbox)
		}
	}
	return machines, nil
}

func (r *fakeRunner) machinePath(m skerry.MachineID, id skerry.SandboxID) string {
	return filepath.Join(r.dir, string(m)+"."+string(id))
}

func (r *fakeRunner) runs(m skerry.MachineID, id skerry.SandboxID) bool {
	_, err := os.Stat(r.machinePath(m, id))
	return err == nil
}

func (r *fakeRunner) disk(id skerry.SandboxID) (d hostDisk, ok bool) {
	text, err := os.ReadFile(filepath.Join(r.dir, "disks", string(id)))
	if err != nil {
		return d, false
	}
	return d, json.Unmarshal(text, &d) == nil
}

// putDisk writes the file in one step, as the process may be killed.
func (r *fakeRunner) putDisk(id skerry.SandboxID, d hostDisk) error {
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.dir, "new disk"), text, 0o600); err != nil {
		return err
	}
	return os.Rename(filepath.Join(r.dir, "new disk"), filepath.Join(r.dir, "disks", string(id)))
}

func (r *fakeRunner) create(ctx context.Context, j bus.CreateJob) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.make(ctx, j, 0)
}

// make makes a sandbox with so many files.
func (r *fakeRunner) make(ctx context.Context, j bus.CreateJob, files int) error {
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
	if err := r.sandbox(ctx, j.SandboxID, machine, skerry.StatusBooting, ""); err != nil {
		return err
	}
	if why := r.fails("create"); why != "" {
		return r.sandbox(ctx, j.SandboxID, machine, skerry.StatusFailed, why)
	}
	if j.Persistent {
		if err := r.putDisk(j.SandboxID, hostDisk{machine, skerry.StatusBooting, files}); err != nil {
			return err
		}
	}
	if err := r.crashes(); err != nil {
		return err
	}
	if err := os.WriteFile(r.machinePath(machine, j.SandboxID), nil, 0o600); err != nil {
		return err
	}
	if j.Persistent {
		if err := r.putDisk(j.SandboxID, hostDisk{machine, skerry.StatusRunning, files}); err != nil {
			return err
		}
	}
	return r.sandbox(ctx, j.SandboxID, machine, skerry.StatusRunning, "")
}

func (r *fakeRunner) command(ctx context.Context, c bus.Command) error {
	if c.Kind == bus.CommandReport {
		return r.report(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Kind != bus.CommandDeleteSandbox && !r.does(c.Kind) {
		return nil
	}
	switch c.Kind {
	case bus.CommandDeleteSandbox, bus.CommandRemoveMachine:
		return r.remove(ctx, c)
	case bus.CommandCreateSandbox:
		return r.make(ctx, *c.Job, 0)
	case bus.CommandStop, bus.CommandPause:
		return r.rest(ctx, c)
	case bus.CommandStart:
		return r.start(ctx, c)
	case bus.CommandFork:
		return r.fork(ctx, c)
	case bus.CommandCapture, bus.CommandSnapshot:
		return r.save(ctx, c)
	case bus.CommandActivity:
		e := bus.Event{Kind: bus.EventActivity, SandboxID: c.SandboxID, MachineID: c.MachineID}
		if r.use != nil {
			e.Busy, e.LastActive = r.use(c.SandboxID)
		}
		return r.say(ctx, e)
	case bus.CommandDeleteSnapshot:
		return os.RemoveAll(filepath.Join(r.dir, "snapshots", string(c.SnapshotID)))
	case bus.CommandPullImage:
		return r.image(ctx, c.ImageID)
	case bus.CommandPushImage:
		p := skerry.PushProgress{Reference: c.Push.Reference, Status: skerry.ImageReady, Digest: "sha256:9"}
		return r.say(ctx, bus.Event{Kind: bus.EventImage, Image: &bus.ImageReport{ImageID: c.ImageID, Status: skerry.ImageReady, Push: &p}})
	case bus.CommandDeleteImage:
		return os.RemoveAll(filepath.Join(r.dir, "images", string(c.ImageID)))
	}
	return errors.New("unknown command " + c.Kind)
}

func (r *fakeRunner) image(ctx context.Context, id skerry.ImageID) error {
	if err := os.WriteFile(filepath.Join(r.dir, "images", string(id)), nil, 0o600); err != nil {
		return err
	}
	return r.say(ctx, bus.Event{Kind: bus.EventImage, Image: &bus.ImageReport{ImageID: id, Status: skerry.ImageReady, Digest: "sha256:2"}})
}

// remove removes a machine, and with a delete all that there is of the sandbox.
func (r *fakeRunner) remove(ctx context.Context, c bus.Command) error {
	if c.Kind == bus.CommandDeleteSandbox {
		if !r.does("delete") {
			return nil
		}
		if disk, ok := r.disk(c.SandboxID); ok {
			err := errors.Join(os.RemoveAll(r.machinePath(disk.Machine, c.SandboxID)), os.Remove(filepath.Join(r.dir, "disks", string(c.SandboxID))))
			if err != nil {
				return err
			}
		}
	}
	if err := os.RemoveAll(r.machinePath(c.MachineID, c.SandboxID)); err != nil {
		return err
	}
	return r.sandbox(ctx, c.SandboxID, c.MachineID, skerry.StatusDeleted, "")
}

// rest stops or pauses a machine.
func (r *fakeRunner) rest(ctx context.Context, c bus.Command) error {
	disk, ok := r.disk(c.SandboxID)
	if !ok || disk.Machine != c.MachineID {
		return nil // of an earlier machine
	}
	if disk.Status == skerry.StatusRunning {
		if why := r.fails(c.Kind); why != "" {
			return r.sandbox(ctx, c.SandboxID, c.MachineID, skerry.StatusRunning, why)
		}
		disk.Status = skerry.StatusStopped
		if c.Kind == bus.CommandPause && r.runs(c.MachineID, c.SandboxID) {
			disk.Status = skerry.StatusPaused
		}
		if err := errors.Join(r.putDisk(c.SandboxID, disk), os.RemoveAll(r.machinePath(c.MachineID, c.SandboxID))); err != nil {
			return err
		}
	}
	return r.sandbox(ctx, c.SandboxID, c.MachineID, disk.Status, "")
}

func (r *fakeRunner) start(ctx context.Context, c bus.Command) error {
	disk, ok := r.disk(c.SandboxID)
	switch {
	case !ok:
		return r.sandbox(ctx, c.SandboxID, c.MachineID, skerry.StatusFailed, "no disk")
	case disk.Machine == c.MachineID: // is done
		return r.sandbox(ctx, c.SandboxID, c.MachineID, disk.Status, "")
	case disk.Status == skerry.StatusRunning:
		return nil // of an earlier machine
	}
	before := disk.Status
	disk.Machine = c.MachineID
	if why := r.fails(c.Kind); why != "" {
		return errors.Join(r.putDisk(c.SandboxID, disk), r.sandbox(ctx, c.SandboxID, c.MachineID, before, why))
	}
	if err := r.sandbox(ctx, c.SandboxID, c.MachineID, skerry.StatusBooting, ""); err != nil {
		return err
	}
	disk.Status = skerry.StatusRunning
	if err := errors.Join(os.WriteFile(r.machinePath(c.MachineID, c.SandboxID), nil, 0o600), r.putDisk(c.SandboxID, disk)); err != nil {
		return err
	}
	return r.sandbox(ctx, c.SandboxID, c.MachineID, skerry.StatusRunning, "")
}

// over says that the source's part of an operation is over.
func (r *fakeRunner) over(ctx context.Context, c bus.Command, a skerry.Action, reason string) error {
	return r.say(ctx, bus.Event{Kind: bus.EventOperation, SandboxID: c.SandboxID, MachineID: c.MachineID, Operation: a, Reason: reason})
}

func (r *fakeRunner) fork(ctx context.Context, c bus.Command) error {
	disk, ok := r.disk(c.SandboxID)
	if !ok || disk.Machine != c.MachineID {
		return r.over(ctx, c, skerry.Fork, "no such sandbox")
	}
	if why := r.fails(c.Kind); why != "" {
		return r.over(ctx, c, skerry.Fork, why)
	}
	for _, j := range c.Jobs {
		if err := r.make(ctx, j, disk.Files); err != nil {
			return err
		}
	}
	return r.over(ctx, c, skerry.Fork, "")
}

// save makes an image or a snapshot of a sandbox.
func (r *fakeRunner) save(ctx context.Context, c bus.Command) error {
	action, status := skerry.CaptureImage, skerry.ImageReady
	if c.Kind == bus.CommandSnapshot {
		action = skerry.CreateSnapshot
	}
	say := func(status skerry.ImageStatus, why string) error {
		if action == skerry.CreateSnapshot {
			return r.say(ctx, bus.Event{Kind: bus.EventSnapshot, Snapshot: &bus.SnapshotReport{SnapshotID: c.SnapshotID, Status: status, Error: why, MemoryBytes: 1, DiskBytes: 2, PauseMillis: 3}})
		}
		return r.say(ctx, bus.Event{Kind: bus.EventImage, Image: &bus.ImageReport{ImageID: c.ImageID, Status: status, Error: why, Digest: "sha256:2"}})
	}
	disk, persistent := r.disk(c.SandboxID)
	why := r.fails(c.Kind)
	if !(persistent && disk.Machine == c.MachineID) && !r.runs(c.MachineID, c.SandboxID) {
		why = "no such sandbox"
	}
	if why != "" {
		return r.over(ctx, c, action, why)
	}
	if err := say(skerry.ImageBuilding, ""); err != nil {
		return err
	}
	if err := r.over(ctx, c, action, ""); err != nil {
		return err
	}
	name := filepath.Join("images", string(c.ImageID))
	if action == skerry.CreateSnapshot {
		name = filepath.Join("snapshots", string(c.SnapshotID))
	}
	if err := os.WriteFile(filepath.Join(r.dir, name), nil, 0o600); err != nil {
		return err
	}
	return say(status, "")
}
