package scenario

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testimage"
)

// call makes a request with the server's key and returns status and body.
func call(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+server.APIKey)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestRefusedFields checks that nothing that a create asks for is ignored.
func TestRefusedFields(t *testing.T) {
	tests := []struct {
		body, field string
		code        skerry.Code
	}{
		{`{"ports":[{"port":8080}]}`, "ports", skerry.CodeUnsupported},
		{`{"volumes":[{"name":"v"}]}`, "volumes", skerry.CodeUnsupported},
		{`{"secrets":["TOKEN"]}`, "secrets", skerry.CodeUnsupported},
		{`{"network_policy":{"block_all":true}}`, "network_policy", skerry.CodeUnsupported},
		{`{"cpu_type":"zen5"}`, "cpu_type", skerry.CodeUnsupported},
		{`{"snapshot":"s"}`, "snapshot", skerry.CodeUnsupported},
		{`{"gpu":1}`, "gpu", skerry.CodeUnsupported},
		{`{"region":"mars"}`, "region", skerry.CodeUnsupported},
		{`{"cpu_arch":"arm64"}`, "cpu_arch", skerry.CodeUnsupported},
		{`{"lifecycle_policy":{"timeout_seconds":0}}`, "lifecycle_policy.timeout_seconds", skerry.CodeInvalid},
		{`{"lifecycle_policy":{"idle_expiry_seconds":600}}`, "lifecycle_policy.on_idle_timeout", skerry.CodeInvalid},
		{`{"lifecycle_policy":{"timeout_seconds":60,"on_timeout":"pause"}}`, "lifecycle_policy.on_timeout", skerry.CodeInvalid},
		{`{"no_such_field":1}`, "no_such_field", skerry.CodeInvalid},
		{`{"name":"-"}`, "name", skerry.CodeInvalid},
		{`{"env":{"X;touch /tmp/pwn":"1"}}`, "env", skerry.CodeInvalid},
		{`{"mode":"shared"}`, "mode", skerry.CodeInvalid},
		{`{"mode":"dedicated","resources":{"disk":20,"disk_max":40}}`, "resources.disk_max", skerry.CodeInvalid},
		{`{"resources":{"memory":33}}`, "resources.memory", skerry.CodeInvalid},
		{`{"resources":{"cpu_max":0.3}}`, "resources.cpu_max", skerry.CodeInvalid},
	}
	for _, tt := range tests {
		status, body := call(t, "POST", "/v2/sandboxes", tt.body)
		problem := decode[struct {
			Code   skerry.Code
			Errors []struct{ Field string }
		}](t, body)
		if status < 400 || status > 499 || problem.Code != tt.code || len(problem.Errors) != 1 || problem.Errors[0].Field != tt.field {
			t.Errorf("%s: %d %s", tt.body, status, body)
		}
	}
	wantNoSandboxes(t)
}

func TestUnauthorized(t *testing.T) {
	for _, path := range []string{"/v2/sandboxes", "/v2/images", "/v2/runners", "/toolbox/sbx_aaaaaaaaaaaaaaaaaaaa/files"} {
		for _, key := range []string{"", "Bearer wrong"} {
			req, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if key != "" {
				req.Header.Set("Authorization", key)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s with key %q: %s", path, key, resp.Status)
			}
		}
	}
}

// TestDocuments reads what the server says of itself.
func TestDocuments(t *testing.T) {
	status, body := call(t, "GET", "/v2/openapi.json", "")
	document := decode[struct{ OpenAPI string }](t, body)
	if status != 200 || !strings.HasPrefix(document.OpenAPI, "3.1") {
		t.Errorf("OpenAPI: %d, version %q", status, document.OpenAPI)
	}
	if status, body := call(t, "GET", "/docs", ""); status != 200 || !strings.Contains(body, "<html") {
		t.Errorf("docs: %d %.200s", status, body)
	}
	runners, err := server.Client.Runners(t.Context())
	if err != nil || len(runners) != 1 {
		t.Fatalf("runners %+v, %v", runners, err)
	}
	r := runners[0]
	if !r.Online || r.CPUs < 1 || r.MemoryMiB < 512 || (r.Accel != "tcg" && r.Accel != "kvm") {
		t.Errorf("runner %+v", r)
	}
	for _, name := range []string{"qemu", "kernel", "kvm", "disk", "control groups"} {
		if !slices.ContainsFunc(r.Facts, func(c skerry.Check) bool {
			return strings.Contains(strings.ToLower(c.Name), name) && c.Level != skerry.CheckFail && c.Detail != ""
		}) {
			t.Errorf("no good check of %q in %+v", name, r.Facts)
		}
	}
	var doctor []skerry.Check
	if err := json.Unmarshal([]byte(mustCLI(t, "doctor")), &doctor); err != nil || len(doctor) < len(r.Facts) {
		t.Errorf("doctor: %+v, %v", doctor, err)
	}
}

