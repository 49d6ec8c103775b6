package v2_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
)

func TestGetAndWait(t *testing.T) {
	c := &control{sandbox: skerry.Sandbox{ID: "sbx_x", Name: "work", Status: skerry.StatusBooting}}
	h := newHandler(t, c)
	for _, name := range []string{"sbx_x", "work"} {
		if sb := decode[skerry.Sandbox](t, do(t, h, "GET", "/v2/sandboxes/"+name, "")); sb.Name != "work" {
			t.Errorf("%s: got %+v", name, sb)
		}
	}
	wantProblem(t, do(t, h, "GET", "/v2/sandboxes/nobody", ""), skerry.CodeNotFound, "", "")
	tests := []struct {
		query string
		until []skerry.Status
		hold  time.Duration
	}{
		{"wait=running", []skerry.Status{"running", "deleting", "deleted", "failed", "lost"}, 3 * time.Second},
		{"wait=running,failed&timeout_seconds=1.5", []skerry.Status{"running", "failed", "deleting", "deleted", "lost"}, 1500 * time.Millisecond},
		{"wait=starting,started,error&timeout_seconds=600", []skerry.Status{"booting", "running", "failed", "lost", "deleting", "deleted"}, 3 * time.Second},
		{"wait=deleted&timeout_seconds=0", []skerry.Status{"deleted", "failed", "lost"}, 0},
	}
	for _, tt := range tests {
		if w := do(t, h, "GET", "/v2/sandboxes/work?"+tt.query, ""); w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", tt.query, w.Code, w.Body)
		}
		if !slices.Equal(c.until, tt.until) || c.timeout != tt.hold {
			t.Errorf("%s: waited %v for %v", tt.query, c.timeout, c.until)
		}
	}
	for _, names := range [][]string{joined(skerry.Statuses()), {"queued", "creating", "starting", "started", "stopping", "stopped", "pausing", "paused", "destroying", "destroyed", "error"}} {
		for _, name := range names {
			if w := do(t, h, "GET", "/v2/sandboxes/work?wait="+name, ""); w.Code != http.StatusOK {
				t.Errorf("wait for %s: %d %s", name, w.Code, w.Body)
			}
		}
	}
	wantProblem(t, do(t, h, "GET", "/v2/sandboxes/work?wait=unknown", ""), skerry.CodeInvalid, "wait", "one_of")
	wantProblem(t, do(t, h, "GET", "/v2/sandboxes/work?wait=nonsense", ""), skerry.CodeInvalid, "wait", "one_of")
	wantProblem(t, do(t, h, "GET", "/v2/sandboxes/work?wait=running&timeout_seconds=-1", ""), skerry.CodeInvalid, "timeout_seconds", "min")
	wantProblem(t, do(t, h, "GET", "/v2/sandboxes/work?wait=running&timeout_seconds=x", ""), skerry.CodeInvalid, "timeout_seconds", "type")
	wantProblem(t, do(t, h, "GET", "/v2/sandboxes/work?until=running", ""), skerry.CodeInvalid, "until", "unknown_field")
}

func joined(statuses []skerry.Status) []string {
	var names []string
	for _, s := range statuses {
		names = append(names, string(s))
	}
	return names
}

func TestList(t *testing.T) {
	c := &control{}
	h := newHandler(t, c)
	w := do(t, h, "GET", "/v2/sandboxes?label=team=research&label=k=a=b&status=running,failed&state=destroyed&cursor=abc&limit=7&include_deleted=true", "")
	want := skerry.SandboxFilter{Labels: map[string]string{"team": "research", "k": "a=b"}, Statuses: []skerry.Status{"running", "failed", "deleted"}, Cursor: "abc", Limit: 7, Deleted: true}
	if d := cmp.Diff(want, c.filter); d != "" {
		t.Errorf("%d %s", w.Code, d)
	}
	if got := strings.TrimSpace(w.Body.String()); got != `{"items":[],"next_cursor":"next"}` {
		t.Errorf("body = %s", got)
	}
	for query, rule := range map[string]string{
		"label=x": "label pattern", "label=a=1&label=a=2": "label unique", "status=nonsense": "status one_of", "state=nonsense": "state one_of",
		"limit=0": "limit min", "limit=1001": "limit max", "limit=x": "limit type", "nonsense=1": "nonsense unknown_field",
	} {
		field, rule, _ := strings.Cut(rule, " ")
		wantProblem(t, do(t, h, "GET", "/v2/sandboxes?"+query, ""), skerry.CodeInvalid, field, rule)
	}
}

