package v2_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
)

func TestCreateRefusals(t *testing.T) {
	long := strings.Repeat("a", 300)
	manyLabels := make([]string, 65)
	for i := range manyLabels {
		manyLabels[i] = fmt.Sprintf(`"k%d":"v"`, i)
	}
	tests := []struct {
		body, field, rule string
	}{
		{`{"imagee":"x"}`, "imagee", "unknown_field"},
		{`{"resources":{"ram":1}}`, "resources.ram", "unknown_field"},
		{`{"image":7}`, "image", "type"},
		{`{"image":""}`, "image", "length"},
		{`{"image":"` + long + `"}`, "image", "length"},
		{`{"image":"snap_x"}`, "image", "reserved_prefix"},
		{`{"image":"a b"}`, "image", "pattern"},
		{`{"name":""}`, "name", "length"},
		{`{"name":"` + long + `"}`, "name", "length"},
		{`{"name":"-x"}`, "name", "pattern"},
		{`{"name":"a/b"}`, "name", "pattern"},
		{`{"name":"sbx_abc"}`, "name", "reserved_prefix"},
		{`{"labels":{` + strings.Join(manyLabels, ",") + `}}`, "labels", "max_items"},
		{`{"labels":{"a=b":"c"}}`, "labels", "key"},
		{`{"labels":{"":"c"}}`, "labels", "key"},
		{`{"labels":{"a":"` + strings.Repeat("v", 1025) + `"}}`, "labels", "value_length"},
		{`{"labels":{"a":1}}`, "labels.a", "type"},
		{`{"name":"x","labels":{"name":"y"}}`, "labels", "reserved_key"},
		{`{"user":"a b"}`, "user", "pattern"},
		{`{"user":""}`, "user", "pattern"},
		{`{"env":{"X;touch /tmp/pwn":"1"}}`, "env", "name_pattern"},
		{`{"env":{"A":"b\u0000c"}}`, "env", "no_nul"},
		{`{"env":{"A":"` + strings.Repeat("v", 129<<10) + `"}}`, "env", "max_bytes"},
		{`{"resources":{"cpu":-1}}`, "resources.cpu", "min"},
		{`{"resources":{"cpu":17}}`, "resources.cpu", "max"},
		{`{"resources":{"cpu":"2"}}`, "resources.cpu", "type"},
		{`{"resources":{"cpu_max":0.75}}`, "resources.cpu_max", "multiple"},
		{`{"resources":{"memory":0}}`, "resources.memory", "min"},
		{`{"resources":{"memory":33}}`, "resources.memory", "max"},
		{`{"resources":{"memory":4,"memory_max":2}}`, "resources.memory", "max"},
		{`{"resources":{"memory":1.0001}}`, "resources.memory", "whole_mib"},
		{`{"resources":{"memory_max":0.2}}`, "resources.memory_max", "whole_mib"},
		{`{"resources":{"memory_max":0.125}}`, "resources.memory_max", "range"},
		{`{"resources":{"disk":0.0001}}`, "resources.disk", "whole_mib"},
		{`{"resources":{"disk":300}}`, "resources.disk", "max"},
		{`{"resources":{"disk_max":0.25}}`, "resources.disk_max", "min"},
		{`{"create_timeout_seconds":0}`, "create_timeout_seconds", "range"},
		{`{"create_timeout_seconds":86401}`, "create_timeout_seconds", "range"},
		{`{"create_timeout_seconds":1.5}`, "create_timeout_seconds", "type"},
		{`{"wait_seconds":-1}`, "wait_seconds", "min"},
		{`{"idempotency_key":""}`, "idempotency_key", "pattern"},
		{`{"idempotency_key":"a b"}`, "idempotency_key", "pattern"},
		{`{"idempotency_key":"` + long + `"}`, "idempotency_key", "pattern"},
		{`{"mode":"shared"}`, "mode", "one_of"},
		{`{"mode":"dedicated","resources":{"cpu":1,"cpu_max":2}}`, "resources.cpu_max", "dedicated"},
		{`{"mode":"dedicated","resources":{"memory_max":2}}`, "resources.memory_max", "dedicated"},
		{`{"persistent":"yes"}`, "persistent", "type"},
		{`{"spot":1}`, "spot", "type"},
		{`{"lifecycle_policy":{"timeout":60}}`, "lifecycle_policy.timeout", "unknown_field"},
		{`{"lifecycle_policy":{"timeout_seconds":1.5}}`, "lifecycle_policy.timeout_seconds", "type"},
		{`{"lifecycle_policy":{"timeout_seconds":0}}`, "lifecycle_policy.timeout_seconds", "range"},
		{`{"lifecycle_policy":{"timeout_seconds":7201}}`, "lifecycle_policy.timeout_seconds", "range"},
		{`{"lifecycle_policy":{"on_timeout":"delete"}}`, "lifecycle_policy.on_timeout", "requires"},
		{`{"lifecycle_policy":{"timeout_seconds":60,"on_timeout":"explode"}}`, "lifecycle_policy.on_timeout", "one_of"},
		{`{"lifecycle_policy":{"timeout_seconds":60,"on_timeout":"stop"}}`, "lifecycle_policy.on_timeout", "one_of"},
		{`{"lifecycle_policy":{"idle_expiry_seconds":3600}}`, "lifecycle_policy.on_idle_timeout", "required"},
		{`{"lifecycle_policy":{"idle_expiry_seconds":-1,"on_idle_timeout":"delete"}}`, "lifecycle_policy.idle_expiry_seconds", "range"},
		{`{"lifecycle_policy":{"on_idle_timeout":"delete"}}`, "lifecycle_policy.on_idle_timeout", "requires"},
		{`{"cpu_arch":"riscv64"}`, "cpu_arch", "one_of"},
	}
	h := newHandler(t, &control{})
	for _, tt := range tests {
		t.Run(tt.field+" "+tt.rule, func(t *testing.T) {
			p := wantProblem(t, do(t, h, "POST", "/v2/sandboxes", tt.body), skerry.CodeInvalid, tt.field, tt.rule)
			if !strings.Contains(p.Detail, tt.field) {
				t.Errorf("detail %q does not name %s", p.Detail, tt.field)
			}
		})
	}
}

