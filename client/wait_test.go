package client

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"skerry.dev/skerry"
)

// sandboxes answers with one sandbox after the other, the last for ever.
func sandboxes(t *testing.T, list ...skerry.Sandbox) *Client {
	n := 0
	return newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(list[min(n, len(list)-1)])
		n++
	})
}

func has(status skerry.Status, change ...func(*skerry.Sandbox)) skerry.Sandbox {
	sb := skerry.Sandbox{ID: "sbx_x", Status: status, Persistent: true}
	for _, c := range change {
		c(&sb)
	}
	return sb
}

func ephemeral(sb *skerry.Sandbox) { sb.Persistent = false }
func busy(sb *skerry.Sandbox)      { sb.Operation = skerry.Start }

// TestWaitSandbox is the section "Wait for state" of the "Linux Sandboxes" page.
func TestWaitSandbox(t *testing.T) {
	type statuses = []skerry.Status
	tests := []struct {
		name     string
		until    statuses
		answers  []skerry.Sandbox
		terminal bool
	}{
		{"is there", statuses{"running"}, []skerry.Sandbox{has("running")}, false},
		{"comes", statuses{"running"}, []skerry.Sandbox{has("booting"), has("booting"), has("running")}, false},
		{"one of two", statuses{"booting", "running"}, []skerry.Sandbox{has("pending"), has("booting")}, false},
		{"failed", statuses{"running"}, []skerry.Sandbox{has("booting"), has("failed")}, true},
		{"lost, though it may come back", statuses{"running"}, []skerry.Sandbox{has("lost")}, true},
		{"deleting", statuses{"running"}, []skerry.Sandbox{has("deleting")}, true},
		{"deleted", statuses{"running"}, []skerry.Sandbox{has("deleted")}, true},
		{"teardown", statuses{"deleted"}, []skerry.Sandbox{has("deleting"), has("deleted")}, false},
		{"failed before a teardown", statuses{"deleted"}, []skerry.Sandbox{has("failed")}, true},
		{"failed is waited for", statuses{"failed"}, []skerry.Sandbox{has("failed")}, false},
		{"ephemeral ones never stop", statuses{"stopped"}, []skerry.Sandbox{has("running", ephemeral)}, true},
		{"persistent ones may", statuses{"stopped"}, []skerry.Sandbox{has("running"), has("stopped")}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sb, err := sandboxes(t, tt.answers...).WaitSandbox(t.Context(), "x", 0, tt.until...)
			last := tt.answers[len(tt.answers)-1].Status
			var terminal *SandboxTerminalStateError
			if errors.As(err, &terminal) != tt.terminal || !tt.terminal && err != nil || sb.Status != last {
				t.Fatalf("%s, %v", sb.Status, err)
			}
			if tt.terminal && (skerry.CodeOf(err) != skerry.CodeConflict || terminal.Sandbox.Status != last) {
				t.Errorf("%s: %+v", skerry.CodeOf(err), terminal)
			}
		})
	}
}

func TestWaitTimeout(t *testing.T) {
	c := sandboxes(t, has("booting"))
	_, err := c.WaitSandbox(t.Context(), "x", 10*time.Millisecond, skerry.StatusRunning)
	var timeout *RequestTimeoutError
	if !errors.As(err, &timeout) || skerry.CodeOf(err) != skerry.CodeTimeout || err.Error() != "sandbox sbx_x is still booting after 10ms" {
		t.Errorf("got %v", err)
	}
}

func TestWaitOperation(t *testing.T) {
	tests := []struct {
		name    string
		answers []skerry.Sandbox
		code    skerry.Code
	}{
		{"not begun yet", []skerry.Sandbox{has("stopped", busy), has("booting", busy), has("running")}, ""},
		{"ends where it began", []skerry.Sandbox{has("booting", busy), has("stopped", func(sb *skerry.Sandbox) { sb.Reason = "no memory" })}, skerry.CodeUnavailable},
		{"fails", []skerry.Sandbox{has("booting", busy), has("failed")}, skerry.CodeConflict},
		{"is deleted meanwhile", []skerry.Sandbox{has("booting", busy), has("deleting")}, skerry.CodeConflict},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sb, err := sandboxes(t, tt.answers...).WaitOperation(t.Context(), "x", 0, skerry.StatusRunning)
			if got := skerry.CodeOf(err); got != tt.code || sb.Status != tt.answers[len(tt.answers)-1].Status {
				t.Errorf("%s, %v, want code %q", sb.Status, err, tt.code)
			}
		})
	}
}

func TestWaitPush(t *testing.T) {
	for end, code := range map[skerry.ImageStatus]skerry.Code{skerry.ImageReady: "", skerry.ImageFailed: skerry.CodeConflict} {
		n := 0
		c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
			push := skerry.PushProgress{Status: skerry.ImageBuilding, DoneBytes: int64(n), TotalBytes: 2}
			if n == 2 {
				push.Status = end
			}
			n++
			json.NewEncoder(w).Encode(skerry.Image{ID: "img_x", Push: &push})
		})
		var seen []int64
		_, err := c.WaitPush(t.Context(), "x", 0, func(img skerry.Image) { seen = append(seen, img.Push.DoneBytes) })
		if skerry.CodeOf(err) != code || len(seen) != 3 || seen[2] != 2 {
			t.Errorf("%s: %v, progress %v", end, err, seen)
		}
	}
}
