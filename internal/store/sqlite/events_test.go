package sqlite

import (
	"path/filepath"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

func TestLastEventID(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "x.db"))
	for want := range int64(3) {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			got, err := tx.LastEventID(t.Context())
			if err != nil || got != want {
				t.Errorf("after %d events: %d, %v", want, got, err)
			}
			return tx.AddEvent(t.Context(), skerry.Event{Type: skerry.EventSandboxStatus, ObjectID: "sbx_x", Object: []byte("{}")})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
