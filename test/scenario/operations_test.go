package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testimage"
)

// atOnce does something eight times at the same moment and returns how often it
// went well; what did not must be a conflict that names the operation.
func atOnce(t *testing.T, a skerry.Action, do func() error) int {
	t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, 8)
	gate := make(chan struct{})
	for i := range errs {
		wg.Go(func() {
			<-gate
			errs[i] = do()
		})
	}
	close(gate)
	wg.Wait()
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case skerry.CodeOf(err) != skerry.CodeConflict || !strings.Contains(err.Error(), string(a)):
			t.Errorf("%s: %v, want a conflict that names it", a, err)
		}
	}
	return won
}

// TestOperationsAtOnce asks for the same operation many times at once.
func TestOperationsAtOnce(t *testing.T) {
	sb := keep(t, client.CreateSandbox{})
	for _, step := range []struct {
		action skerry.Action
		end    skerry.Status
	}{
		{skerry.Stop, skerry.StatusStopped}, {skerry.Start, skerry.StatusRunning},
		{skerry.Pause, skerry.StatusPaused}, {skerry.Resume, skerry.StatusRunning},
	} {
		won := atOnce(t, step.action, func() error { return begin(t.Context(), server.Client, sb.ID, step.action) })
		if won != 1 {
			t.Errorf("%s: %d of 8 went well", step.action, won)
		}
		if got, err := server.Client.WaitOperation(t.Context(), string(sb.ID), patience, step.end); err != nil {
			t.Fatalf("%s: %v (%s)", step.action, err, got.Reason)
		}
	}
	var mu sync.Mutex
	var children []skerry.Sandbox
	won := atOnce(t, skerry.Fork, func() error {
		made, err := server.Client.ForkSandbox(t.Context(), string(sb.ID), skerry.ForkRequest{})
		mu.Lock()
		defer mu.Unlock()
		children = append(children, made...)
		return err
	})
	if won == 0 || won != len(children) {
		t.Errorf("%d forks made %d copies", won, len(children))
	}
	for _, child := range children {
		existing(t, child).shell(t, "true")
	}
	// Different ones: the first keeps the others out, and is named.
	snap, err := server.Client.CreateSnapshot(t.Context(), string(sb.ID), "under-way")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { forgetSnapshot(t, snap.ID) })
	for _, a := range []skerry.Action{skerry.Stop, skerry.Pause} {
		if err := begin(t.Context(), server.Client, sb.ID, a); skerry.CodeOf(err) != skerry.CodeConflict || !strings.Contains(err.Error(), "under way: snapshot") {
			t.Errorf("%s during a snapshot: %v", a, err)
		}
	}
	if _, err := server.Client.WaitSnapshot(t.Context(), "under-way", patience); err != nil {
		t.Error(err)
	}
	sb.operate(t, skerry.Stop)
}

