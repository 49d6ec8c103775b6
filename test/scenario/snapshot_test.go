package scenario

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testimage"
)

// TestSnapshotNames checks that each bad name is refused with the rule that it
// breaks, and a name in use by whatever has it.
func TestSnapshotNames(t *testing.T) {
	sb := create(t, client.CreateSandbox{Image: testimage.Shell, Resources: small()})
	path := "/v2/sandboxes/" + string(sb.ID) + "/snapshots"
	refused := map[string]string{ // name to rule
		"": "required", strings.Repeat("n", 129): "length", ".hidden": "pattern", "a b": "pattern", "a/b": "pattern", "a:b": "pattern", "ünï": "pattern", "new\nline": "pattern",
	}
	for _, prefix := range []string{"sbx_", "vol_", "fn_", "img_", "snap_", "snap-", "build-", "refs", "by-digest", "prj-", "glb-"} {
		refused[prefix], refused[prefix+"x"] = "reserved_prefix", "reserved_prefix"
	}
	for name, rule := range refused {
		body, err := json.Marshal(map[string]string{"name": name})
		if err != nil {
			t.Fatal(err)
		}
		status, text := call(t, http.MethodPost, path, string(body))
		problem := decode[struct {
			Code   skerry.Code
			Errors []struct{ Field, Rule string }
		}](t, text)
		if status != http.StatusUnprocessableEntity && status != http.StatusBadRequest || problem.Code != skerry.CodeInvalid ||
			len(problem.Errors) != 1 || problem.Errors[0].Field != "name" || problem.Errors[0].Rule != rule {
			t.Errorf("%q: %d %s, want rule %s", name, status, text, rule)
		}
	}
	if status, text := call(t, http.MethodPost, path, `{}`); status < 400 || !strings.Contains(text, `"name"`) {
		t.Errorf("no name: %d %s", status, text)
	}
	if _, err := server.Client.CreateSnapshot(t.Context(), string(sb.ID), testimage.Shell); skerry.CodeOf(err) != skerry.CodeConflict {
		t.Errorf("the name of an image: %v", err)
	}
	longest := strings.Repeat("-_.9", 32) // may begin with a hyphen
	snap := sb.snapshot(t, longest)
	for what, err := range map[string]error{
		"a snapshot": func() error { _, err := server.Client.CreateSnapshot(t.Context(), string(sb.ID), longest); return err }(),
		"a capture": func() error {
			_, err := server.Client.CaptureImage(t.Context(), string(sb.ID), skerry.CaptureRequest{Name: longest})
			return err
		}(),
		"a pull": func() error {
			_, err := server.Client.PullImage(t.Context(), skerry.PullRequest{Reference: "127.0.0.1:1/x", Name: longest, PlainHTTP: true})
			return err
		}(),
	} {
		if skerry.CodeOf(err) != skerry.CodeConflict {
			t.Errorf("%s with the name of a snapshot: %v", what, err)
		}
	}
	if r := cli(t, "image", "import", tempDir+"/"+testimage.Static+".tar", "--name", longest); r.code != 4 {
		t.Errorf("an import with the name of a snapshot: %+v", r)
	}
	if _, err := server.Client.RestoreSnapshot(t.Context(), longest, skerry.RestoreRequest{Persistent: pointer(true)}); skerry.CodeOf(err) != skerry.CodeInvalid {
		t.Errorf("a persistent sandbox of an ephemeral one: %v", err)
	}
	if got := decode[skerry.Snapshot](t, mustCLI(t, "snapshot", "get", string(snap.ID))); got != snap {
		t.Errorf("by id %+v, by name %+v", got, snap)
	}
	mustCLI(t, "snapshot", "delete", string(snap.ID))
	for _, name := range []string{longest, string(snap.ID)} {
		if status, _ := call(t, http.MethodGet, "/v2/snapshots/"+url.PathEscape(name), ""); status != http.StatusNotFound {
			t.Errorf("%.8s after the delete: status %d", name, status)
		}
		if r := cli(t, "snapshot", "restore", "--", name); r.code != 3 {
			t.Errorf("restore of %.8s after the delete: %+v", name, r)
		}
	}
	wantEmptyDir(t, server, "snapshots")
}

