package scenario

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testimage"
)

// patience bounds the wait for an operation: software emulation on a busy host
// takes its time.
const patience = 2 * time.Minute

// small is half a GiB of memory and the disk of the template.
func small() *skerry.ResourcesRequest { return &skerry.ResourcesRequest{MemoryMax: pointer(0.5)} }

// keep makes a small persistent sandbox that is deleted when the test ends.
func keep(t *testing.T, req client.CreateSandbox) sandbox {
	t.Helper()
	req.Resources, req.Persistent = small(), true
	if req.Image == "" {
		req.Image = testimage.Shell
	}
	return create(t, req)
}

// begin asks for an operation that leads to another status.
func begin(ctx context.Context, c *client.Client, id skerry.SandboxID, a skerry.Action) (err error) {
	switch a {
	case skerry.Stop:
		_, err = c.StopSandbox(ctx, string(id))
	case skerry.Start:
		_, err = c.StartSandbox(ctx, string(id))
	case skerry.Pause:
		_, err = c.PauseSandbox(ctx, string(id))
	case skerry.Resume:
		_, err = c.ResumeSandbox(ctx, string(id))
	default:
		panic("no way to ask for " + string(a))
	}
	return err
}

// operate runs an operation to its end.
func (s sandbox) operate(t *testing.T, a skerry.Action) {
	t.Helper()
	end := map[skerry.Action]skerry.Status{skerry.Stop: skerry.StatusStopped, skerry.Pause: skerry.StatusPaused,
		skerry.Start: skerry.StatusRunning, skerry.Resume: skerry.StatusRunning}[a]
	if err := begin(t.Context(), server.Client, s.ID, a); err != nil {
		t.Fatal(err)
	}
	if sb, err := server.Client.WaitOperation(t.Context(), string(s.ID), patience, end); err != nil {
		t.Fatalf("%s: %v (%s, %s)", a, err, sb.Status, sb.Reason)
	}
}

// byTimer has the timeout end the sandbox's run with an action.
func (s sandbox) byTimer(t *testing.T, action skerry.TimerAction, end skerry.Status) {
	t.Helper()
	policy := skerry.PolicyRequest{TimeoutSeconds: pointer(1), OnTimeout: &action}
	if _, err := server.Client.UpdateLifecycle(t.Context(), string(s.ID), policy); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Client.WaitSandbox(t.Context(), string(s.ID), patience, end); err != nil {
		t.Fatal(err)
	}
	// It cannot be cleared, but not fire again soon.
	if _, err := server.Client.UpdateLifecycle(t.Context(), string(s.ID), skerry.PolicyRequest{TimeoutSeconds: pointer(3600)}); err != nil {
		t.Fatal(err)
	}
}

// counter is a process in a sandbox that counts in memory and on the disk.
type counter struct{ pid, last int }

// startCounter starts one that rests between two numbers ("50ms").
func (s sandbox) startCounter(t *testing.T, rest string) *counter {
	t.Helper()
	out := s.shell(t, "setsid probe count "+rest+" </dev/null >/tmp/count.log 2>&1 & echo $!")
	c := &counter{pid: number(t, out)}
	eventually(t, 20*time.Second, func() string {
		if r := s.root(t, "test", "-s", "/dev/shm/count"); r.ExitCode != 0 {
			return "the counter does not count: " + s.shell(t, "cat /tmp/count.log")
		}
		return ""
	})
	c.check(t, s)
	return c
}

// check fails unless the counter has gone on in this sandbox, and memory and
// disk agree on how far it is.
func (c *counter) check(t *testing.T, s sandbox) {
	t.Helper()
	for range 2 { // the second is more than the first
		r := s.root(t, "probe", "counted", strconv.Itoa(c.pid))
		if r.ExitCode != 0 {
			t.Fatalf("counter in %s: %s; it says %q", s.ID, r.Stderr, s.shell(t, "cat /tmp/count.log"))
		}
		now := number(t, r.Stdout)
		if now <= c.last {
			t.Fatalf("counter in %s is at %d, was at %d", s.ID, now, c.last)
		}
		c.last = now
	}
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// sum is the digest of a file as it is on the disk.
func (s sandbox) sum(t *testing.T, file string) string {
	t.Helper()
	return s.shell(t, "sync; echo 3 >/proc/sys/vm/drop_caches; sha256sum "+file)
}

// existing waits until a sandbox that another request has made runs; it is
// deleted when the test ends.
func existing(t *testing.T, sb skerry.Sandbox) sandbox {
	t.Helper()
	t.Cleanup(func() { remove(t, sb.ID) })
	got, err := server.Client.WaitSandbox(t.Context(), string(sb.ID), patience, skerry.StatusRunning)
	if err != nil {
		t.Fatalf("%v (%s)", err, got.Reason)
	}
	return sandbox{got, server.Client.Toolbox(got.ID)}
}

// snapshot takes a memory snapshot, which is deleted when the test ends.
func (s sandbox) snapshot(t *testing.T, name string) skerry.Snapshot {
	t.Helper()
	snap, err := server.Client.CreateSnapshot(t.Context(), string(s.ID), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { forgetSnapshot(t, snap.ID) })
	if snap, err = server.Client.WaitSnapshot(t.Context(), string(snap.ID), patience); err != nil {
		t.Fatalf("%v (%s)", err, snap.Error)
	}
	return snap
}

// forgetSnapshot deletes a snapshot that a test may have deleted.
func forgetSnapshot(t *testing.T, id skerry.SnapshotID) {
	t.Helper()
	err := server.Client.DeleteSnapshot(context.Background(), string(id))
	if code := skerry.CodeOf(err); err != nil && code != skerry.CodeNotFound && code != skerry.CodeGone {
		t.Errorf("delete snapshot %s: %v", id, err)
	}
}

// restore makes a sandbox of a snapshot.
func restore(t *testing.T, name string, req skerry.RestoreRequest) sandbox {
	t.Helper()
	sb, err := server.Client.RestoreSnapshot(t.Context(), name, req)
	if err != nil {
		t.Fatal(err)
	}
	return existing(t, sb)
}

// fork makes copies and waits until all of them run.
func (s sandbox) fork(t *testing.T, req skerry.ForkRequest) []sandbox {
	t.Helper()
	children, err := server.Client.ForkSandbox(t.Context(), string(s.ID), req)
	if err != nil {
		t.Fatal(err)
	}
	var all []sandbox
	for _, child := range children {
		all = append(all, existing(t, child))
	}
	return all
}
