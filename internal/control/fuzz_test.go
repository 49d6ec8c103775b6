package control

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/store"
)

// FuzzEvent: whatever a runner says, the event is done with (an error would have
// it come again for ever, before all others), statuses stay in the table, and
// what is queued for runners can be published.
func FuzzEvent(f *testing.F) {
	w := newWorld(f)
	s := w.put("a", skerry.StatusBooting)
	// A persistent one in the midst of an operation.
	q := w.putPersistent("q", skerry.StatusRunning)
	if _, err := w.ForkSandbox(f.Context(), "q", skerry.ForkRequest{}); err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		`{}`, `null`,
		`{"kind":"sandbox","runner_id":"run_a","sandbox_id":"SBX","machine_id":"MCH","status":"running","user":"x","unenforced":["a"]}`,
		`{"kind":"sandbox","runner_id":"run_a","sandbox_id":"SBX","machine_id":"MCH","status":"deleted"}`,
		`{"kind":"image","runner_id":"run_a","image":{"image_id":"img_aaaaaaaaaaaaaaaaaaaa","status":"ready","config":{"env":["\u0000"]}}}`,
		`{"kind":"image","runner_id":"run_a","image":{"image_id":"a.b > *"}}`,
		`{"kind":"report","runner_id":"run_a","report":{"runner":{"id":"run_a"},"epoch":2,"machines":[{"sandbox_id":"SBX","machine_id":"MCH","status":"lost"},{"sandbox_id":"x y","machine_id":">"}],"images":[{"image_id":""}]}}`,
		`{"kind":"operation","runner_id":"run_a","sandbox_id":"SBP","machine_id":"MCP","operation":"fork","reason":"x"}`,
		`{"kind":"activity","runner_id":"run_a","sandbox_id":"SBX","machine_id":"MCH","busy":true,"last_active":"9999-01-01T00:00:00Z"}`,
		`{"kind":"snapshot","runner_id":"run_a","snapshot":{"snapshot_id":"a.b > *","status":"ready"}}`,
		`{"kind":"snapshot","runner_id":"run_a","snapshot":{"snapshot_id":"snap_aaaaaaaaaaaaaaaaaaaa","status":"ready"}}`,
		`{"kind":"image","runner_id":"run_a","image":{"image_id":"img_aaaaaaaaaaaaaaaaaaaa","push":{"status":"ready"}}}`,
		`{"kind":"sandbox","runner_id":"run_a","sandbox_id":"SBP","machine_id":"a.>","status":"running"}`,
		`{"kind":"report","runner_id":"run_a","report":{"runner":{"id":"run_a"},"epoch":2,"machines":[{"sandbox_id":"SBP","machine_id":"mch_aaaaaaaaaaaaaaaaaaaa","status":"stopped"},{"sandbox_id":"SBP","machine_id":"MCP","status":"paused"}],"snapshots":[{"snapshot_id":">"}]}}`,
		`{"kind":"report","runner_id":"run_a","report":{"runner":{"id":"run_a"},"epoch":-9223372036854775808}}`,
	} {
		f.Add(strings.NewReplacer("SBX", string(s.ID), "MCH", string(s.Machine), "SBP", string(q.ID), "MCP", string(q.Machine)).Replace(seed))
	}
	f.Fuzz(func(t *testing.T, text string) {
		var e bus.Event
		if json.Unmarshal([]byte(text), &e) != nil {
			return
		}
		if err := w.event(t.Context(), e); err != nil {
			t.Errorf("event %s: %v", text, err)
		}
		err := w.db.Update(t.Context(), func(tx store.Tx) error {
			return checkStored(t.Context(), tx)
		})
		if err != nil {
			t.Errorf("after event %s: %v", text, err)
		}
	})
}

// checkStored checks what the store holds, and empties the outbox.
func checkStored(ctx context.Context, tx store.Tx) error {
	page, err := tx.Sandboxes(ctx, skerry.SandboxFilter{Deleted: true})
	if err != nil {
		return err
	}
	for _, s := range page.Items {
		if !s.Status.Valid() {
			return fmt.Errorf("status %q", s.Status)
		}
	}
	entries, err := tx.Outbox(ctx, 1000)
	if err != nil {
		return err
	}
	for _, e := range entries {
		var c bus.Command
		if err := json.Unmarshal(e.Payload, &c); err != nil {
			return err
		}
		if strings.ContainsAny(string(e.Runner)+string(c.MachineID)+string(c.SandboxID)+string(c.ImageID)+string(c.SnapshotID), ".*> \t\r\n") {
			return fmt.Errorf("command %s cannot be a subject", e.Payload)
		}
		if err := tx.DeleteOutbox(ctx, e.ID); err != nil {
			return err
		}
	}
	return nil
}
