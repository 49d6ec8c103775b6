package walk

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

// patience bounds every wait of a walk: software emulation on a busy host takes
// its time.
const patience = 2 * time.Minute

// operation is a kind of step on one sandbox.
type operation struct {
	name   string
	weight int
	valid  func(w *walk, m *model) bool
	take   func(w *walk, m *model)
}

func running(_ *walk, m *model) bool { return m.status == skerry.StatusRunning }
func runningPersistent(_ *walk, m *model) bool {
	return m.status == skerry.StatusRunning && m.persistent
}

func is(status skerry.Status) func(*walk, *model) bool {
	return func(_ *walk, m *model) bool { return m.status == status }
}

func room(w *walk, m *model) bool { return m.persistent && len(w.sandboxes) < most }

var operations = []operation{
	{"write", 6, running, (*walk).write},
	{"stop", 3, runningPersistent, func(w *walk, m *model) { w.stop(m) }},
	{"start stopped", 6, is(skerry.StatusStopped), func(w *walk, m *model) { w.start1(m, skerry.Start) }},
	{"pause", 4, runningPersistent, func(w *walk, m *model) { w.pause(m) }},
	{"resume", 6, is(skerry.StatusPaused), func(w *walk, m *model) { w.start1(m, skerry.Resume) }},
	{"start paused", 2, is(skerry.StatusPaused), func(w *walk, m *model) { w.start1(m, skerry.Start) }},
	{"fork", 3, room, (*walk).fork},
	{"snapshot", 2, running, (*walk).snapshot},
	{"refused", 2, func(*walk, *model) bool { return true }, (*walk).refused},
	{"delete", 2, func(*walk, *model) bool { return true }, (*walk).delete},
	{"kill hypervisor", 2, running, func(w *walk, m *model) { w.killMachine(m, false) }},
	{"kill shim", 2, running, func(w *walk, m *model) { w.killMachine(m, true) }},
	{"kill server during stop", 2, runningPersistent, func(w *walk, m *model) { w.interrupted(m, skerry.Stop) }},
	{"kill server during pause", 2, runningPersistent, func(w *walk, m *model) { w.interrupted(m, skerry.Pause) }},
	{"kill server during start", 2, is(skerry.StatusStopped), func(w *walk, m *model) { w.interrupted(m, skerry.Start) }},
	{"kill server during resume", 2, is(skerry.StatusPaused), func(w *walk, m *model) { w.interrupted(m, skerry.Resume) }},
	{"kill server during delete", 1, func(*walk, *model) bool { return true }, (*walk).deleteInterrupted},
}

// begin asks for an operation that the server must accept.
func (w *walk) begin(m *model, a skerry.Action) {
	w.t.Helper()
	w.must(w.ask(m, a))
}

func (w *walk) ask(m *model, a skerry.Action) (err error) {
	ctx, id := w.t.Context(), string(m.id)
	switch a {
	case skerry.Stop:
		_, err = w.server.Client.StopSandbox(ctx, id)
	case skerry.Start:
		_, err = w.server.Client.StartSandbox(ctx, id)
	case skerry.Pause:
		_, err = w.server.Client.PauseSandbox(ctx, id)
	case skerry.Resume:
		_, err = w.server.Client.ResumeSandbox(ctx, id)
	case skerry.Fork:
		_, err = w.server.Client.ForkSandbox(ctx, id, skerry.ForkRequest{})
	case skerry.CreateSnapshot:
		_, err = w.server.Client.CreateSnapshot(ctx, id, w.name("no"))
	default:
		panic("walk: no way to ask for " + string(a))
	}
	return err
}

// await waits for the status that an operation leads to.
func (w *walk) await(m *model, status skerry.Status) {
	w.t.Helper()
	sb, err := w.server.Client.WaitOperation(w.t.Context(), string(m.id), patience, status)
	if err != nil {
		w.t.Fatalf("%s: %v (%s, operation %q, reason %q)", m.name, err, sb.Status, sb.Operation, sb.Reason)
	}
	m.status = status
}

func (w *walk) name(kind string) string {
	w.serial++
	return fmt.Sprintf("%s-%d", kind, w.serial)
}

func (w *walk) create() {
	w.t.Helper()
	m := &model{name: w.name("box"), persistent: w.rand.IntN(4) > 0, disk: map[string]string{}, memory: map[string]string{}}
	half := 0.5 // GiB
	sb, err := w.server.Client.CreateSandbox(w.t.Context(), client.CreateSandbox{Name: m.name, Persistent: m.persistent,
		Resources: &skerry.ResourcesRequest{MemoryMax: &half}})
	w.must(err)
	m.id = sb.ID
	w.sandboxes = append(w.sandboxes, m)
	w.await(m, skerry.StatusRunning)
	w.write(m)
}

func (w *walk) write(m *model) {
	w.t.Helper()
	name, content := fmt.Sprintf("f%d", w.rand.IntN(6)), w.name("content")
	w.shell(m, writeScript(name, content))
	m.disk[name], m.memory[name] = content, content
	w.check(m)
}

// shell runs a script that must succeed.
func (w *walk) shell(m *model, script string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	r, err := w.server.Client.Toolbox(m.id).Execute(ctx, skerry.ExecuteRequest{Argv: []string{"sh", "-c", script}, User: "root"})
	if err != nil || r.ExitCode != 0 {
		w.t.Fatalf("%s: %q: %v, %+v", m.name, script, err, r)
	}
	return r.Stdout
}

// check compares the files of a running sandbox with its model.
func (w *walk) check(m *model) {
	w.t.Helper()
	if got, want := w.shell(m, listScript), m.listing(); got != want {
		w.t.Fatalf("%s has the files\n%s, want\n%s", m.name, got, want)
	}
}

