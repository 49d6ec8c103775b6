package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testserver"
)

// patience bounds the wait for the end of an operation: software emulation on a
// busy host takes its time.
const patience = 2 * time.Minute

// keeper is a persistent sandbox and what was written to it: to its disk,
// flushed, and to a file system in memory, which a machine's end takes with it.
type keeper struct {
	id           skerry.SandboxID
	disk, memory []string
}

// keep makes a persistent sandbox with a file in both places.
func (w *world) keep(name string) *keeper {
	w.t.Helper()
	sb, err := w.server.Client.CreateSandbox(w.t.Context(), persistent(name))
	w.must(err)
	sb, err = w.server.Client.WaitOperation(w.t.Context(), string(sb.ID), patience, skerry.StatusRunning)
	if err != nil {
		w.t.Fatalf("create %s: %v (%s)", name, err, sb.Reason)
	}
	k := &keeper{id: sb.ID}
	w.write(k, "first")
	return k
}

// persistent is the create of a small sandbox that outlives its machine.
func persistent(name string) client.CreateSandbox {
	half := 0.5 // GiB
	return client.CreateSandbox{Name: name, Persistent: true, Resources: &skerry.ResourcesRequest{MemoryMax: &half}, WaitSeconds: new(int)}
}

// copyOf is a sandbox that has what k has.
func (k *keeper) copyOf(id skerry.SandboxID, memory bool) *keeper {
	c := &keeper{id: id, disk: slices.Clone(k.disk)}
	if memory {
		c.memory = slices.Clone(k.memory)
	}
	return c
}

func (w *world) write(k *keeper, name string) {
	w.t.Helper()
	w.root(k.id, fmt.Sprintf("mkdir -p /var/keep /dev/shm/keep && echo %[1]s > /var/keep/%[1]s && sync && echo %[1]s > /dev/shm/keep/%[1]s", name))
	k.disk, k.memory = append(k.disk, name), append(k.memory, name)
}

// root runs a script as root, which must succeed.
func (w *world) root(id skerry.SandboxID, script string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	r, err := w.server.Client.Toolbox(id).Execute(ctx, skerry.ExecuteRequest{Argv: []string{"sh", "-c", script}, User: "root"})
	if err != nil || r.ExitCode != 0 {
		w.t.Fatalf("%s: %v, %+v; end of the log:\n%s", script, err, r, w.server.LogTail(20))
	}
	return r.Stdout
}

// wantFiles fails unless a running sandbox has every file, and no others.
func (w *world) wantFiles(k *keeper) {
	w.t.Helper()
	for dir, names := range map[string][]string{"/var/keep": k.disk, "/dev/shm/keep": k.memory} {
		names = slices.Sorted(slices.Values(names))
		got := strings.Fields(w.root(k.id, "cat "+dir+"/* 2>/dev/null; true"))
		if !slices.Equal(got, names) {
			w.t.Errorf("sandbox %s has %q in %s, want %q", k.id, got, dir, names)
		}
	}
}

// ask begins an operation that changes the status.
func (w *world) ask(k *keeper, a skerry.Action) error {
	operation := map[skerry.Action]func(context.Context, string) (skerry.Sandbox, error){
		skerry.Stop: w.server.Client.StopSandbox, skerry.Start: w.server.Client.StartSandbox,
		skerry.Pause: w.server.Client.PauseSandbox, skerry.Resume: w.server.Client.ResumeSandbox,
	}[a]
	_, err := operation(w.t.Context(), string(k.id))
	return err
}

// operate carries out an operation that must succeed.
func (w *world) operate(k *keeper, a skerry.Action, want skerry.Status) {
	w.t.Helper()
	w.must(w.ask(k, a))
	if sb, err := w.server.Client.WaitOperation(w.t.Context(), string(k.id), patience, want); err != nil {
		w.t.Fatalf("%s: %v (%s, reason %q); end of the log:\n%s", a, err, sb.Status, sb.Reason, w.server.LogTail(20))
	}
	if want == skerry.StatusStopped {
		k.memory = nil
	}
}

// bring brings a sandbox at rest to a status.
func (w *world) bring(k *keeper, want skerry.Status) {
	w.t.Helper()
	is := w.rest(k.id).Status
	if is == want {
		return
	}
	if is != skerry.StatusRunning {
		w.operate(k, skerry.Start, skerry.StatusRunning)
	}
	switch want {
	case skerry.StatusStopped:
		w.operate(k, skerry.Stop, want)
	case skerry.StatusPaused:
		w.operate(k, skerry.Pause, want)
	}
}

