package app

import (
	"errors"
	"testing"

	"skerry.dev/skerry"
)

func TestPolicyFlags(t *testing.T) {
	tests := []struct {
		in   skerry.PolicyDefaults
		flag string // that is refused
	}{
		{skerry.PolicyDefaults{}, ""},
		{skerry.PolicyDefaults{OnTimeout: "delete", OnIdleTimeout: "delete", MaxTimeoutSeconds: 86400}, ""}, // of a server without flags
		{skerry.PolicyDefaults{TimeoutSeconds: 86400, OnTimeout: "stop", IdleExpirySeconds: 60, OnIdleTimeout: "pause", PlatformTimeout: true}, ""},
		{skerry.PolicyDefaults{MaxTimeoutSeconds: 1 << 30, TimeoutSeconds: 1 << 30}, ""},
		{skerry.PolicyDefaults{MaxTimeoutSeconds: -1}, "--max-timeout-seconds"},
		{skerry.PolicyDefaults{TimeoutSeconds: -1}, "--default-timeout-seconds"},
		{skerry.PolicyDefaults{TimeoutSeconds: 86401}, "--default-timeout-seconds"},
		{skerry.PolicyDefaults{MaxTimeoutSeconds: 100, TimeoutSeconds: 101}, "--default-timeout-seconds"},
		{skerry.PolicyDefaults{MaxTimeoutSeconds: 299, PlatformTimeout: true}, "--platform-timeout"},
		{skerry.PolicyDefaults{IdleExpirySeconds: 59}, "--default-idle-seconds"},
		{skerry.PolicyDefaults{IdleExpirySeconds: -1}, "--default-idle-seconds"},
		{skerry.PolicyDefaults{IdleExpirySeconds: skerry.MaxIdleSeconds + 1}, "--default-idle-seconds"},
		{skerry.PolicyDefaults{OnTimeout: "explode"}, "--default-timeout-action"},
		{skerry.PolicyDefaults{OnIdleTimeout: "explode"}, "--default-idle-action"},
	}
	for _, tt := range tests {
		err := validatePolicy(tt.in)
		var e *skerry.Error
		if tt.flag == "" {
			for _, persistent := range []bool{false, true} {
				if _, resolveErr := (skerry.PolicyRequest{}).Resolve(tt.in, persistent); err != nil || resolveErr != nil {
					t.Errorf("%+v: %v, a create (persistent %v) says %v", tt.in, err, persistent, resolveErr)
				}
			}
		} else if !errors.As(err, &e) || e.Field != tt.flag {
			t.Errorf("%+v: %v, want a refusal of %s", tt.in, err, tt.flag)
		}
	}
}