// TestDeleteDuringOperations deletes sandboxes in the middle of each operation:
// nothing may be left, and what is made of them comes to an end.
func TestDeleteDuringOperations(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before skerry.Action // brings it to the state where the operation can begin
		begin  func(sb sandbox) error
		end    func(t *testing.T, sb sandbox)
	}{
		{name: "stop", begin: func(sb sandbox) error { return begin(t.Context(), server.Client, sb.ID, skerry.Stop) }},
		{name: "start", before: skerry.Stop, begin: func(sb sandbox) error { return begin(t.Context(), server.Client, sb.ID, skerry.Start) }},
		{name: "pause", begin: func(sb sandbox) error { return begin(t.Context(), server.Client, sb.ID, skerry.Pause) }},
		{name: "resume", before: skerry.Pause, begin: func(sb sandbox) error { return begin(t.Context(), server.Client, sb.ID, skerry.Resume) }},
		{name: "fork", begin: func(sb sandbox) error {
			_, err := server.Client.ForkSandbox(t.Context(), string(sb.ID), skerry.ForkRequest{Names: []string{"orphan"}})
			return err
		}, end: func(t *testing.T, _ sandbox) {
			child, err := server.Client.WaitSandbox(t.Context(), "orphan", patience, skerry.StatusRunning, skerry.StatusFailed)
			if err != nil || child.Status == skerry.StatusFailed && child.Reason == "" {
				t.Errorf("the copy is %s (%q), %v", child.Status, child.Reason, err)
			}
			remove(t, child.ID)
		}},
		{name: "snapshot", begin: func(sb sandbox) error {
			_, err := server.Client.CreateSnapshot(t.Context(), string(sb.ID), "orphan")
			return err
		}, end: func(t *testing.T, _ sandbox) {
			snap, err := server.Client.WaitSnapshot(t.Context(), "orphan", patience)
			if snap.Status != skerry.ImageReady && (snap.Status != skerry.ImageFailed || snap.Error == "") {
				t.Errorf("the snapshot is %s (%q), %v", snap.Status, snap.Error, err)
			}
			forgetSnapshot(t, snap.ID)
		}},
		{name: "capture", begin: func(sb sandbox) error {
			_, err := server.Client.CaptureImage(t.Context(), string(sb.ID), skerry.CaptureRequest{Name: "orphan"})
			return err
		}, end: func(t *testing.T, _ sandbox) {
			img, err := server.Client.WaitImage(t.Context(), "orphan", patience, nil)
			if img.Status != skerry.ImageReady && (img.Status != skerry.ImageFailed || img.Error == "") {
				t.Errorf("the image is %s (%q), %v", img.Status, img.Error, err)
			}
			forgetImage(t, img.ID)
		}},
	} {
		for _, after := range []time.Duration{0, 150 * time.Millisecond} {
			t.Run(fmt.Sprint(tt.name, " ", after), func(t *testing.T) {
				sb := keep(t, client.CreateSandbox{})
				sb.shell(t, "setsid sh -c 'sleep 1000 | probe eat 100 hold' >/tmp/ate 2>&1 & until grep -q ate /tmp/ate; do sleep 0.1; done")
				if tt.before != "" {
					sb.operate(t, tt.before)
				}
				if err := tt.begin(sb); err != nil {
					t.Fatal(err)
				}
				time.Sleep(after) // to be somewhere in the middle is the point
				if _, err := server.Client.DeleteSandbox(t.Context(), string(sb.ID)); err != nil {
					t.Fatal(err)
				}
				deleted, err := server.Client.WaitSandbox(t.Context(), string(sb.ID), patience, skerry.StatusDeleted)
				if err != nil {
					t.Fatalf("%v (%s, operation %q)", err, deleted.Status, deleted.Operation)
				}
				wantNothing(t, sb, deleted)
				if tt.end != nil {
					tt.end(t, sb)
				}
				wantEmptyDir(t, server, "forks")
				wantEmptyDir(t, server, "snapshots")
			})
		}
	}
}