func TestCreateUnsupportedFields(t *testing.T) {
	tests := []struct {
		field, value string
		harmless     []string
	}{
		{"ports", `[{"port":8080}]`, []string{`[]`, `null`}},
		{"volumes", `[{"name":"v"}]`, []string{`[]`}},
		{"secrets", `["GITHUB_TOKEN"]`, []string{`[]`}},
		{"network_policy", `{"block_all":true}`, []string{`{}`, `null`}},
		{"cpu_type", `"zen5"`, []string{`null`}},
		{"snapshot", `"s"`, []string{`null`}},
		{"gpu", `1`, []string{`null`}},
		{"region", `"earth"`, []string{`"local"`, `null`}},
		{"cpu_arch", `"arm64"`, []string{`"amd64"`, `null`}},
	}
	c := &control{created: true, runners: []skerry.Runner{{Arch: "amd64", Online: true}, {Arch: "arm64"}}}
	h := newHandler(t, c)
	for _, tt := range tests {
		t.Run(tt.field, func(t *testing.T) {
			w := do(t, h, "POST", "/v2/sandboxes", fmt.Sprintf(`{%q:%s}`, tt.field, tt.value))
			wantProblem(t, w, skerry.CodeUnsupported, tt.field, "unsupported")
			for _, value := range tt.harmless {
				if w := do(t, h, "POST", "/v2/sandboxes", fmt.Sprintf(`{%q:%s}`, tt.field, value)); w.Code != http.StatusCreated {
					t.Errorf("%s=%s: %d %s", tt.field, value, w.Code, w.Body)
				}
			}
		})
	}
}

