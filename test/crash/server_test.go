package crash

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testserver"
)

// crashAt is a server that kills itself at a step.
func crashAt(step string) testserver.Options {
	return testserver.Options{Args: quiet.Args, Env: []string{"SKERRY_DEBUG_CRASH_AT=" + step}}
}

// TestServerKilled is case 27: the server is killed at every step of a create
// and of a delete. A sandbox that runs goes on, the one in question is made after
// the restart, or deleted, and nothing is left.
func TestServerKilled(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	survivor := w.create("survivor")
	w.kill()
	for _, step := range []string{"create.reserved", "create.claimed", "create.directory", "create.started", "create.activated"} {
		t.Run(step, func(t *testing.T) { w.with(t).killedInCreate(step, survivor) })
	}
	for _, step := range []string{"delete.settled", "delete.killed", "delete.cleared"} {
		t.Run(step, func(t *testing.T) { w.with(t).killedInDelete(step, survivor) })
	}
}

// with is the same world for a part of a test.
func (w *world) with(t *testing.T) *world {
	part := *w
	part.t = t
	t.Cleanup(func() { w.server = part.server })
	return &part
}

func (w *world) killedInCreate(step string, survivor skerry.Sandbox) {
	w.start(crashAt(step))
	_, err := w.server.Client.CreateSandbox(w.t.Context(), client.CreateSandbox{Name: "victim", WaitSeconds: new(int)})
	if err != nil && skerry.CodeOf(err) != skerry.CodeUnavailable {
		w.t.Fatal(err) // else the answer was lost with the server
	}
	w.awaitCrash()
	w.start(quiet)
	w.wantAlive(survivor)
	sb, err := w.server.Client.WaitSandbox(w.t.Context(), "victim", patience, skerry.StatusRunning, skerry.StatusFailed)
	w.must(err)
	if sb.Status != skerry.StatusRunning {
		w.t.Fatalf("after the restart: %s (%s), want running; end of the log:\n%s", sb.Status, sb.Reason, w.server.LogTail(20))
	}
	w.wantAlive(sb)
	w.wantOnly(survivor, sb)
	if err := w.server.Delete(w.t.Context(), sb.ID); err != nil {
		w.t.Fatalf("%v\n%s", err, w.server.Log())
	}
	w.wantOnly(survivor)
	w.kill()
}

func (w *world) killedInDelete(step string, survivor skerry.Sandbox) {
	w.start(crashAt(step))
	sb := w.create("")
	// The answer may be lost with the server: what counts is what follows.
	_, err := w.server.Client.DeleteSandbox(w.t.Context(), string(sb.ID))
	if err != nil && skerry.CodeOf(err) == skerry.CodeInvalid {
		w.t.Fatal(err)
	}
	w.awaitCrash()
	w.start(quiet)
	_, err = w.server.Client.WaitSandbox(w.t.Context(), string(sb.ID), time.Minute, skerry.StatusDeleted)
	w.must(err)
	w.wantAlive(survivor)
	w.wantOnly(survivor)
	w.kill()
}

// awaitCrash waits until the server has killed itself.
func (w *world) awaitCrash() {
	w.t.Helper()
	select {
	case <-w.server.Exited():
		w.server = nil
	case <-time.After(time.Minute):
		w.t.Fatalf("the server did not come to that step; its log:\n%s", w.server.LogTail(20))
	}
}

// TestKilledWhileATemplateIsMade kills the server during the first create of an
// image, which boots it. The next server makes both.
func TestKilledWhileATemplateIsMade(t *testing.T) {
	w := newWorld(t)
	w.must(os.RemoveAll(filepath.Join(w.dir.Data(), "templates")))
	w.start(quiet)
	sb, err := w.server.Client.CreateSandbox(t.Context(), client.CreateSandbox{WaitSeconds: new(int)})
	w.must(err)
	w.eventually(20*time.Second, func() error {
		if processes, err := w.dir.Processes(); err != nil {
			return err
		} else if !anyQEMU(processes) {
			return context.DeadlineExceeded
		}
		return nil
	})
	w.kill()
	w.start(quiet)
	sb, err = w.server.Client.WaitSandbox(t.Context(), string(sb.ID), patience, skerry.StatusRunning, skerry.StatusFailed)
	if err != nil || sb.Status != skerry.StatusRunning {
		t.Fatalf("after the restart: %s (%s), %v; end of the log:\n%s", sb.Status, sb.Reason, err, w.server.LogTail(20))
	}
	w.must(w.server.Delete(t.Context(), sb.ID))
	w.wantOnly()
	next := w.create("next")
	w.wantAlive(next)
}

func anyQEMU(processes []testserver.Process) bool {
	for _, p := range processes {
		if p.IsQEMU() {
			return true
		}
	}
	return false
}

// TestGracefulEnd ends a server while a program runs in a sandbox: it ends in
// time, the caller gets an error, and the next server takes the sandbox over.
func TestGracefulEnd(t *testing.T) {
	w := newWorld(t)
	w.start(testserver.Options{Args: []string{"--pool", "1"}})
	sb := w.create("graceful")
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		r, err := w.server.Client.Toolbox(sb.ID).Run(context.WithoutCancel(t.Context()), client.RunOptions{
			Argv: []string{"sh", "-c", "echo started; sleep 120"}, Stdout: firstWrite(started)})
		if err == nil {
			t.Errorf("the command ended with %+v", r)
		}
		ended <- err
	}()
	<-started
	w.stop() // fails if that takes longer than 30 s
	if err := <-ended; err != nil {
		t.Logf("the caller got: %v", err)
	}
	w.wantOnly(sb) // the pool's machine is gone
	w.start(quiet)
	w.wantAlive(sb)
}

// firstWrite closes a channel at the first write.
func firstWrite(c chan struct{}) writerFunc {
	return func(p []byte) (int, error) {
		close(c)
		return len(p), nil
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestOneServerPerDirectory starts a second server on a data directory, and
// servers that would be reached from other machines.
func TestOneServerPerDirectory(t *testing.T) {
	w := newWorld(t)
	w.start(quiet)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"server", "--listen", "127.0.0.1:0"}, "another server"},
		{[]string{"server", "--listen", "0.0.0.0:0"}, "TLS"},
		{[]string{"server", "--listen", "[::]:0"}, "TLS"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		out, err := w.dir.Command(ctx, tt.args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), tt.want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%q: %v, %q; want one line with %q", tt.args, err, out, tt.want)
		}
	}
}
