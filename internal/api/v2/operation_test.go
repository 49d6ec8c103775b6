package v2_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/problem"
)

func ptr[T any](v T) *T { return &v }

// bodiless are POSTs that need no body, with the status of their answer.
var bodiless = map[string]int{
	"/v2/sandboxes/box/stop": 202, "/v2/sandboxes/box/start": 202, "/v2/sandboxes/box/pause": 202,
	"/v2/sandboxes/box/resume": 202, "/v2/sandboxes/box/reclaim": 202, "/v2/sandboxes/box/fork": 202,
	"/v2/sandboxes/box/capture": 202, "/v2/sandboxes/box/touch": 200, "/v2/snapshots/box/restore": 201,
}

func TestOperationsWithoutBody(t *testing.T) {
	c := &control{created: true, sandbox: skerry.Sandbox{ID: "sbx_x", Operation: skerry.Stop}}
	h := newHandler(t, c)
	for target, status := range bodiless {
		name := target[strings.LastIndexByte(target, '/')+1:]
		for _, contentType := range []string{"", "application/json", "text/plain", "application/x-www-form-urlencoded", "nonsense"} {
			for _, body := range []string{"", "{}"} {
				if body != "" && contentType != "application/json" {
					continue
				}
				c.op, c.on = "", ""
				r := httptest.NewRequest("POST", "http://localhost"+target, strings.NewReader(body))
				r.Header.Set("Authorization", "Bearer "+token)
				if contentType != "" {
					r.Header.Set("Content-Type", contentType)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != status || c.op != name || c.on != "box" {
					t.Errorf("%s with %q and %q: %d %s, control did %q on %q", target, contentType, body, w.Code, w.Body, c.op, c.on)
				}
			}
		}
		wantProblem(t, do(t, h, "POST", target, `{"nonsense":1}`), skerry.CodeInvalid, "nonsense", "unknown_field")
		wantProblem(t, do(t, h, "POST", target+"?nonsense=1", ``), skerry.CodeInvalid, "nonsense", "unknown_field")
	}
}

func TestOperationsRefused(t *testing.T) {
	c := &control{err: skerry.Errorf(skerry.CodeConflict, "sandbox sbx_x has another operation under way: fork")}
	h := newHandler(t, c)
	for target := range bodiless {
		w := do(t, h, "POST", target, "")
		if p := wantProblem(t, w, skerry.CodeConflict, "", ""); w.Code != http.StatusConflict || !strings.Contains(p.Detail, "fork") {
			t.Errorf("%s: %d %q", target, w.Code, p.Detail)
		}
	}
}

func TestFork(t *testing.T) {
	c := &control{sandbox: skerry.Sandbox{ID: "sbx_copy", ForkedFrom: "sbx_x"}}
	h := newHandler(t, c)
	tests := []struct {
		body string
		want skerry.ForkRequest
	}{
		{``, skerry.ForkRequest{Count: 1}},
		{`{"count":64}`, skerry.ForkRequest{Count: 64}},
		{`{"names":["a","b"],"labels":{"k":"v"},"inherit_env":true}`, skerry.ForkRequest{Count: 2, Names: []string{"a", "b"}, Labels: map[string]string{"k": "v"}, InheritEnv: true}},
	}
	for _, tt := range tests {
		w := do(t, h, "POST", "/v2/sandboxes/box/fork", tt.body)
		if w.Code != http.StatusAccepted || !strings.HasPrefix(w.Body.String(), `{"items":[{"id":"sbx_copy"`) {
			t.Errorf("%s: %d %s", tt.body, w.Code, w.Body)
		}
		if d := cmp.Diff(tt.want, c.asked); d != "" {
			t.Errorf("%s: %s", tt.body, d)
		}
	}
	refuse(t, h, "POST", "/v2/sandboxes/box/fork", []refusal{
		{`{"count":0}`, "count", "min", "1"},
		{`{"count":65}`, "count", "max", "64"},
		{`{"count":1.5}`, "count", "type", ""},
		{`{"count":3,"names":["a","b"]}`, "names", "length", "3"},
		{`{"names":["a","a"]}`, "names", "unique", ""},
		{`{"names":["a","-b"]}`, "names", "pattern", ""},
		{`{"names":["sbx_a"]}`, "names", "reserved_prefix", "sbx_"},
		{`{"labels":{"name":"x"}}`, "labels", "reserved_key", "name"},
		{`{"labels":{"a=b":"x"}}`, "labels", "key", ""},
	})
	names := strings.Repeat(`"x",`, 64) + `"x"`
	refuse(t, h, "POST", "/v2/sandboxes/box/fork", []refusal{{`{"names":[` + names + `]}`, "count", "range", "1 to 64"}})
}

func TestCapture(t *testing.T) {
	c := &control{image: skerry.Image{ID: "img_x", Status: skerry.ImagePending, Anonymous: true}}
	h := newHandler(t, c)
	tests := []struct {
		body string
		want skerry.CaptureRequest
	}{
		{``, skerry.CaptureRequest{IdleExpirySeconds: ptr(604800)}},
		{`{"idle_expiry_seconds":-1}`, skerry.CaptureRequest{IdleExpirySeconds: ptr(604800)}},
		{`{"idle_expiry_seconds":null}`, skerry.CaptureRequest{IdleExpirySeconds: ptr(604800)}},
		{`{"idle_expiry_seconds":1}`, skerry.CaptureRequest{IdleExpirySeconds: ptr(1)}},
		{`{"idle_expiry_seconds":604800}`, skerry.CaptureRequest{IdleExpirySeconds: ptr(604800)}},
		{`{"name":"team/env:1"}`, skerry.CaptureRequest{Name: "team/env:1"}},
	}
	for _, tt := range tests {
		if w := do(t, h, "POST", "/v2/sandboxes/box/capture", tt.body); w.Code != http.StatusAccepted || decode[skerry.Image](t, w).ID != "img_x" {
			t.Errorf("%s: %d %s", tt.body, w.Code, w.Body)
		}
		if d := cmp.Diff(tt.want, c.asked); d != "" {
			t.Errorf("%s: %s", tt.body, d)
		}
	}
	refuse(t, h, "POST", "/v2/sandboxes/box/capture", []refusal{
		{`{"name":"env","idle_expiry_seconds":60}`, "idle_expiry_seconds", "excludes", "name"},
		{`{"idle_expiry_seconds":0}`, "idle_expiry_seconds", "range", "1 to 604800, or -1"},
		{`{"idle_expiry_seconds":-2}`, "idle_expiry_seconds", "range", ""},
		{`{"idle_expiry_seconds":604801}`, "idle_expiry_seconds", "range", ""},
		{`{"name":""}`, "name", "min_length", "1"},
		{`{"name":"snap_x"}`, "name", "reserved_prefix", "snap_"},
		{`{"name":".x"}`, "name", "pattern", ""},
		{`{"name":"` + strings.Repeat("x", 256) + `"}`, "name", "length", ""},
	})
}

func TestPush(t *testing.T) {
	c := &control{image: skerry.Image{ID: "img_x", Push: &skerry.PushProgress{Status: skerry.ImagePending}}}
	h := newHandler(t, c)
	w := do(t, h, "POST", "/v2/images/team%2Fenv:1/push", `{"reference":"localhost:5000/env:1","plain_http":true,"auth":{"username":"u","password":"p"}}`)
	want := skerry.PushRequest{Reference: "localhost:5000/env:1", PlainHTTP: true, Auth: &skerry.RegistryAuth{Username: "u", Password: "p"}}
	if d := cmp.Diff(want, c.asked); w.Code != http.StatusAccepted || c.on != "team/env:1" || d != "" || strings.Contains(w.Body.String(), "password") {
		t.Errorf("%d %s on %s: %s", w.Code, w.Body, c.on, d)
	}
	refuse(t, h, "POST", "/v2/images/env/push", []refusal{
		{`{}`, "reference", "required", ""},
		{`{"reference":""}`, "reference", "length", "1 to 512 characters"},
		{`{"reference":"` + strings.Repeat("x", 513) + `"}`, "reference", "length", "1 to 512 characters"},
		{`{"reference":"a","token":"x"}`, "token", "unknown_field", ""},
	})
}

// refusal is a body that is refused, and what the refusal names; "" in bound is
// any.
type refusal struct{ body, field, rule, bound string }

func refuse(t *testing.T, h http.Handler, method, target string, tests []refusal) {
	t.Helper()
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s %s", tt.field, tt.rule), func(t *testing.T) {
			t.Helper()
			p := wantProblem(t, do(t, h, method, target, tt.body), skerry.CodeInvalid, tt.field, tt.rule)
			if !strings.HasPrefix(p.Detail, tt.field+": ") || tt.bound != "" && p.Errors[0].Bound != tt.bound {
				t.Errorf("detail %q, bound %q, want %q", p.Detail, bound(p), tt.bound)
			}
		})
	}
}

func bound(p problem.Problem) string {
	if len(p.Errors) == 0 {
		return ""
	}
	return p.Errors[0].Bound
}
