package walk

import (
	"time"

	"skerry.dev/skerry"
)

// restart kills the server and starts another one on the same directory.
func (w *walk) restart() {
	w.t.Helper()
	w.must(w.server.Kill())
	w.server = nil
	w.start()
}

// interrupted kills the server somewhere in the middle of an operation. What the
// next one makes of it must be one end or the other, with every file.
func (w *walk) interrupted(m *model, a skerry.Action) {
	w.t.Helper()
	before := m.status
	w.begin(m, a)
	time.Sleep(time.Duration(w.rand.IntN(1000)) * time.Millisecond) // where it is hit is the point
	w.restart()
	after := map[skerry.Action]skerry.Status{skerry.Stop: skerry.StatusStopped, skerry.Pause: skerry.StatusPaused,
		skerry.Start: skerry.StatusRunning, skerry.Resume: skerry.StatusRunning}[a]
	sb := w.rest(m)
	switch sb.Status {
	case before, after:
		m.status = sb.Status
	case skerry.StatusStopped: // the machine came to its end with the operation
		if sb.Reason == "" {
			w.t.Fatalf("%s is stopped without a reason", m.name)
		}
		m.status = sb.Status
	default:
		w.t.Fatalf("%s is %s (%s) after %s was interrupted, was %s", m.name, sb.Status, sb.Reason, a, before)
	}
	if m.status == skerry.StatusStopped {
		clear(m.memory)
	}
	w.checkAll()
}

// rest waits until no operation is under way.
func (w *walk) rest(m *model) skerry.Sandbox {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		sb, err := w.server.Client.Sandbox(w.t.Context(), string(m.id))
		w.must(err)
		switch sb.Status {
		case skerry.StatusRunning, skerry.StatusStopped, skerry.StatusPaused, skerry.StatusFailed, skerry.StatusLost, skerry.StatusDeleted:
			if sb.Operation == "" {
				return sb
			}
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s does not come to rest: %s, operation %q, reason %q", m.name, sb.Status, sb.Operation, sb.Reason)
		}
	}
}

// deleteInterrupted kills the server in the middle of a delete, which the next
// one ends.
func (w *walk) deleteInterrupted(m *model) {
	w.t.Helper()
	_, err := w.server.Client.DeleteSandbox(w.t.Context(), string(m.id))
	w.must(err)
	time.Sleep(time.Duration(w.rand.IntN(200)) * time.Millisecond) // where it is hit is the point
	w.restart()
	_, err = w.server.Client.WaitSandbox(w.t.Context(), string(m.id), patience, skerry.StatusDeleted)
	w.must(err)
	w.forget(m)
	w.checkAll()
}

// checkProcesses fails unless there are just the machines of the sandboxes that
// run.
func (w *walk) checkProcesses() {
	w.t.Helper()
	want := 0
	for _, m := range w.sandboxes {
		if m.status == skerry.StatusRunning {
			want++
		}
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		shims, hypervisors, err := w.dir.Machines()
		w.must(err)
		zygotes, err := w.zygotes()
		w.must(err)
		if want := want + zygotes; shims == want && hypervisors == want {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%d shims and %d hypervisors, want %d of each, and %d zygotes", shims, hypervisors, want, zygotes)
		}
	}
}

// zygotes counts the machines that others are forked from.
func (w *walk) zygotes() (n int, err error) {
	machines, err := w.dir.AllMachines()
	for _, m := range machines {
		if m.Zygote {
			n++
		}
	}
	return n, err
}