// works takes a sandbox through everything that can be done with it; every file
// must be there after each step.
func (w *world) works(k *keeper) {
	w.t.Helper()
	w.bring(k, skerry.StatusRunning)
	w.wantFiles(k)
	w.operate(k, skerry.Pause, skerry.StatusPaused)
	w.operate(k, skerry.Resume, skerry.StatusRunning)
	w.wantFiles(k)
	w.operate(k, skerry.Stop, skerry.StatusStopped)
	w.operate(k, skerry.Start, skerry.StatusRunning)
	w.wantFiles(k)
	w.write(k, fmt.Sprintf("f%d", len(k.disk)))
}

var atRest = []skerry.Status{skerry.StatusRunning, skerry.StatusStopped, skerry.StatusPaused, skerry.StatusFailed, skerry.StatusLost, skerry.StatusDeleted}

// rest waits until nothing is under way on a sandbox.
func (w *world) rest(id skerry.SandboxID) (sb skerry.Sandbox) {
	w.t.Helper()
	w.eventually(patience, func() (err error) {
		if sb, err = w.server.Client.Sandbox(w.t.Context(), string(id)); err != nil {
			return err
		}
		if sb.Operation != "" || !slices.Contains(atRest, sb.Status) {
			return fmt.Errorf("sandbox %s is %s, operation %q, reason %q", id, sb.Status, sb.Operation, sb.Reason)
		}
		return nil
	})
	return sb
}

// crashTwice has the server killed at a step of what begin asks for, and its
// successor too if it comes to that step; then there is one that works.
func (w *world) crashTwice(step string, begin func() error) {
	w.t.Helper()
	if w.server != nil {
		w.kill()
	}
	w.start(crashAt(step))
	if err := begin(); err != nil && skerry.CodeOf(err) != skerry.CodeUnavailable {
		w.t.Fatal(err) // else the answer was lost with the server
	}
	w.awaitCrash()
	second, err := testserver.Start(w.t.Context(), w.dir, crashAt(step))
	var exit *exec.ExitError
	switch {
	case err == nil:
		w.server = second
		w.crashOrRest()
	case !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL:
		w.t.Fatal(err)
	default:
		w.t.Log("crashed again at the start")
	}
	w.start(quiet)
}

// crashOrRest waits until the server has killed itself, or everything has come
// to rest.
func (w *world) crashOrRest() {
	w.t.Helper()
	server := w.server
	w.eventually(patience, func() error {
		select {
		case <-server.Exited():
			w.t.Log("crashed again")
			return nil
		default:
		}
		for sb, err := range server.Client.AllSandboxes(w.t.Context(), skerry.SandboxFilter{}) {
			if err != nil {
				return err
			}
			if sb.Operation != "" || !slices.Contains(atRest, sb.Status) {
				return fmt.Errorf("sandbox %s is %s, operation %q", sb.ID, sb.Status, sb.Operation)
			}
		}
		return nil
	})
	w.must(server.Kill())
	w.server = nil
}

// wantNothingHalf fails unless what saves, forks and captures make on their way
// is gone, and just the given sandboxes have directories.
func (w *world) wantNothingHalf(keepers ...*keeper) {
	w.t.Helper()
	w.eventually(20*time.Second, func() error {
		for _, pattern := range []string{"forks/*", "snapshots/*.new", "sandboxes/*/memory.new", "images/tmp/*"} {
			if left, err := filepath.Glob(filepath.Join(w.dir.Data(), pattern)); err != nil || len(left) > 0 {
				return fmt.Errorf("left over: %q, %v", left, err)
			}
		}
		entries, err := os.ReadDir(filepath.Join(w.dir.Data(), "sandboxes"))
		if err != nil {
			return err
		}
		var have, want []string
		for _, e := range entries {
			have = append(have, e.Name())
		}
		for _, k := range keepers {
			want = append(want, string(k.id))
		}
		slices.Sort(want)
		if !slices.Equal(have, want) {
			return fmt.Errorf("directories of sandboxes %q, want %q", have, want)
		}
		return nil
	})
}

// deleteSnapshots deletes all snapshots there are.
func (w *world) deleteSnapshots(ctx context.Context) error {
	snapshots, err := w.server.Client.Snapshots(ctx)
	for _, s := range snapshots {
		err = errors.Join(err, w.server.Client.DeleteSnapshot(ctx, string(s.ID)))
	}
	return errors.Join(err, awaitEmpty(ctx, filepath.Join(w.dir.Data(), "snapshots")))
}

// awaitEmpty waits until a directory is empty: that a snapshot is deleted is said
// before its files are gone.
func awaitEmpty(ctx context.Context, dir string) error {
	for {
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s still holds %v", dir, entries)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
