package control

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

const walkSteps = 1000

// TestRandomWalk does what users, hosts and failures do, in random order, over
// several sandboxes at once: operations, messages delivered late and twice,
// operations that do not work, control plane and runner killed, the message
// store lost, the host rebooted. Now and then everything is let come to rest;
// then every sandbox must be what the model says, nothing may be under way, and
// the host must have exactly what is recorded, with all files.
func TestRandomWalk(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			walk := newWalk(t, seed)
			for i := range walkSteps {
				walk.step()
				if i%25 == 24 || i == walkSteps-1 {
					walk.settle()
				}
			}
			t.Logf("%d operations accepted, %d refused; %v", walk.accepted, walk.refused, walk.did)
			if walk.accepted < walkSteps/20 || walk.refused == 0 {
				t.Error("the walk does not try much")
			}
		})
	}
}

type walk struct {
	t      *testing.T
	w      *world
	post   *post
	random *rand.Rand
	calm   bool // no faults and crashes, to come to rest
	// rebooted: the host was rebooted since all was at rest, which may not be
	// reported yet.
	rebooted bool

	sandboxes map[skerry.SandboxID]*modelSandbox
	order     []skerry.SandboxID // of their creation, so that a walk can be repeated
	products  map[string]string  // ids of images and snapshots: "making" or "deleted"
	made      []string           // their order

	accepted, refused int
	did               map[string]int
}

// modelSandbox is what a user knows of a sandbox.
type modelSandbox struct {
	persistent bool
	may        map[skerry.Status]bool // what it can be once all is at rest
	files      int                    // written to it
	least      int                    // of a copy: files its source had when the copy was asked for
	source     *modelSandbox          // of a copy that did not come to rest yet
}

// most is how many files it can have: a copy that did not come to rest before its
// end has at most its source's.
func (m *modelSandbox) most() int {
	if m.source != nil {
		return m.source.most()
	}
	return m.files
}

var errCrash = errors.New("crash")

func newWalk(t *testing.T, seed uint64) *walk {
	w := newWorld(t)
	walk := &walk{t: t, w: w, random: rand.New(rand.NewPCG(seed, 7)), sandboxes: map[skerry.SandboxID]*modelSandbox{},
		products: map[string]string{}, did: map[string]int{}}
	walk.post = w.byHand()
	walk.post.runner.twice = seed%2 == 1
	walk.post.runner.fault = func(what string) string {
		if walk.calm || walk.random.IntN(8) != 0 || what == "sandbox.stop" {
			return ""
		}
		return "fault of " + what
	}
	return walk
}

// chance is true once in n times.
func (k *walk) chance(n int) bool { return k.random.IntN(n) == 0 }

func (k *walk) step() {
	k.t.Helper()
	k.post.runner.crash = func() error {
		if !k.calm && k.chance(60) {
			return errCrash
		}
		return nil
	}
	if !k.chance(2) {
		if _, err := k.post.step(k.random); errors.Is(err, errCrash) {
			k.did["runner crash"]++
			k.unsettled(skerry.StatusFailed)
			k.calm = true // the report is not cut off
			k.post.restartRunner()
			k.calm = false
		} else {
			must(k.t, err)
		}
		return
	}
	switch k.random.IntN(32) {
	case 0:
		k.did["control restart"]++
		k.post.restartControl()
	case 1:
		k.did["messages lost"]++
		k.post.orders, k.post.events = nil, nil
		k.unsettled(skerry.StatusFailed)
		k.post.restartControl()
		k.restartRunner()
	case 2:
		k.reboot()
	case 3, 4, 5:
		k.create()
	case 6, 7, 8:
		k.write()
	default:
		k.operate()
	}
}

func (k *walk) restartRunner() {
	k.calm = true
	k.post.restartRunner()
	k.calm = false
}