// TestSnapshot takes memory and disk of a sandbox that writes to both as fast as
// it can: in what is restored they agree, and the source goes on.
func TestSnapshot(t *testing.T) {
	source := create(t, client.CreateSandbox{Image: testimage.Shell, Name: "busy", Labels: map[string]string{"team": "sea"}, Env: map[string]string{"TOKEN": "secret"},
		Resources: &skerry.ResourcesRequest{CPU: pointer(1.0), Memory: pointer(0.5), MemoryMax: pointer(0.75)}})
	c := source.startCounter(t, "0s")
	source.shell(t, makeBig)
	digest := source.sum(t, "/root/big")
	snap := decode[skerry.Snapshot](t, mustCLI(t, "sandbox", "snapshot", "busy", "--name", "moment"))
	t.Cleanup(func() { forgetSnapshot(t, snap.ID) })
	if snap.Status != skerry.ImageReady || snap.Source != source.ID || snap.Resources != source.Resources || snap.MemoryBytes == 0 || snap.DiskBytes == 0 || snap.Persistent {
		t.Errorf("snapshot %+v", snap)
	}
	atSnapshot := *c
	c.check(t, source)
	remove(t, source.ID)

	first := restore(t, "moment", skerry.RestoreRequest{Name: "first", Labels: map[string]string{"run": "1"}})
	second := existing(t, decode[skerry.Sandbox](t, mustCLI(t, "snapshot", "restore", "moment", "--name", "second", "--env", "TOKEN=mine")))
	var ids []identity
	for i, s := range []sandbox{first, second} {
		ids = append(ids, decode[identity](t, s.mustRoot(t, "probe", "identity")))
		counted := atSnapshot
		counted.check(t, s)
		if got := s.sum(t, "/root/big"); got != digest {
			t.Errorf("%s: digest %s, was %s", s.Name, got, digest)
		}
		if s.Snapshot != snap.ID || s.Resources != source.Resources || s.Persistent || s.Labels["team"] != "" || s.ForkedFrom != "" {
			t.Errorf("restored %+v", s.Sandbox)
		}
		if got, want := s.shell(t, `echo "$TOKEN"`), []string{"\n", "mine\n"}[i]; got != want {
			t.Errorf("%s: TOKEN is %q, want %q", s.Name, got, want)
		}
		s.shell(t, fmt.Sprintf("echo %d >/root/own", i))
	}
	wantDistinct(t, ids)
	if first.Labels["run"] != "1" {
		t.Errorf("labels %v", first.Labels)
	}
	if r := cli(t, "snapshot", "list"); len(decode[[]skerry.Snapshot](t, r.stdout)) != 1 {
		t.Errorf("list %+v", r)
	}
	// Sandboxes stay when what they are made of goes.
	mustCLI(t, "snapshot", "delete", "moment")
	for i, s := range []sandbox{first, second} {
		counted := atSnapshot
		counted.check(t, s)
		if got := s.shell(t, "cat /root/own"); got != fmt.Sprintln(i) {
			t.Errorf("%s has the file of another: %q", s.Name, got)
		}
	}
	if r := cli(t, "snapshot", "get", "moment"); r.code != 3 {
		t.Errorf("get after the delete: %+v", r)
	}
}

// TestSnapshotOfSnapshot is case 22 for snapshots: over generations nothing is
// lost, and a persistent source has persistent copies.
func TestSnapshotOfSnapshot(t *testing.T) {
	sb := keep(t, client.CreateSandbox{})
	sb.shell(t, makeBig)
	digest := sb.sum(t, "/root/big")
	c := sb.startCounter(t, "50ms")
	const generations = 3
	for i := 1; i <= generations; i++ {
		sb.write(t, i)
		snap := sb.snapshot(t, fmt.Sprint("generation-", i))
		last := sb
		sb = restore(t, snap.Name, skerry.RestoreRequest{})
		if !sb.Persistent {
			t.Errorf("generation %d is ephemeral", i)
		}
		remove(t, last.ID)
		if i%2 == 0 { // also of something that was paused
			sb.operate(t, skerry.Pause)
			sb.operate(t, skerry.Resume)
		}
		sb.wantWritten(t, i)
		c.check(t, sb)
	}
	if got := sb.sum(t, "/root/big"); got != digest {
		t.Errorf("digest after %d generations: %s, was %s", generations, got, digest)
	}
}
