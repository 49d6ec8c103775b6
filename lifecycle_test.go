package skerry_test

import (
	"errors"
	"testing"

	"skerry.dev/skerry"
)

func ptr[T any](v T) *T { return &v }

// TestPolicyOfACreate is the section "Timeouts" of the "Linux Sandboxes" page.
func TestPolicyOfACreate(t *testing.T) {
	type policy = skerry.LifecyclePolicy
	project := skerry.PolicyDefaults{TimeoutSeconds: 900, IdleExpirySeconds: 120, MaxTimeoutSeconds: 7200}
	tests := []struct {
		name       string
		in         skerry.PolicyRequest
		defaults   skerry.PolicyDefaults
		persistent bool
		want       policy
		field      string // of the refusal
	}{
		{"nothing", skerry.PolicyRequest{}, skerry.PolicyDefaults{}, false, policy{}, ""},
		{"platform default", skerry.PolicyRequest{}, skerry.PolicyDefaults{PlatformTimeout: true}, false, policy{TimeoutSeconds: 300, OnTimeout: "delete"}, ""},
		{"project before platform", skerry.PolicyRequest{}, skerry.PolicyDefaults{PlatformTimeout: true, TimeoutSeconds: 900}, false, policy{TimeoutSeconds: 900, OnTimeout: "delete"}, ""},
		{"project's timers", skerry.PolicyRequest{}, project, false, policy{900, "delete", 120, "delete"}, ""},
		{"default action of a persistent", skerry.PolicyRequest{}, skerry.PolicyDefaults{TimeoutSeconds: 900, OnTimeout: "stop", IdleExpirySeconds: 120, OnIdleTimeout: "pause"}, true, policy{900, "stop", 120, "pause"}, ""},
		{"default action of an ephemeral", skerry.PolicyRequest{}, skerry.PolicyDefaults{TimeoutSeconds: 900, OnTimeout: "stop", IdleExpirySeconds: 120, OnIdleTimeout: "pause"}, false, policy{900, "delete", 120, "delete"}, ""},
		{"default actions without intervals", skerry.PolicyRequest{}, skerry.PolicyDefaults{OnTimeout: "stop", OnIdleTimeout: "delete"}, true, policy{}, ""},
		{"own intervals, not the default's actions", skerry.PolicyRequest{TimeoutSeconds: ptr(60)}, skerry.PolicyDefaults{TimeoutSeconds: 900, OnTimeout: "stop"}, true, policy{TimeoutSeconds: 60, OnTimeout: "delete"}, ""},
		{"own action of the default's interval", skerry.PolicyRequest{OnTimeout: ptr(skerry.ActionPause)}, skerry.PolicyDefaults{TimeoutSeconds: 900, OnTimeout: "stop"}, true, policy{TimeoutSeconds: 900, OnTimeout: "pause"}, ""},
		{"action defaults to delete", skerry.PolicyRequest{TimeoutSeconds: ptr(7200)}, skerry.PolicyDefaults{}, false, policy{TimeoutSeconds: 7200, OnTimeout: "delete"}, ""},
		{"largest", skerry.PolicyRequest{TimeoutSeconds: ptr(86400)}, skerry.PolicyDefaults{}, false, policy{TimeoutSeconds: 86400, OnTimeout: "delete"}, ""},
		{"beyond the maximum", skerry.PolicyRequest{TimeoutSeconds: ptr(86401)}, skerry.PolicyDefaults{}, false, policy{}, "lifecycle_policy.timeout_seconds"},
		{"beyond the server's maximum", skerry.PolicyRequest{TimeoutSeconds: ptr(7201)}, project, false, policy{}, "lifecycle_policy.timeout_seconds"},
		{"zero timeout", skerry.PolicyRequest{TimeoutSeconds: ptr(0)}, skerry.PolicyDefaults{}, false, policy{}, "lifecycle_policy.timeout_seconds"},
		{"negative timeout", skerry.PolicyRequest{TimeoutSeconds: ptr(-1)}, skerry.PolicyDefaults{}, false, policy{}, "lifecycle_policy.timeout_seconds"},
		{"action without timeout", skerry.PolicyRequest{OnTimeout: ptr(skerry.ActionDelete)}, skerry.PolicyDefaults{}, false, policy{}, "lifecycle_policy.on_timeout"},
		{"idle", skerry.PolicyRequest{IdleExpirySeconds: ptr(3600), OnIdleTimeout: ptr(skerry.ActionDelete)}, skerry.PolicyDefaults{}, false, policy{IdleExpirySeconds: 3600, OnIdleTimeout: "delete"}, ""},
		{"idle is raised", skerry.PolicyRequest{IdleExpirySeconds: ptr(1), OnIdleTimeout: ptr(skerry.ActionDelete)}, skerry.PolicyDefaults{}, false, policy{IdleExpirySeconds: 60, OnIdleTimeout: "delete"}, ""},
		{"idle without action", skerry.PolicyRequest{IdleExpirySeconds: ptr(3600)}, project, false, policy{}, "lifecycle_policy.on_idle_timeout"},
		{"idle action alone", skerry.PolicyRequest{OnIdleTimeout: ptr(skerry.ActionDelete)}, skerry.PolicyDefaults{}, false, policy{}, "lifecycle_policy.on_idle_timeout"},
		{"idle cleared", skerry.PolicyRequest{IdleExpirySeconds: ptr(0)}, project, false, policy{TimeoutSeconds: 900, OnTimeout: "delete"}, ""},
		{"negative idle", skerry.PolicyRequest{IdleExpirySeconds: ptr(-1)}, skerry.PolicyDefaults{}, false, policy{}, "lifecycle_policy.idle_expiry_seconds"},
		{"pause of an ephemeral", skerry.PolicyRequest{TimeoutSeconds: ptr(60), OnTimeout: ptr(skerry.ActionPause)}, skerry.PolicyDefaults{}, false, policy{}, "lifecycle_policy.on_timeout"},
		{"stop of an ephemeral", skerry.PolicyRequest{IdleExpirySeconds: ptr(60), OnIdleTimeout: ptr(skerry.ActionStop)}, skerry.PolicyDefaults{}, false, policy{}, "lifecycle_policy.on_idle_timeout"},
		{"pause of a persistent", skerry.PolicyRequest{TimeoutSeconds: ptr(60), OnTimeout: ptr(skerry.ActionPause)}, skerry.PolicyDefaults{}, true, policy{TimeoutSeconds: 60, OnTimeout: "pause"}, ""},
		{"no such action", skerry.PolicyRequest{TimeoutSeconds: ptr(60), OnTimeout: ptr(skerry.TimerAction("explode"))}, skerry.PolicyDefaults{}, true, policy{}, "lifecycle_policy.on_timeout"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.in.Resolve(tt.defaults, tt.persistent)
			checkPolicy(t, got, err, tt.want, tt.field)
		})
	}
}