func TestDeleteAndConsole(t *testing.T) {
	c := &control{sandbox: skerry.Sandbox{ID: "sbx_x", Status: skerry.StatusDeleting}}
	h := newHandler(t, c)
	if w := do(t, h, "DELETE", "/v2/sandboxes/sbx_x", ""); w.Code != http.StatusAccepted || !strings.Contains(w.Body.String(), `"deleting"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w := do(t, h, "GET", "/v2/sandboxes/sbx_x/console", "")
	if w.Code != http.StatusOK || w.Body.String() != "Linux version 6.1\n" || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}

func TestErrorsOfControl(t *testing.T) {
	for code, status := range map[skerry.Code]int{
		skerry.CodeConflict: 409, skerry.CodeExhausted: 507, skerry.CodeUnavailable: 503, skerry.CodeUnsupported: 422, skerry.CodeGone: 410, skerry.CodeTimeout: 504,
	} {
		w := do(t, newHandler(t, &control{err: skerry.Errorf(code, "the reason")}), "POST", "/v2/sandboxes", `{}`)
		if p := wantProblem(t, w, code, "", ""); w.Code != status || p.Detail != "the reason" {
			t.Errorf("%s: %d %q", code, w.Code, p.Detail)
		}
	}
	w := do(t, newHandler(t, &control{err: errors.New("open /secret/state.db: disk I/O error")}), "POST", "/v2/sandboxes", `{}`)
	if p := wantProblem(t, w, skerry.CodeInternal, "", ""); strings.Contains(w.Body.String(), "secret") || !strings.Contains(p.Instance, p.RequestID) {
		t.Errorf("got %s", w.Body)
	}
	wantProblem(t, do(t, newHandler(t, &control{panics: true}), "GET", "/v2/sandboxes/x", ""), skerry.CodeInternal, "", "")
}

func TestImages(t *testing.T) {
	c := &control{image: skerry.Image{ID: "img_x", Name: "docker.io/library/alpine:3.20"}}
	h := newHandler(t, c)
	if w := do(t, h, "GET", "/v2/images", ""); strings.TrimSpace(w.Body.String()) != `{"items":[]}` {
		t.Errorf("list = %s", w.Body)
	}
	if w := do(t, h, "GET", "/v2/images/docker.io%2Flibrary%2Falpine:3.20", ""); w.Code != http.StatusOK {
		t.Errorf("a name with slashes: %d %s", w.Code, w.Body)
	}
	if w := do(t, h, "GET", "/v2/images/x?wait=ready&timeout_seconds=1", ""); w.Code != http.StatusOK || c.timeout != time.Second {
		t.Errorf("wait: %d %s, %v", w.Code, w.Body, c.timeout)
	}
	if w := do(t, h, "DELETE", "/v2/images/x", ""); w.Code != http.StatusNoContent {
		t.Errorf("delete: %d %s", w.Code, w.Body)
	}
	if w := do(t, h, "POST", "/v2/images/default", ""); w.Code != http.StatusAccepted {
		t.Errorf("default: %d %s", w.Code, w.Body)
	}
	w := do(t, h, "POST", "/v2/images/pull", `{"reference":"localhost:5000/app","plain_http":true,"auth":{"username":"u","password":"p"}}`)
	if w.Code != http.StatusAccepted || !c.pull.PlainHTTP || c.pull.Auth.Password != "p" {
		t.Errorf("pull: %d %s, %+v", w.Code, w.Body, c.pull)
	}
	wantProblem(t, do(t, h, "POST", "/v2/images/pull", `{}`), skerry.CodeInvalid, "reference", "required")
	wantProblem(t, do(t, h, "POST", "/v2/images/pull", `{"reference":"a","name":"snap_x"}`), skerry.CodeInvalid, "name", "reserved_prefix")
}

func TestImport(t *testing.T) {
	c := &control{}
	h := newHandler(t, c)
	w := do(t, h, "POST", "/v2/images/import?name=app&kind=docker-save&tag=v1&default=true", "archive bytes")
	if w.Code != http.StatusAccepted || c.body != "archive bytes" {
		t.Fatalf("%d %s, control read %q", w.Code, w.Body, c.body)
	}
	want := skerry.ImportRequest{Path: c.upload.Path, Kind: "docker-save", Name: "app", Tag: "v1", Default: true}
	if d := cmp.Diff(want, c.upload); d != "" {
		t.Error(d)
	}
	wantProblem(t, do(t, h, "POST", "/v2/images/import", "x"), skerry.CodeInvalid, "name", "required")
	wantProblem(t, do(t, h, "POST", "/v2/images/import?name=a&kind=zip", "x"), skerry.CodeInvalid, "kind", "one_of")
	wantProblem(t, do(t, h, "POST", "/v2/images/import?name=a", ""), skerry.CodeInvalid, "body", "required")
	wantProblem(t, do(t, h, "POST", "/v2/images/import?name=a", strings.Repeat("x", 2<<20)), skerry.CodeTooLarge, "", "")
	c.err = skerry.Errorf(skerry.CodeConflict, "name is taken")
	wantProblem(t, do(t, h, "POST", "/v2/images/import?name=a", "x"), skerry.CodeConflict, "", "")
	if _, err := os.Stat(c.upload.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused upload was left at %s", c.upload.Path)
	}
}

func TestEdge(t *testing.T) {
	c := &control{sandbox: skerry.Sandbox{ID: "sbx_x"}}
	h := newHandler(t, c)
	request := func(method, target, host, auth, id string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, target, nil)
		r.Host = host
		r.Header.Set("Authorization", auth)
		r.Header.Set("X-Request-Id", id)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	const good = "Bearer " + token
	for _, auth := range []string{"", "Bearer", "Bearer ", "Basic " + token, "Bearer wrong"} {
		w := request("GET", "/v2/sandboxes", "localhost", auth, "")
		if wantProblem(t, w, skerry.CodeUnauthorized, "", ""); !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%q: no challenge", auth)
		}
	}
	for host, ok := range map[string]bool{"localhost": true, "LOCALHOST:3986": true, "127.0.0.1:3986": true, "[::1]:3986": true, "evil.example": false, "localhost.evil.example": false, "": false} {
		if w := request("GET", "/v2/sandboxes", host, good, ""); (w.Code == http.StatusOK) != ok {
			t.Errorf("host %q: %d", host, w.Code)
		}
	}
	if w := request("GET", "/v2/version", "localhost", good, "my-id.1"); w.Header().Get("X-Request-Id") != "my-id.1" {
		t.Errorf("request id = %q", w.Header().Get("X-Request-Id"))
	}
	if w := request("GET", "/v2/version", "localhost", good, "bad id\r\n"); !strings.HasPrefix(w.Header().Get("X-Request-Id"), "req_") {
		t.Errorf("request id = %q", w.Header().Get("X-Request-Id"))
	}
	w := request("GET", "/v2/version", "localhost", good, "")
	if !strings.Contains(w.Body.String(), `"version":"1.2.3"`) || w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("%s %v", w.Body, w.Header())
	}
	wantProblem(t, request("GET", "/v2/nothing", "localhost", good, ""), skerry.CodeNotFound, "", "")
	wantProblem(t, request("GET", "/nothing", "localhost", "", ""), skerry.CodeNotFound, "", "")
	if w := request("PUT", "/v2/sandboxes", "localhost", good, ""); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD, POST" {
		t.Errorf("%d, allow %q", w.Code, w.Header().Get("Allow"))
	}
	for _, path := range []string{"/healthz", "/docs/", "/docs/docs.js", "/v2/openapi.json"} {
		if w := request("GET", path, "localhost", "", ""); w.Code != http.StatusOK {
			t.Errorf("%s without a key: %d", path, w.Code)
		}
	}
}

// TestOpenAPI checks the document: references resolve, ids are unique, every
// operation has its errors, unsupported fields are marked.
func TestOpenAPI(t *testing.T) {
	w := do(t, newHandler(t, &control{}), "GET", "/v2/openapi.json", "")
	var doc map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if v := doc["openapi"]; v != "3.1.0" {
		t.Errorf("openapi = %v", v)
	}
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				if _, ok := schemas[strings.TrimPrefix(ref, "#/components/schemas/")]; !ok {
					t.Errorf("%s leads nowhere", ref)
				}
			}
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(doc)
	ids := map[string]bool{}
	operations := 0
	for path, item := range doc["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			op := op.(map[string]any)
			id := op["operationId"].(string)
			if operations++; ids[id] || op["summary"] == nil || op["responses"].(map[string]any)["default"] == nil {
				t.Errorf("%s %s: id %q used twice, no summary or no errors", method, path, id)
			}
			ids[id] = true
		}
	}
	if operations != 30 {
		t.Errorf("%d operations, want 30", operations)
	}
	create := schemas["CreateSandbox"].(map[string]any)["properties"].(map[string]any)
	for _, field := range []string{"ports", "volumes", "secrets", "network_policy", "cpu_type", "snapshot", "gpu"} {
		if p, ok := create[field].(map[string]any); !ok || p["x-skerry-unsupported"] != true {
			t.Errorf("%s is not marked as unsupported: %v", field, create[field])
		}
	}
}
