package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testimage"
)

// TestEventsTellTheWholeLife follows a sandbox from create to deleted: each step
// comes once, in an order that the table of transitions has, also to a reader
// that comes late.
func TestEventsTellTheWholeLife(t *testing.T) {
	sb, err := server.Client.CreateSandbox(t.Context(), client.CreateSandbox{
		Image: testimage.Shell, Env: map[string]string{"TOKEN": "secret"}, WaitSeconds: pointer(0),
		LifecyclePolicy: &skerry.PolicyRequest{TimeoutSeconds: pointer(3600), IdleExpirySeconds: pointer(1800), OnIdleTimeout: pointer(skerry.ActionDelete)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, sb.ID) })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	filter := skerry.EventFilter{ObjectID: string(sb.ID)}
	seen := []skerry.Event{}
	for e, err := range server.Client.Events(ctx, filter) {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, e)
		switch e.Status {
		case string(skerry.StatusRunning):
			if _, err := server.Client.DeleteSandbox(ctx, string(sb.ID)); err != nil {
				t.Fatal(err)
			}
		case string(skerry.StatusFailed), string(skerry.StatusLost):
			t.Fatalf("event %s", e.Object)
		}
		if e.Status == string(skerry.StatusDeleted) {
			break
		}
	}
	status, last := skerry.StatusQueued, int64(0)
	for i, e := range seen {
		var object skerry.Sandbox
		if err := json.Unmarshal(e.Object, &object); err != nil || object.ID != sb.ID || string(object.Status) != e.Status || len(object.Env) != 0 {
			t.Errorf("event %d: object %s, %v", e.ID, e.Object, err)
		}
		if next := skerry.Status(e.Status); i > 0 && next != status && !status.CanBecome(next, false) {
			t.Errorf("from %s to %s", status, next)
		}
		if e.ID <= last {
			t.Errorf("event %d after %d", e.ID, last)
		}
		status, last = skerry.Status(e.Status), e.ID
	}
	list, err := server.Client.ListEvents(t.Context(), filter)
	if err != nil || len(list) != len(seen) {
		t.Errorf("%d events in the list, %d in the stream, %v", len(list), len(seen), err)
	}
	if r := cli(t, "sandbox", "events", string(sb.ID), "--after", "0", "--limit", "1"); r.code != 0 || len(decode[skerry.Event](t, r.stdout).Object) == 0 {
		t.Errorf("skerry sandbox events: %+v", r)
	}
}

// TestTimeouts sets, shows and changes timeouts; a request to the toolbox is
// activity, a change of the policy is not.
func TestTimeouts(t *testing.T) {
	s := create(t, client.CreateSandbox{Image: testimage.Shell,
		LifecyclePolicy: &skerry.PolicyRequest{IdleExpirySeconds: pointer(30), OnIdleTimeout: pointer(skerry.ActionDelete)}})
	id := string(s.ID)
	type policy struct {
		ID skerry.SandboxID `json:"id"`
		skerry.Lifecycle
	}
	shown := decode[policy](t, mustCLI(t, "sandbox", "policy", id))
	if shown.ID != s.ID || shown.IdleExpirySeconds != 60 || shown.IdleTimeoutAt == nil || shown.TimeoutAt != nil {
		t.Errorf("after the create: %+v", shown)
	}
	changed := decode[policy](t, mustCLI(t, "sandbox", "policy", id, "--timeout-seconds", "3600"))
	if changed.TimeoutAt == nil || changed.OnTimeout != skerry.ActionDelete || !changed.LastActivityAt.Equal(*shown.LastActivityAt) {
		t.Errorf("after a change: %+v", changed)
	}
	s.shell(t, "true")
	eventually(t, 30*time.Second, func() string {
		if l, err := server.Client.Lifecycle(t.Context(), id); err != nil || !l.LastActivityAt.After(*shown.LastActivityAt) {
			return "a command does not count as activity"
		}
		return ""
	})
	used := decode[policy](t, mustCLI(t, "sandbox", "touch", id))
	if !used.LastActivityAt.After(*shown.LastActivityAt) || !used.TimeoutAt.Equal(*changed.TimeoutAt) {
		t.Errorf("after a reset: %+v", used)
	}
	if r := cli(t, "sandbox", "policy", id, "--idle-expiry-seconds", "59"); r.code != 2 {
		t.Errorf("59 seconds: %+v", r)
	}
	cleared := decode[policy](t, mustCLI(t, "sandbox", "policy", id, "--idle-expiry-seconds", "0"))
	if cleared.IdleTimeoutAt != nil || cleared.OnIdleTimeout != "" || cleared.TimeoutSeconds != 3600 {
		t.Errorf("after it was cleared: %+v", cleared)
	}
	for _, action := range []string{"stop", "start", "pause", "fork"} {
		if r := cli(t, "sandbox", action, id); r.code != 4 {
			t.Errorf("%s of an ephemeral sandbox: %+v", action, r)
		}
	}
	mustCLI(t, "sandbox", "delete", id)
	_, err := server.Client.UpdateLifecycle(t.Context(), id, skerry.PolicyRequest{TimeoutSeconds: pointer(60)})
	if code := skerry.CodeOf(err); code != skerry.CodeGone {
		t.Errorf("a change of a deleted sandbox: %v", err)
	}
	_, err = server.Client.WaitSandbox(t.Context(), id, time.Minute, skerry.StatusRunning)
	var terminal *client.SandboxTerminalStateError
	if !errors.As(err, &terminal) {
		t.Errorf("a wait for a deleted sandbox: %v", err)
	}
}