// unsettled lets sandboxes that are being made have the status too.
func (k *walk) unsettled(status skerry.Status) {
	for id, m := range k.sandboxes {
		if k.w.row(id).StartedAt == nil && !m.may[skerry.StatusDeleted] {
			m.may[status] = true
		}
	}
}

// reboot ends all machines; disks and saved memory stay.
func (k *walk) reboot() {
	k.did["reboot"]++
	k.rebooted = true
	machines, err := k.post.runner.machines()
	must(k.t, err)
	for machine, id := range machines {
		must(k.t, os.Remove(k.post.runner.machinePath(machine, id)))
	}
	for _, m := range k.sandboxes {
		switch {
		case m.may[skerry.StatusDeleted]:
		case m.persistent && (m.may[skerry.StatusRunning] || m.may[skerry.StatusPaused]):
			m.may[skerry.StatusStopped] = true
		case !m.persistent && m.may[skerry.StatusRunning]:
			m.may[skerry.StatusLost], m.may[skerry.StatusFailed] = true, true
		}
	}
	k.unsettled(skerry.StatusFailed)
	k.restartRunner()
}

func (k *walk) create() {
	req := request("")
	req.Persistent = !k.chance(4)
	req.Spot = k.chance(4)
	s, _, err := k.w.CreateSandbox(k.t.Context(), req)
	must(k.t, err)
	k.add(s, nil)
}

func (k *walk) add(s skerry.Sandbox, source *modelSandbox) {
	m := &modelSandbox{persistent: s.Persistent, may: statuses(skerry.StatusRunning, skerry.StatusFailed), source: source}
	if source != nil {
		m.least = source.files
	}
	k.sandboxes[s.ID] = m
	k.order = append(k.order, s.ID)
}

func statuses(list ...skerry.Status) map[skerry.Status]bool {
	set := map[skerry.Status]bool{}
	for _, s := range list {
		set[s] = true
	}
	return set
}

// write has a persistent sandbox that runs get one file more.
func (k *walk) write() {
	id, m := k.pick()
	disk, ok := k.post.runner.disk(id)
	if m == nil || m.source != nil || !ok || !k.post.runner.runs(disk.Machine, id) {
		return
	}
	disk.Files++
	m.files++
	must(k.t, k.post.runner.putDisk(id, disk))
}

// pick returns one of the sandboxes, mostly one that can be used, or nil.
func (k *walk) pick() (skerry.SandboxID, *modelSandbox) {
	var ids []skerry.SandboxID
	for _, id := range k.order {
		may := k.sandboxes[id].may
		over := may[skerry.StatusDeleted] || len(may) == 1 && (may[skerry.StatusFailed] || may[skerry.StatusLost])
		if !over || k.chance(20) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return "", nil
	}
	id := ids[k.random.IntN(len(ids))]
	return id, k.sandboxes[id]
}

// operate does one of the operations to one of the sandboxes, and checks that it
// is accepted exactly when the table says so.
func (k *walk) operate() {
	id, m := k.pick()
	if m == nil {
		return
	}
	actions := []skerry.Action{skerry.Stop, skerry.Start, skerry.Start, skerry.Pause, skerry.Resume, skerry.Fork, skerry.CaptureImage,
		skerry.CreateSnapshot, skerry.Reclaim, skerry.Delete, "restore", "delete product"}
	action := actions[k.random.IntN(len(actions))]
	if action == "restore" || action == "delete product" {
		k.useProduct(action)
		return
	}
	row := k.w.row(id)
	refusal := action.Check(row.Sandbox)
	if action == skerry.Reclaim && !row.Spot {
		refusal = errors.New("not spot")
	}
	err := k.act(action, id, m, row.Status)
	if (err == nil) != (refusal == nil) {
		k.t.Fatalf("%s of %s sandbox (operation %q): %v, the table says %v", action, row.Status, row.Operation, err, refusal)
	}
	k.did[string(action)]++
	if err != nil {
		k.refused++
	} else {
		k.accepted++
	}
}