// TestLife follows one sandbox: idempotent create, list with labels, wait,
// metrics, console, delete.
func TestLife(t *testing.T) {
	req := client.CreateSandbox{Image: testimage.Shell, Name: "life", Labels: map[string]string{"team": "sea"}, WaitSeconds: pointer(0)}
	sb, err := server.Client.CreateSandbox(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, sb.ID) })
	again, err := server.Client.CreateSandbox(t.Context(), req)
	if err != nil || again.ID != sb.ID {
		t.Errorf("the same create again: %s, want %s; %v", again.ID, sb.ID, err)
	}
	if sb, err = server.Client.WaitSandbox(t.Context(), "life", time.Minute, skerry.StatusRunning); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		filter skerry.SandboxFilter
		want   int
	}{
		{skerry.SandboxFilter{Labels: map[string]string{"team": "sea"}}, 1},
		{skerry.SandboxFilter{Labels: map[string]string{"team": "sea", "name": "life"}, Statuses: []skerry.Status{skerry.StatusRunning}}, 1},
		{skerry.SandboxFilter{Labels: map[string]string{"team": "land"}}, 0},
		{skerry.SandboxFilter{Labels: map[string]string{"team": "sea"}, Statuses: []skerry.Status{skerry.StatusFailed}}, 0},
	} {
		if page, err := server.Client.Sandboxes(t.Context(), tt.filter); err != nil || len(page.Items) != tt.want {
			t.Errorf("%+v: %d sandboxes, %v", tt.filter, len(page.Items), err)
		}
	}
	console, err := server.Client.Console(t.Context(), "life")
	if err != nil {
		t.Fatal(err)
	}
	console.Close()
	if _, metrics := call(t, "GET", "/metrics", ""); !strings.Contains(metrics, "skerry_") {
		t.Errorf("no metric of ours in %.300s", metrics)
	}
	if !strings.Contains(server.Log(), `"sandbox_id":"`+string(sb.ID)+`"`) {
		t.Error("the log does not name the sandbox")
	}
	for range 2 { // a second delete does no harm
		if _, err := server.Client.DeleteSandbox(t.Context(), "life"); err != nil && skerry.CodeOf(err) != skerry.CodeGone && skerry.CodeOf(err) != skerry.CodeNotFound {
			t.Errorf("delete: %v", err)
		}
	}
	if _, err := server.Client.WaitSandbox(t.Context(), string(sb.ID), time.Minute, skerry.StatusDeleted); err != nil {
		t.Error(err)
	}
	_, err = server.Client.Toolbox(sb.ID).Execute(t.Context(), skerry.ExecuteRequest{Command: "true"})
	if code := skerry.CodeOf(err); code != skerry.CodeGone && code != skerry.CodeNotFound {
		t.Errorf("a command in a deleted sandbox: %v", err)
	}
}

// TestDeleteWhileStarting is case 25: in every state of a create.
func TestDeleteWhileStarting(t *testing.T) {
	for i := range 6 {
		sb, err := server.Client.CreateSandbox(t.Context(), client.CreateSandbox{Image: testimage.Shell, WaitSeconds: pointer(0)})
		if err != nil {
			t.Fatal(err)
		}
		// Each time a little later, so that different states are hit.
		time.Sleep(time.Duration(i) * 60 * time.Millisecond)
		remove(t, sb.ID)
	}
	wantNoSandboxes(t)
}

// TestEnvironment is case 11: values arrive byte for byte.
func TestEnvironment(t *testing.T) {
	created := map[string]string{"A": "line1\nline2\n", "B": "x y  z", "C": "a=b=c", "D": "$(touch /tmp/pwn)`touch /tmp/pwn`", "E": "", "F": strings.Repeat("f", 100<<10)}
	sb := create(t, client.CreateSandbox{Image: testimage.Shell, Env: created})
	var out bytes.Buffer
	r, err := sb.Run(t.Context(), client.RunOptions{Argv: []string{"probe", "environ"}, Env: map[string]string{"B": "over\nridden", "G": "exec"}, Stdout: &out})
	if err != nil || *r.ExitCode != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	got := strings.Split(out.String(), "\x00")
	want := map[string]string{"B": "over\nridden", "G": "exec", "GREETING": "two words\nand a line", "EMPTY": ""}
	for k, v := range created {
		if _, ok := want[k]; !ok {
			want[k] = v
		}
	}
	for k, v := range want {
		if !slices.Contains(got, k+"="+v) {
			t.Errorf("%s is not as set", k)
		}
	}
	if r := sb.root(t, "test", "-e", "/tmp/pwn"); r.ExitCode == 0 {
		t.Error("a value was run by a shell")
	}
}

// TestManySandboxes makes several at once, and all of them work.
func TestManySandboxes(t *testing.T) {
	const n = 5
	var ids []skerry.SandboxID
	for range n {
		sb, err := server.Client.CreateSandbox(t.Context(), client.CreateSandbox{Image: testimage.Shell, WaitSeconds: pointer(0)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { remove(t, sb.ID) })
		ids = append(ids, sb.ID)
	}
	for i, id := range ids {
		tb := runningToolbox(t, server, id)
		if got, want := execute(t, tb, "echo", fmt.Sprint(i)), fmt.Sprintln(i); got != want {
			t.Errorf("sandbox %d: %q", i, got)
		}
	}
}
