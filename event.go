package skerry

import (
	"encoding/json"
	"time"
)

// EventType is the kind of an Event.
type EventType string

// The kinds of events. Object is then a Sandbox, an Image or a Snapshot as it
// was after the change.
const (
	EventSandboxStatus    EventType = "sandbox.status"    // a change of status; each step of it
	EventSandboxLifecycle EventType = "sandbox.lifecycle" // a change of the policy, or a timer that fired
	EventImageStatus      EventType = "image.status"
	EventSnapshotStatus   EventType = "snapshot.status"
)

// Event is one change of an object, as GET /v2/events streams it. IDs grow, so
// that a reader can resume after the last one it has seen.
type Event struct {
	ID       int64           `json:"id"`
	Type     EventType       `json:"type"`
	Time     time.Time       `json:"time"`
	ObjectID string          `json:"object_id"`
	Status   string          `json:"status"`
	Object   json.RawMessage `json:"object"`
}

// EventFilter selects events; zero fields select all.
type EventFilter struct {
	After    int64  // only those with a larger id
	ObjectID string // only of this object
	Limit    int    // at most so many; 0 is DefaultPageSize
}