// TestPolicyUpdate is the section "Update lifecycle policy".
func TestPolicyUpdate(t *testing.T) {
	type policy = skerry.LifecyclePolicy
	both := policy{900, "delete", 120, "delete"}
	tests := []struct {
		name  string
		have  policy
		in    skerry.PolicyRequest
		want  policy
		field string
	}{
		{"nothing", both, skerry.PolicyRequest{}, both, ""},
		{"only the timeout", both, skerry.PolicyRequest{TimeoutSeconds: ptr(3600)}, policy{3600, "delete", 120, "delete"}, ""},
		{"only the idle timeout", both, skerry.PolicyRequest{IdleExpirySeconds: ptr(1800)}, policy{900, "delete", 1800, "delete"}, ""},
		{"idle is cleared", both, skerry.PolicyRequest{IdleExpirySeconds: ptr(0)}, policy{900, "delete", 0, ""}, ""},
		{"timeout cannot be cleared", both, skerry.PolicyRequest{TimeoutSeconds: ptr(0)}, policy{}, "lifecycle_policy.timeout_seconds"},
		{"new idle timeout without action", policy{}, skerry.PolicyRequest{IdleExpirySeconds: ptr(1800)}, policy{}, "lifecycle_policy.on_idle_timeout"},
		{"action keeps the interval", both, skerry.PolicyRequest{OnIdleTimeout: ptr(skerry.ActionPause)}, policy{900, "delete", 120, "pause"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.in.Update(tt.have, skerry.PolicyDefaults{}, true)
			checkPolicy(t, got, err, tt.want, tt.field)
		})
	}
}

func checkPolicy(t *testing.T, got skerry.LifecyclePolicy, err error, want skerry.LifecyclePolicy, field string) {
	t.Helper()
	if field == "" {
		if err != nil || got != want {
			t.Errorf("= %+v, %v, want %+v", got, err, want)
		}
		return
	}
	var e *skerry.Error
	if !errors.As(err, &e) || e.Code != skerry.CodeInvalid || e.Field != field {
		t.Errorf("error %v, want an invalid %s", err, field)
	}
}