func (k *walk) act(action skerry.Action, id skerry.SandboxID, m *modelSandbox, before skerry.Status) error {
	ctx, ref := k.t.Context(), string(id)
	become := func(err error, list ...skerry.Status) error {
		if err == nil {
			m.may = statuses(list...)
			m.may[skerry.StatusStopped] = m.may[skerry.StatusStopped] || k.rebooted && !m.may[skerry.StatusDeleted]
		}
		return err
	}
	switch action {
	case skerry.Stop:
		_, err := k.w.StopSandbox(ctx, ref)
		return become(err, skerry.StatusStopped)
	case skerry.Start:
		_, err := k.w.StartSandbox(ctx, ref)
		return become(err, skerry.StatusRunning, before)
	case skerry.Pause:
		_, err := k.w.PauseSandbox(ctx, ref)
		return become(err, skerry.StatusPaused, skerry.StatusRunning)
	case skerry.Resume:
		_, err := k.w.ResumeSandbox(ctx, ref)
		return become(err, skerry.StatusRunning, before)
	case skerry.Delete:
		_, err := k.w.DeleteSandbox(ctx, ref)
		return become(err, skerry.StatusDeleted)
	case skerry.Reclaim:
		_, err := k.w.ReclaimSandbox(ctx, ref)
		if err == nil && !m.persistent {
			return become(nil, skerry.StatusDeleted)
		}
		if err == nil {
			m.may[skerry.StatusPaused] = true
		}
		return err
	case skerry.CaptureImage:
		i, err := k.w.CaptureImage(ctx, ref, skerry.CaptureRequest{})
		if err == nil {
			k.product(string(i.ID))
		}
		return err
	case skerry.CreateSnapshot:
		s, err := k.w.CreateSnapshot(ctx, ref, skerry.RandomToken(12))
		if err == nil {
			k.product(string(s.ID))
		}
		return err
	default:
		children, err := k.w.ForkSandbox(ctx, ref, skerry.ForkRequest{Count: 1 + k.random.IntN(3)})
		for _, s := range children {
			k.add(s, m)
		}
		return err
	}
}

func (k *walk) product(id string) {
	k.products[id] = "making"
	k.made = append(k.made, id)
}

// useProduct restores or deletes an image or a snapshot.
func (k *walk) useProduct(action skerry.Action) {
	if len(k.made) == 0 {
		return
	}
	id := k.made[k.random.IntN(len(k.made))]
	ctx := k.t.Context()
	k.did[string(action)]++
	switch snapshot := skerry.SnapshotID(id).Valid(); {
	case action == "restore" && snapshot:
		if s, _, err := k.w.RestoreSnapshot(ctx, id, skerry.RestoreRequest{}); err == nil {
			k.add(s, nil)
		}
	case action == "restore":
		req := request("")
		req.Image = id
		if s, _, err := k.w.CreateSandbox(ctx, req); err == nil {
			k.add(s, nil)
		}
	case snapshot:
		if k.w.DeleteSnapshot(ctx, id) == nil {
			k.products[id] = "deleted"
		}
	default:
		if k.w.DeleteImage(ctx, id) == nil {
			k.products[id] = "deleted"
		}
	}
}