// wantNothing fails if anything is left of a sandbox in any of its lives.
func wantNothing(t *testing.T, lives ...any) {
	t.Helper()
	var names []string
	for _, life := range lives {
		switch life := life.(type) {
		case sandbox:
			names = append(names, string(life.ID), string(life.Machine))
		case skerry.Sandbox:
			names = append(names, string(life.ID), string(life.Machine))
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	processes, err := server.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		for _, p := range processes {
			if slices.ContainsFunc(p.Args, func(arg string) bool { return strings.Contains(arg, name) }) {
				t.Errorf("process %d: %q", p.PID, p.Args)
			}
		}
		for _, part := range []string{"machines", "sandboxes"} {
			if _, err := os.Stat(filepath.Join(server.Data(), part, name)); err == nil {
				t.Errorf("%s/%s is still there", part, name)
			}
		}
	}
}

// allowed is the table of what can be done with a sandbox, as the documents have
// it: in which states, and which of it only with persistent sandboxes.
var allowed = map[string]struct {
	in         []skerry.Status
	persistent bool
}{
	"stop":      {[]skerry.Status{skerry.StatusRunning}, true},
	"start":     {[]skerry.Status{skerry.StatusStopped, skerry.StatusPaused}, true},
	"pause":     {[]skerry.Status{skerry.StatusRunning}, true},
	"resume":    {[]skerry.Status{skerry.StatusPaused}, false},
	"fork":      {[]skerry.Status{skerry.StatusRunning, skerry.StatusStopped, skerry.StatusPaused}, true},
	"capture":   {[]skerry.Status{skerry.StatusRunning, skerry.StatusStopped}, false},
	"snapshots": {[]skerry.Status{skerry.StatusRunning}, false},
	"reclaim":   {nil, false}, // spot sandboxes only
	"touch":     {[]skerry.Status{skerry.StatusRunning, skerry.StatusStopped, skerry.StatusPaused, skerry.StatusFailed}, false},
	"lifecycle": {[]skerry.Status{skerry.StatusRunning, skerry.StatusStopped, skerry.StatusPaused, skerry.StatusFailed}, false},
}

// TestRefusedOperations asks in every state that lasts for everything that is not
// allowed in it, and for what always is.
func TestRefusedOperations(t *testing.T) {
	refuse := func(sb skerry.Sandbox) {
		t.Helper()
		sb, err := server.Client.Sandbox(t.Context(), string(sb.ID))
		if err != nil {
			t.Fatal(err)
		}
		status, code := http.StatusConflict, skerry.CodeConflict
		if sb.Status == skerry.StatusDeleted {
			status, code = http.StatusGone, skerry.CodeGone
		}
		for name, rule := range allowed {
			method, body := http.MethodPost, ""
			switch name {
			case "snapshots":
				body = `{"name":"refused"}`
			case "lifecycle":
				method, body = http.MethodPatch, `{"timeout_seconds":3600}`
			case "fork", "capture":
				body = `{}`
			}
			may := slices.Contains(rule.in, sb.Status) && (sb.Persistent || !rule.persistent)
			if may && name != "touch" && name != "lifecycle" {
				continue
			}
			got, text := call(t, method, "/v2/sandboxes/"+string(sb.ID)+"/"+name, body)
			problem := decode[struct{ Code skerry.Code }](t, text)
			if may && got != http.StatusOK || !may && (got != status || problem.Code != code || !strings.Contains(text, string(sb.ID))) {
				t.Errorf("%s of a sandbox that is %s (persistent %v): %d %s", name, sb.Status, sb.Persistent, got, text)
			}
		}
		if sb.Status != skerry.StatusRunning {
			if _, err := server.Client.Toolbox(sb.ID).Execute(t.Context(), skerry.ExecuteRequest{Command: "true"}); skerry.CodeOf(err) != code {
				t.Errorf("a command in a sandbox that is %s: %v", sb.Status, err)
			}
		}
		if now, err := server.Client.Sandbox(t.Context(), string(sb.ID)); err != nil || now.Status != sb.Status || now.Operation != "" {
			t.Errorf("%s has become %s, operation %q, %v", sb.Status, now.Status, now.Operation, err)
		}
	}
	ephemeral := create(t, client.CreateSandbox{Image: testimage.Shell, Resources: small()})
	refuse(ephemeral.Sandbox)
	kept := keep(t, client.CreateSandbox{})
	refuse(kept.Sandbox)
	kept.operate(t, skerry.Stop)
	refuse(kept.Sandbox)
	kept.operate(t, skerry.Start)
	kept.operate(t, skerry.Pause)
	refuse(kept.Sandbox)
	remove(t, kept.ID)
	refuse(kept.Sandbox)
	_, qemu, err := server.MachineProcesses(string(ephemeral.Machine))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(qemu, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Client.WaitSandbox(t.Context(), string(ephemeral.ID), patience, skerry.StatusFailed); err != nil {
		t.Fatal(err)
	}
	refuse(ephemeral.Sandbox)
}

// TestWaits waits for what comes, what may still come, and what cannot.
func TestWaits(t *testing.T) {
	ctx, c := t.Context(), server.Client
	sb := keep(t, client.CreateSandbox{Name: "awaited"})
	var expired *client.RequestTimeoutError
	var terminal *client.SandboxTerminalStateError
	if got, err := c.WaitSandbox(ctx, "awaited", time.Minute, skerry.StatusStopped, skerry.StatusRunning); err != nil || got.Status != skerry.StatusRunning {
		t.Errorf("one of two: %s, %v", got.Status, err)
	}
	if got, err := c.WaitSandbox(ctx, "awaited", time.Second, skerry.StatusStopped, skerry.StatusPaused); !errors.As(err, &expired) || got.Status != skerry.StatusRunning {
		t.Errorf("what does not come: %s, %v", got.Status, err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := c.WaitSandbox(context.WithoutCancel(ctx), "awaited", patience, skerry.StatusPaused)
		ended <- err
	}()
	sb.operate(t, skerry.Pause)
	if err := <-ended; err != nil {
		t.Errorf("what comes: %v", err)
	}
	for _, tt := range []struct {
		code int
		args []string
	}{
		{0, []string{"--until", "started,paused"}},
		{0, []string{"--until", "started", "--until", "paused"}},
		{7, []string{"--timeout", "1"}},
		{4, []string{"--until", "queued"}}, // never again
		{2, []string{"--until", "nowhere"}},
		{2, []string{"--timeout", "-1"}},
	} {
		if r := cli(t, append([]string{"sandbox", "wait", "awaited"}, tt.args...)...); r.code != tt.code {
			t.Errorf("wait %q: %+v, want code %d", tt.args, r, tt.code)
		}
	}
	go func() {
		_, err := c.WaitSandbox(context.WithoutCancel(ctx), string(sb.ID), patience, skerry.StatusRunning)
		ended <- err
	}()
	remove(t, sb.ID)
	if err := <-ended; !errors.As(err, &terminal) {
		t.Errorf("a wait that a delete ends: %v", err)
	}
	if r := cli(t, "sandbox", "wait", string(sb.ID), "--timeout", "5"); r.code != 4 {
		t.Errorf("a wait for a deleted sandbox: %+v", r)
	}
	if r := cli(t, "sandbox", "wait", string(sb.ID), "--until", "deleted"); r.code != 0 {
		t.Errorf("a wait for the end: %+v", r)
	}
}

// TestReclaim takes the capacity of spot sandboxes back.
func TestReclaim(t *testing.T) {
	ephemeral := existing(t, decode[skerry.Sandbox](t, mustCLI(t, "sandbox", "create", "--spot")))
	if r := cli(t, "sandbox", "reclaim", string(ephemeral.ID)); r.code != 0 {
		t.Errorf("reclaim: %+v", r)
	}
	got, err := server.Client.Sandbox(t.Context(), string(ephemeral.ID))
	if err != nil || got.Status != skerry.StatusDeleted || got.SpotEvictedAt == nil || got.Reason == "" {
		t.Errorf("an ephemeral one is %+v, %v", got, err)
	}
	kept := keep(t, client.CreateSandbox{Spot: true})
	c := kept.startCounter(t, "50ms")
	mustCLI(t, "sandbox", "reclaim", string(kept.ID))
	got, err = server.Client.Sandbox(t.Context(), string(kept.ID))
	if err != nil || got.Status != skerry.StatusPaused || got.SpotEvictedAt == nil {
		t.Errorf("a persistent one is %+v, %v", got, err)
	}
	kept.operate(t, skerry.Resume)
	c.check(t, kept)
}