func TestCreateDefaults(t *testing.T) {
	c := &control{created: true, sandbox: skerry.Sandbox{ID: "sbx_x"}}
	w := do(t, newHandler(t, c), "POST", "/v2/sandboxes", `{}`)
	if w.Code != http.StatusCreated {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if !strings.HasPrefix(c.create.Name, "sandbox-") || c.create.NamedByCaller {
		t.Errorf("name = %q, by caller %v", c.create.Name, c.create.NamedByCaller)
	}
	want := skerry.SandboxRequest{
		Name: c.create.Name, Labels: map[string]string{"name": c.create.Name},
		Resources:     skerry.Resources{Mode: skerry.Burstable, CPU: 0.5, MemoryMiB: 1024, DiskMiB: 512, MemoryMaxMiB: 32768},
		CreateTimeout: time.Hour,
	}
	if d := cmp.Diff(want, c.create); d != "" {
		t.Error(d)
	}
	if c.timeout != 3*time.Second || len(c.until) != 1 || c.until[0] != skerry.StatusRunning {
		t.Errorf("waited %v for %v", c.timeout, c.until)
	}
}

func TestCreateGiven(t *testing.T) {
	c := &control{sandbox: skerry.Sandbox{ID: "sbx_x"}}
	w := do(t, newHandler(t, c), "POST", "/v2/sandboxes", `{"image":"docker.io/library/alpine:3.20","name":"my-sandbox",
		"labels":{"team":"research"},"user":"app","env":{"A":"line1\nline2\n","E":""},"idempotency_key":"run-42",
		"resources":{"cpu":2,"memory":4,"disk":20},"mode":"dedicated","create_timeout_seconds":-1,"wait_seconds":0}`)
	if w.Code != http.StatusOK { // the key already had one
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	want := skerry.SandboxRequest{
		Image: "docker.io/library/alpine:3.20", Name: "my-sandbox", NamedByCaller: true,
		Labels: map[string]string{"team": "research", "name": "my-sandbox"}, User: "app",
		Env: map[string]string{"A": "line1\nline2\n", "E": ""}, IdempotencyKey: "run-42",
		Resources:     skerry.Resources{Mode: skerry.Dedicated, CPU: 2, MemoryMiB: 4096, DiskMiB: 20480, CPUMax: 2, MemoryMaxMiB: 4096, DiskMaxMiB: 20480},
		CreateTimeout: 24 * time.Hour,
	}
	if d := cmp.Diff(want, c.create); d != "" {
		t.Error(d)
	}
	if c.until != nil {
		t.Error("wait_seconds 0 waited")
	}
}

// TestCreatePolicy is the section "Timeouts" of the "Linux Sandboxes" page, as a
// create of a server with a maximum of two hours.
func TestCreatePolicy(t *testing.T) {
	type policy = skerry.LifecyclePolicy
	tests := []struct {
		body             string
		persistent, spot bool
		want             policy
	}{
		{`{"persistent":false,"spot":false,"lifecycle_policy":{}}`, false, false, policy{}},
		{`{"persistent":null,"spot":null,"lifecycle_policy":null}`, false, false, policy{}},
		{`{"spot":true,"lifecycle_policy":{"timeout_seconds":7200,"on_timeout":"delete"}}`, false, true, policy{TimeoutSeconds: 7200, OnTimeout: "delete"}},
		{`{"lifecycle_policy":{"timeout_seconds":1}}`, false, false, policy{TimeoutSeconds: 1, OnTimeout: "delete"}},
		{`{"lifecycle_policy":{"idle_expiry_seconds":3,"on_idle_timeout":"delete"}}`, false, false, policy{IdleExpirySeconds: 60, OnIdleTimeout: "delete"}},
		{`{"persistent":true,"lifecycle_policy":{"timeout_seconds":60,"on_timeout":"pause","idle_expiry_seconds":600,"on_idle_timeout":"stop"}}`, true, false, policy{TimeoutSeconds: 60, OnTimeout: "pause", IdleExpirySeconds: 600, OnIdleTimeout: "stop"}},
	}
	for _, tt := range tests {
		c := &control{created: true}
		if w := do(t, newHandler(t, c), "POST", "/v2/sandboxes", tt.body); w.Code != http.StatusCreated {
			t.Errorf("%s: %d %s", tt.body, w.Code, w.Body)
		}
		if c.create.Persistent != tt.persistent || c.create.Spot != tt.spot || c.create.Policy != tt.want {
			t.Errorf("%s: persistent %v, spot %v, policy %+v", tt.body, c.create.Persistent, c.create.Spot, c.create.Policy)
		}
	}
}

func TestCreateSeveralFaultsAtOnce(t *testing.T) {
	w := do(t, newHandler(t, &control{}), "POST", "/v2/sandboxes", `{"imagee":"x","env":{"A":5}}`)
	if p := wantProblem(t, w, skerry.CodeInvalid, "", ""); len(p.Errors) != 2 {
		t.Errorf("errors = %+v, want both", p.Errors)
	}
}

func TestBodies(t *testing.T) {
	h := newHandler(t, &control{})
	wantProblem(t, do(t, h, "POST", "/v2/sandboxes", `{"image":`), skerry.CodeInvalid, "", "")
	wantProblem(t, do(t, h, "POST", "/v2/sandboxes", ``), skerry.CodeInvalid, "", "")
	wantProblem(t, do(t, h, "POST", "/v2/sandboxes", `[]`), skerry.CodeInvalid, "", "")
	wantProblem(t, do(t, h, "POST", "/v2/sandboxes", `{"image":"`+strings.Repeat("x", 9<<20)+`"}`), skerry.CodeTooLarge, "", "")
}