// settle lets everything come to rest, and compares.
func (k *walk) settle() {
	k.t.Helper()
	k.calm = true
	for range 2 { // the second time, what the timers begin
		k.post.drain()
		k.w.clock.advance(actionRetry)
		must(k.t, k.w.heartbeat(k.t.Context(), newReport(runnerA, k.post.runner.epoch).Heartbeat))
		_, err := k.w.fireTimers(k.t.Context())
		must(k.t, err)
	}
	k.post.drain()
	k.calm, k.rebooted = false, false
	machines, err := k.post.runner.machines()
	must(k.t, err)
	disks := k.post.runner.list("disks")
	for _, id := range k.order { // sources before their copies
		m, s := k.sandboxes[id], k.w.row(id)
		if !m.may[s.Status] || s.Operation != "" || !s.DueAt.IsZero() {
			k.t.Fatalf("sandbox %s is %s (%s), operation %q, due %v; the model says %v", id, s.Status, s.Reason, s.Operation, s.DueAt, m.may)
		}
		if s.Status == skerry.StatusFailed && s.ForkedFrom == "" && m.may[skerry.StatusRunning] && !strings.HasPrefix(s.Reason, "fault of ") {
			k.t.Fatalf("sandbox %s is failed, though nothing kept it from being made: %s", id, s.Reason)
		}
		m.may = statuses(s.Status)
		if s.Status == skerry.StatusRunning {
			if machines[s.Machine] != id {
				k.t.Fatalf("sandbox %s has no machine", id)
			}
			delete(machines, s.Machine)
		}
		if !m.persistent || s.Status == skerry.StatusDeleted || s.Status == skerry.StatusFailed {
			continue
		}
		disks = slices.DeleteFunc(disks, func(d string) bool { return d == string(id) })
		k.settleDisk(s, m)
	}
	// A create that failed may have left a disk, which its delete removes.
	disks = slices.DeleteFunc(disks, func(d string) bool {
		m := k.sandboxes[skerry.SandboxID(d)]
		return m != nil && m.may[skerry.StatusFailed]
	})
	for machine, id := range machines {
		if k.sandboxes[id].may[skerry.StatusFailed] {
			delete(machines, machine)
		}
	}
	if len(machines)+len(disks) > 0 {
		k.t.Fatalf("left on the host: machines %v, disks %v", machines, disks)
	}
	k.settleProducts()
}

// settleDisk compares the disk of a persistent sandbox with its row and files.
func (k *walk) settleDisk(s store.Sandbox, m *modelSandbox) {
	k.t.Helper()
	disk, ok := k.post.runner.disk(s.ID)
	if !ok || disk.Machine != s.Machine || disk.Status != s.Status {
		k.t.Fatalf("sandbox %s is %s with machine %s; its disk %v: %+v", s.ID, s.Status, s.Machine, ok, disk)
	}
	if m.source != nil { // its first rest
		if disk.Files < m.least || disk.Files > m.source.most() {
			k.t.Fatalf("copy %s has %d files, want %d to %d", s.ID, disk.Files, m.least, m.source.most())
		}
		m.files, m.source = disk.Files, nil
	}
	if disk.Files != m.files {
		k.t.Fatalf("sandbox %s has %d files, want %d", s.ID, disk.Files, m.files)
	}
}

// settleProducts compares images and snapshots with what is on the host.
func (k *walk) settleProducts() {
	k.t.Helper()
	ready := map[string]bool{}
	images, err := k.w.ListImages(k.t.Context())
	must(k.t, err)
	for _, i := range images {
		if !settled(i.Status) {
			k.t.Fatalf("image %s is %s", i.ID, i.Status)
		}
		ready[string(i.ID)] = i.Status == skerry.ImageReady
	}
	snapshots, err := k.w.ListSnapshots(k.t.Context())
	must(k.t, err)
	for _, s := range snapshots {
		if !settled(s.Status) {
			k.t.Fatalf("snapshot %s is %s", s.ID, s.Status)
		}
		ready[string(s.ID)] = s.Status == skerry.ImageReady
	}
	for id, what := range k.products {
		if _, there := ready[id]; there != (what == "making") {
			k.t.Fatalf("%s, %s: there %v", id, what, there)
		}
	}
	for _, dir := range []string{"images", "snapshots"} {
		for _, id := range k.post.runner.list(dir) {
			isReady, known := ready[id]
			if !known {
				k.t.Fatalf("left on the host: %s", filepath.Join(dir, id))
			}
			if isReady {
				delete(ready, id)
			}
		}
	}
	for id, isReady := range ready {
		if isReady {
			k.t.Fatalf("%s is ready, and not on the host", id)
		}
	}
}