// checkAll compares every sandbox with its model.
func (w *walk) checkAll() {
	w.t.Helper()
	for _, m := range w.sandboxes {
		sb, err := w.server.Client.Sandbox(w.t.Context(), string(m.id))
		w.must(err)
		if sb.Status != m.status || sb.Operation != "" {
			w.t.Fatalf("%s is %s (operation %q, reason %q), want %s", m.name, sb.Status, sb.Operation, sb.Reason, m.status)
		}
		if m.status == skerry.StatusRunning {
			w.check(m)
		}
	}
}

func (w *walk) stop(m *model) {
	w.t.Helper()
	w.begin(m, skerry.Stop)
	w.await(m, skerry.StatusStopped)
	clear(m.memory)
}

func (w *walk) pause(m *model) {
	w.t.Helper()
	w.begin(m, skerry.Pause)
	w.await(m, skerry.StatusPaused)
}

// start1 starts or resumes one sandbox.
func (w *walk) start1(m *model, a skerry.Action) {
	w.t.Helper()
	w.begin(m, a)
	w.await(m, skerry.StatusRunning)
	w.check(m)
}

func (w *walk) fork(m *model) {
	w.t.Helper()
	name := w.name("fork")
	children, err := w.server.Client.ForkSandbox(w.t.Context(), string(m.id), skerry.ForkRequest{Names: []string{name}})
	w.must(err)
	child := m.copyOf(children[0].ID, name, true, m.status != skerry.StatusStopped)
	w.sandboxes = append(w.sandboxes, child)
	w.await(child, skerry.StatusRunning)
	w.check(child)
	w.write(child)
	if m.status == skerry.StatusRunning {
		w.check(m)
	}
}

func (w *walk) snapshot(m *model) {
	w.t.Helper()
	name := w.name("snapshot")
	s, err := w.server.Client.CreateSnapshot(w.t.Context(), string(m.id), name)
	w.must(err)
	w.snapshots = append(w.snapshots, &snapshot{id: s.ID, name: name, model: *m.copyOf("", "", m.persistent, true)})
	if s, err = w.server.Client.WaitSnapshot(w.t.Context(), string(s.ID), patience); err != nil {
		w.t.Fatalf("snapshot of %s: %v (%s)", m.name, err, s.Error)
	}
	w.check(m)
}

func (w *walk) restore() {
	w.t.Helper()
	s := w.snapshots[w.rand.IntN(len(w.snapshots))]
	name := w.name("restored")
	sb, err := w.server.Client.RestoreSnapshot(w.t.Context(), string(s.id), skerry.RestoreRequest{Name: name})
	w.must(err)
	m := s.model.copyOf(sb.ID, name, s.model.persistent, true)
	w.sandboxes = append(w.sandboxes, m)
	w.await(m, skerry.StatusRunning)
	w.check(m)
	w.write(m)
}

func (w *walk) deleteSnapshot() {
	w.t.Helper()
	i := w.rand.IntN(len(w.snapshots))
	w.must(w.server.Client.DeleteSnapshot(w.t.Context(), string(w.snapshots[i].id)))
	w.snapshots = append(w.snapshots[:i], w.snapshots[i+1:]...)
}

func (w *walk) deleteSnapshots(ctx context.Context) error {
	for _, s := range w.snapshots {
		if err := w.server.Client.DeleteSnapshot(ctx, string(s.id)); err != nil {
			return err
		}
	}
	return nil
}

// refused asks for every operation that is not valid now.
func (w *walk) refused(m *model) {
	w.t.Helper()
	for _, a := range []skerry.Action{skerry.Stop, skerry.Start, skerry.Pause, skerry.Resume, skerry.Fork, skerry.CreateSnapshot} {
		if a.Check(skerry.Sandbox{ID: m.id, Status: m.status, Persistent: m.persistent}) == nil {
			continue
		}
		err := w.ask(m, a)
		if skerry.CodeOf(err) != skerry.CodeConflict || !strings.Contains(err.Error(), string(a)) {
			w.t.Errorf("%s of %s, which is %s: %v, want a conflict that names it", a, m.name, m.status, err)
		}
	}
}

func (w *walk) delete(m *model) {
	w.t.Helper()
	w.must(w.server.Delete(w.t.Context(), m.id))
	w.forget(m)
}

func (w *walk) forget(m *model) {
	for i, other := range w.sandboxes {
		if other == m {
			w.sandboxes = append(w.sandboxes[:i:i], w.sandboxes[i+1:]...)
			return
		}
	}
}

// killMachine kills the hypervisor of a sandbox, or its shim. A persistent one
// is stopped then, with its files; another has failed.
func (w *walk) killMachine(m *model, shim bool) {
	w.t.Helper()
	sb, err := w.server.Client.Sandbox(w.t.Context(), string(m.id))
	w.must(err)
	shimPID, qemuPID, err := w.dir.MachineProcesses(string(sb.Machine))
	w.must(err)
	pid := qemuPID
	if shim {
		pid = shimPID
	}
	w.must(syscall.Kill(pid, syscall.SIGKILL))
	w.machineLost(m)
}

func (w *walk) machineLost(m *model) {
	w.t.Helper()
	want := skerry.StatusFailed
	if m.persistent {
		want = skerry.StatusStopped
	}
	sb, err := w.server.Client.WaitSandbox(w.t.Context(), string(m.id), patience, want)
	if err != nil || sb.Reason == "" {
		w.t.Fatalf("%s is %s with reason %q, want %s with a reason: %v", m.name, sb.Status, sb.Reason, want, err)
	}
	if !m.persistent {
		w.delete(m)
		return
	}
	m.lostMachine()
}
