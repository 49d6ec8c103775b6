package v2_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
)

func TestLifecycle(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	have := skerry.Lifecycle{LifecyclePolicy: skerry.LifecyclePolicy{TimeoutSeconds: 900, OnTimeout: "delete"}, TimeoutAt: &at}
	c := &control{lifecycle: have, sandbox: skerry.Sandbox{ID: "sbx_x", Lifecycle: have}}
	h := newHandler(t, c)
	if got := decode[skerry.Lifecycle](t, do(t, h, "GET", "/v2/sandboxes/sbx_x/lifecycle", "")); !cmp.Equal(got, have) {
		t.Errorf("get: %+v", got)
	}
	wantProblem(t, do(t, h, "GET", "/v2/sandboxes/nobody/lifecycle", ""), skerry.CodeNotFound, "", "")
	if got := decode[skerry.Lifecycle](t, do(t, h, "POST", "/v2/sandboxes/sbx_x/touch", "")); !cmp.Equal(got, have) {
		t.Errorf("touch: %+v", got)
	}
	tests := []struct {
		body string
		want skerry.PolicyRequest
	}{
		{``, skerry.PolicyRequest{}},
		{`{}`, skerry.PolicyRequest{}},
		{`{"timeout_seconds":null}`, skerry.PolicyRequest{}},
		{`{"timeout_seconds":3600}`, skerry.PolicyRequest{TimeoutSeconds: ptr(3600)}},
		{`{"idle_expiry_seconds":0}`, skerry.PolicyRequest{IdleExpirySeconds: ptr(0)}},
		{`{"idle_expiry_seconds":1800,"on_idle_timeout":"delete"}`, skerry.PolicyRequest{IdleExpirySeconds: ptr(1800), OnIdleTimeout: ptr(skerry.ActionDelete)}},
	}
	for _, tt := range tests {
		if w := do(t, h, "PATCH", "/v2/sandboxes/sbx_x/lifecycle", tt.body); w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", tt.body, w.Code, w.Body)
		}
		if d := cmp.Diff(tt.want, c.asked); d != "" {
			t.Errorf("%s: %s", tt.body, d)
		}
	}
	// Fields are named as they are spelled in this body.
	refuse(t, h, "PATCH", "/v2/sandboxes/sbx_x/lifecycle", []refusal{
		{`{"timeout_seconds":0}`, "timeout_seconds", "range", "1 to 86400"},
		{`{"timeout_seconds":86401}`, "timeout_seconds", "range", "1 to 86400"},
		{`{"timeout_seconds":"1h"}`, "timeout_seconds", "type", ""},
		{`{"on_timeout":"explode"}`, "on_timeout", "one_of", ""},
		{`{"on_timeout":"stop"}`, "on_timeout", "one_of", "delete"},
		{`{"idle_expiry_seconds":-1}`, "idle_expiry_seconds", "range", "0 to 2592000"},
		{`{"idle_expiry_seconds":60}`, "on_idle_timeout", "required", ""},
		{`{"on_idle_timeout":"delete"}`, "on_idle_timeout", "requires", "idle_expiry_seconds"},
		{`{"lifecycle_policy":{}}`, "lifecycle_policy", "unknown_field", ""},
	})
	c.err = skerry.Errorf(skerry.CodeGone, "sandbox sbx_x is deleted")
	wantProblem(t, do(t, h, "PATCH", "/v2/sandboxes/sbx_x/lifecycle", `{}`), skerry.CodeGone, "", "")
}
