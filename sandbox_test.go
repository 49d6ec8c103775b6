package skerry_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
)

// wantRule fails unless err breaks the rule; "" wants no error.
func wantRule(t *testing.T, what string, err error, rule string) {
	t.Helper()
	if rule == "" {
		if err != nil {
			t.Errorf("%.60q: %v, want no error", what, err)
		}
		return
	}
	var e *skerry.Error
	if !errors.As(err, &e) || e.Code != skerry.CodeInvalid || e.Rule != rule || e.Field == "" {
		t.Errorf("%.60q: got %+v, want rule %s", what, err, rule)
	}
}

func TestValidateSandboxName(t *testing.T) {
	for name, rule := range map[string]string{
		"a": "", "my-sandbox": "", "_x.y-Z9": "", strings.Repeat("a", 128): "", "snap_x": "",
		"": "length", strings.Repeat("a", 129): "length", ".a": "pattern", "-a": "pattern", "a b": "pattern", "a/b": "pattern",
		"ä": "pattern", "a\n": "pattern", "sbx_a": "reserved_prefix",
	} {
		wantRule(t, name, skerry.ValidateSandboxName(name), rule)
	}
}

func TestValidateImageName(t *testing.T) {
	for name, rule := range map[string]string{
		"debian": "", "docker.io/library/alpine:3.20": "", "localhost:5000/a@sha256:0f": "", "refer": "",
		"": "length", strings.Repeat("a", 256): "length", ".a": "pattern", "a b": "pattern", "a\x00": "pattern",
		"sbx_a": "reserved_prefix", "vol_a": "reserved_prefix", "fn_a": "reserved_prefix", "img_a": "reserved_prefix", "snap_a": "reserved_prefix",
		"snap-a": "reserved_prefix", "build-a": "reserved_prefix", "refs": "reserved_prefix", "by-digest": "reserved_prefix",
		"prj-a": "reserved_prefix", "glb-a": "reserved_prefix",
	} {
		wantRule(t, name, skerry.ValidateImageName("name", name), rule)
	}
}

func TestValidateLabels(t *testing.T) {
	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprint(i)] = ""
	}
	tests := []struct {
		labels map[string]string
		rule   string
	}{
		{nil, ""}, {map[string]string{"team": "research", "ü": "ö", "a/b": ""}, ""}, {map[string]string{"a": strings.Repeat("x", 1024)}, ""},
		{many, "max_items"}, {map[string]string{"": "x"}, "key"}, {map[string]string{"a=b": "x"}, "key"}, {map[string]string{"a,b": "x"}, "key"},
		{map[string]string{"a\nb": "x"}, "key"}, {map[string]string{"\xff": "x"}, "key"}, {map[string]string{strings.Repeat("k", 129): ""}, "key"},
		{map[string]string{"a": strings.Repeat("x", 1025)}, "value_length"}, {map[string]string{"a": "\xff"}, "value_length"},
	}
	for _, tt := range tests {
		wantRule(t, fmt.Sprint(tt.labels), skerry.ValidateLabels(tt.labels), tt.rule)
	}
}

func TestValidateEnv(t *testing.T) {
	big := map[string]string{}
	for i := range 10 {
		big[fmt.Sprintf("V%d", i)] = strings.Repeat("x", 120<<10)
	}
	tests := []struct {
		env  map[string]string
		rule string
	}{
		{nil, ""},
		{map[string]string{"A": "line1\nline2\n", "B": "x y  z", "C": "a=b=c", "D": "$(touch /tmp/pwn)`\"", "_e": "", "F": strings.Repeat("x", 100<<10)}, ""},
		{map[string]string{"X;touch /tmp/pwn": ""}, "name_pattern"}, {map[string]string{"": ""}, "name_pattern"}, {map[string]string{"9A": ""}, "name_pattern"},
		{map[string]string{"A\n": ""}, "name_pattern"}, {map[string]string{"A=B": ""}, "name_pattern"},
		{map[string]string{"A": "a\x00b"}, "no_nul"}, {map[string]string{"A": strings.Repeat("x", 128<<10)}, "max_bytes"}, {big, "max_total_bytes"},
	}
	for _, tt := range tests {
		wantRule(t, fmt.Sprint(tt.env), skerry.ValidateEnv("env", tt.env), tt.rule)
	}
}

func TestValidateUser(t *testing.T) {
	for user, rule := range map[string]string{
		"root": "", "1000": "", "www-data": "", "machine$": "", "_apt": "",
		"": "pattern", "a b": "pattern", "-x": "pattern", "a:b": "pattern", "a\n": "pattern", strings.Repeat("a", 65): "pattern",
	} {
		wantRule(t, user, skerry.ValidateUser(user), rule)
	}
}

func TestResolveCreateTimeout(t *testing.T) {
	n := func(v int) *int { return &v }
	tests := []struct {
		seconds *int
		want    time.Duration
		rule    string
	}{
		{nil, time.Hour, ""}, {n(-1), 24 * time.Hour, ""}, {n(1), time.Second, ""}, {n(86400), 24 * time.Hour, ""},
		{n(0), 0, "range"}, {n(-2), 0, "range"}, {n(86401), 0, "range"},
	}
	for _, tt := range tests {
		got, err := skerry.ResolveCreateTimeout(tt.seconds)
		wantRule(t, "create_timeout_seconds", err, tt.rule)
		if got != tt.want {
			t.Errorf("got %v, want %v", got, tt.want)
		}
	}
}

func TestResolveWait(t *testing.T) {
	n := func(v int) *int { return &v }
	tests := []struct {
		seconds *int
		want    time.Duration
		rule    string
	}{
		{nil, 3 * time.Second, ""}, {n(0), 0, ""}, {n(2), 2 * time.Second, ""}, {n(120), 3 * time.Second, ""},
		{n(1 << 62), 3 * time.Second, ""}, {n(-1), 0, "min"},
	}
	for _, tt := range tests {
		got, err := skerry.ResolveWait(tt.seconds)
		wantRule(t, "wait_seconds", err, tt.rule)
		if got != tt.want {
			t.Errorf("got %v, want %v", got, tt.want)
		}
	}
}

func TestDefaultUser(t *testing.T) {
	for user, want := range map[string]string{"": "root", "root": "root", "0": "root", "1000": "root", "1000:1000": "root", "app": "app", "app:staff": "app", ":staff": "root"} {
		if got := (skerry.ImageConfig{User: user}).DefaultUser(); got != want {
			t.Errorf("USER %q gives %q, want %q", user, got, want)
		}
	}
}
