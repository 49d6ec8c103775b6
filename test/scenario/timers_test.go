package scenario

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testimage"
	"skerry.dev/skerry/test/testserver"
)

// TestTimersFire has timers fire for real. It takes more than a minute, which is
// the shortest idle timeout, and so runs beside other tests on a server of its
// own.
func TestTimersFire(t *testing.T) {
	t.Parallel()
	other := startOther(t, testserver.Options{Args: []string{"--pool", "0"}})
	ctx, c := t.Context(), other.Client
	made := func(policy skerry.PolicyRequest) skerry.Sandbox {
		t.Helper()
		sb, err := c.CreateSandbox(ctx, client.CreateSandbox{Image: testimage.Shell, Resources: small(), LifecyclePolicy: &policy})
		if err == nil {
			sb, err = c.WaitSandbox(ctx, string(sb.ID), patience, skerry.StatusRunning)
		}
		if err != nil {
			t.Fatalf("%v (%s)", err, sb.Reason)
		}
		return sb
	}
	idle := skerry.PolicyRequest{IdleExpirySeconds: pointer(60), OnIdleTimeout: pointer(skerry.ActionDelete)}
	// Case 28: a command that runs is activity, though nobody asks for anything.
	busy := made(idle)
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan error, 1)
	go func() {
		_, err := c.Toolbox(busy.ID).Run(running, client.RunOptions{Argv: []string{"sleep", "1000"}})
		over <- err
	}()
	// A program that was left behind by a command is none that runs.
	left := made(idle)
	if r, err := c.Toolbox(left.ID).Execute(ctx, skerry.ExecuteRequest{Command: "setsid sleep 1000 >/dev/null 2>&1 &"}); err != nil || r.ExitCode != 0 {
		t.Errorf("%+v, %v", r, err)
	}

	moved := made(skerry.PolicyRequest{TimeoutSeconds: pointer(20)})
	first, err := c.Lifecycle(ctx, string(moved.ID))
	if err != nil || first.TimeoutAt == nil || !first.TimeoutAt.Equal(moved.StartedAt.Add(20*time.Second)) {
		t.Errorf("timeout %+v of a sandbox that runs since %v, %v", first, moved.StartedAt, err)
	}
	asked := time.Now()
	second, err := c.UpdateLifecycle(ctx, string(moved.ID), skerry.PolicyRequest{TimeoutSeconds: pointer(3600)})
	if err != nil || second.TimeoutAt == nil || second.TimeoutAt.Sub(asked) < 3590*time.Second || second.TimeoutAt.Sub(asked) > 3660*time.Second {
		t.Errorf("an update at %v moves the timeout to %v, %v", asked, second.TimeoutAt, err)
	}
	short := made(skerry.PolicyRequest{TimeoutSeconds: pointer(2)})
	if _, err := c.WaitSandbox(ctx, string(short.ID), patience, skerry.StatusDeleted); err != nil {
		t.Error(err)
	}
	// The action comes within two minutes after the interval.
	if sb, err := c.WaitSandbox(ctx, string(left.ID), 4*time.Minute, skerry.StatusDeleted); err != nil {
		t.Errorf("idle: %v (%s)", err, sb.Status)
	}
	for _, id := range []skerry.SandboxID{moved.ID, busy.ID} {
		if sb, err := c.Sandbox(ctx, string(id)); err != nil || sb.Status != skerry.StatusRunning {
			t.Errorf("sandbox %s is %s, %v", id, sb.Status, err)
		}
	}
	select {
	case err := <-over:
		t.Errorf("the command has ended: %v", err)
	default:
	}
	cancel()
	<-over
}

// TestEventsOverRestart follows a sandbox while its server is killed: the reader
// goes on with the next one, and sees each step once.
func TestEventsOverRestart(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	dir, err := testserver.NewDir(0)
	if err != nil {
		t.Fatal(err)
	}
	options := testserver.Options{Args: []string{"--pool", "0", "--listen", address}}
	other, err := testserver.Start(t.Context(), dir, options)
	if err != nil {
		dir.Remove()
		t.Fatal(err)
	}
	t.Cleanup(func() { endOther(t, other) })
	if err := other.Import(t.Context(), tempDir+"/"+testimage.Shell+".tar", testimage.Shell); err != nil {
		t.Fatal(err)
	}
	sb, err := other.Client.CreateSandbox(t.Context(), client.CreateSandbox{Image: testimage.Shell, Resources: small(), Persistent: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	filter := skerry.EventFilter{ObjectID: string(sb.ID)}
	events := make(chan []skerry.Event, 1)
	reader := other.Client
	go func() {
		var seen []skerry.Event
		defer func() { events <- seen }()
		for e, err := range reader.Events(ctx, filter) {
			if err != nil {
				t.Error(err)
				return
			}
			if seen = append(seen, e); e.Status == string(skerry.StatusDeleted) {
				return
			}
		}
	}()
	wait := func(status skerry.Status) {
		t.Helper()
		if sb, err := other.Client.WaitOperation(ctx, string(sb.ID), patience, status); err != nil {
			t.Fatalf("%v (%s)", err, sb.Reason)
		}
	}
	wait(skerry.StatusRunning)
	for _, a := range []skerry.Action{skerry.Stop, skerry.Start} {
		if err := begin(ctx, other.Client, sb.ID, a); err != nil {
			t.Fatal(err)
		}
		if err := other.Kill(); err != nil {
			t.Fatal(err)
		}
		next, err := testserver.Start(ctx, dir, options)
		if err != nil {
			t.Fatal(err)
		}
		other = next
		if _, err := other.Client.WaitSandbox(ctx, string(sb.ID), patience, map[skerry.Action]skerry.Status{
			skerry.Stop: skerry.StatusStopped, skerry.Start: skerry.StatusRunning}[a]); err != nil {
			t.Fatalf("%s over a restart: %v", a, err)
		}
	}
	if err := other.Delete(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	seen := <-events
	list, err := other.Client.ListEvents(ctx, filter)
	if err != nil || fmt.Sprint(summary(seen)) != fmt.Sprint(summary(list)) {
		t.Errorf("the reader saw\n%v, the server has\n%v, %v", summary(seen), summary(list), err)
	}
	status, last := skerry.StatusQueued, int64(0)
	for _, e := range seen {
		if next := skerry.Status(e.Status); e.ID <= last || next != status && !status.CanBecome(next, true) {
			t.Errorf("event %d, %s, after event %d, %s", e.ID, next, last, status)
		}
		status, last = skerry.Status(e.Status), e.ID
	}
}

func summary(events []skerry.Event) []string {
	var out []string
	for _, e := range events {
		out = append(out, fmt.Sprint(e.ID, " ", e.Type, " ", e.Status))
	}
	return out
}

// freeAddress is an address of the loopback interface that is free now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
