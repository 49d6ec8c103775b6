package v2_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
)

func TestSnapshots(t *testing.T) {
	c := &control{snapshot: skerry.Snapshot{ID: "snap_x", Name: "mine", Status: skerry.ImagePending}}
	h := newHandler(t, c)
	w := do(t, h, "POST", "/v2/sandboxes/box/snapshots", `{"name":"mine"}`)
	if w.Code != http.StatusAccepted || decode[skerry.Snapshot](t, w).ID != "snap_x" || c.on != "box" || c.asked != "mine" {
		t.Errorf("create: %d %s, on %q for %v", w.Code, w.Body, c.on, c.asked)
	}
	if w := do(t, h, "GET", "/v2/snapshots", ""); strings.TrimSpace(w.Body.String()) != `{"items":[]}` {
		t.Errorf("list: %d %s", w.Code, w.Body)
	}
	if w := do(t, h, "GET", "/v2/snapshots/mine", ""); w.Code != http.StatusOK || c.timeout != 0 {
		t.Errorf("get: %d %s", w.Code, w.Body)
	}
	wantProblem(t, do(t, h, "GET", "/v2/snapshots/other", ""), skerry.CodeNotFound, "", "")
	if w := do(t, h, "GET", "/v2/snapshots/mine?wait=ready&timeout_seconds=60", ""); w.Code != http.StatusOK || c.timeout != 3*time.Second {
		t.Errorf("wait: %d %s, %v", w.Code, w.Body, c.timeout)
	}
	wantProblem(t, do(t, h, "GET", "/v2/snapshots/mine?wait=failed", ""), skerry.CodeInvalid, "wait", "one_of")
	if w := do(t, h, "DELETE", "/v2/snapshots/mine", ""); w.Code != http.StatusNoContent || w.Body.Len() != 0 {
		t.Errorf("delete: %d %s", w.Code, w.Body)
	}
	refuse(t, h, "POST", "/v2/sandboxes/box/snapshots", []refusal{
		{``, "name", "required", ""},
		{`{}`, "name", "required", ""},
		{`{"name":""}`, "name", "required", ""},
		{`{"name":"` + strings.Repeat("x", 129) + `"}`, "name", "length", "1 to 128 characters"},
		{`{"name":".x"}`, "name", "pattern", ""},
		{`{"name":"a/b"}`, "name", "pattern", ""},
		{`{"name":"snap-x"}`, "name", "reserved_prefix", "snap-"},
		{`{"name":"x","labels":{}}`, "labels", "unknown_field", ""},
	})
	c.err = skerry.Errorf(skerry.CodeConflict, "the name mine is in use")
	wantProblem(t, do(t, h, "POST", "/v2/sandboxes/box/snapshots", `{"name":"mine"}`), skerry.CodeConflict, "", "")
}

func TestRestore(t *testing.T) {
	c := &control{created: true, sandbox: skerry.Sandbox{ID: "sbx_x", Snapshot: "snap_x"}}
	h := newHandler(t, c)
	body := `{"name":"copy","labels":{"team":"research"},"env":{"A":"b"},"persistent":false,"spot":true,"idempotency_key":"k",
		"lifecycle_policy":{"timeout_seconds":60},"create_timeout_seconds":-1}`
	want := skerry.RestoreRequest{
		Name: "copy", Labels: map[string]string{"team": "research"}, Env: map[string]string{"A": "b"}, Persistent: ptr(false), Spot: true,
		IdempotencyKey: "k", Policy: &skerry.PolicyRequest{TimeoutSeconds: ptr(60)}, CreateTimeoutSeconds: ptr(-1),
	}
	if w := do(t, h, "POST", "/v2/snapshots/mine/restore", body); w.Code != http.StatusCreated || c.on != "mine" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if d := cmp.Diff(want, c.asked); d != "" {
		t.Error(d)
	}
	c.created = false
	if w := do(t, h, "POST", "/v2/snapshots/mine/restore", body); w.Code != http.StatusOK || decode[skerry.Sandbox](t, w).ID != "sbx_x" {
		t.Errorf("again: %d %s", w.Code, w.Body)
	}
	refuse(t, h, "POST", "/v2/snapshots/mine/restore", []refusal{
		{`{"name":""}`, "name", "min_length", "1"},
		{`{"name":"sbx_x"}`, "name", "reserved_prefix", "sbx_"},
		{`{"labels":{"name":"x"}}`, "labels", "reserved_key", "name"},
		{`{"env":{"1A":"x"}}`, "env", "name_pattern", ""},
		{`{"idempotency_key":"a b"}`, "idempotency_key", "pattern", ""},
		{`{"create_timeout_seconds":86401}`, "create_timeout_seconds", "range", "1 to 86400, or -1"},
		{`{"lifecycle_policy":{"on_timeout":"explode"}}`, "lifecycle_policy.on_timeout", "one_of", ""},
		{`{"resources":{"cpu":2}}`, "resources", "unknown_field", ""},
	})
}
