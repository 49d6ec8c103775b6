package skerry

import (
	"strings"
	"time"
)

// Snapshot is the saved memory and disk of a sandbox, from which new sandboxes
// resume ("Linux Sandboxes" page, memory snapshot).
type Snapshot struct {
	ID     SnapshotID  `json:"id"`
	Name   string      `json:"name"`
	Status ImageStatus `json:"status" enum:"pending,building,ready,failed"`
	Error  string      `json:"error,omitempty"`

	Source     SandboxID `json:"source_sandbox_id" doc:"The sandbox it was captured from, which may be gone."`
	Image      string    `json:"image"`
	ImageID    ImageID   `json:"image_id"`
	User       string    `json:"user"`
	Resources  Resources `json:"resources" doc:"What every restored sandbox gets."`
	Persistent bool      `json:"persistent" doc:"Whether restored sandboxes are persistent unless they ask otherwise."`
	Runner     RunnerID  `json:"runner_id"`

	// MemoryBytes is what is stored beyond the image's template, DiskBytes
	// the allocated blocks of the writable disk.
	MemoryBytes int64 `json:"memory_bytes,omitempty" doc:"Stored memory: pages that differ from the image's template."`
	DiskBytes   int64 `json:"disk_bytes,omitempty"`
	// PauseMillis is how long the source stood still.
	PauseMillis int64 `json:"pause_millis,omitempty"`

	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// ValidateSnapshotName checks the name of a memory snapshot: 1 to 128
// characters of letters, digits, '.', '_' and '-', not starting with '.' or a
// reserved prefix ("Linux Sandboxes" page, memory snapshot, parameter "name").
func ValidateSnapshotName(name string) error {
	if name == "" {
		return Invalid("name", "required", "1 to 128 characters", "is required")
	}
	if len(name) > MaxNameLength {
		return Invalid("name", "length", "1 to 128 characters", "must be 1 to %d characters, is %d", MaxNameLength, len(name))
	}
	if name[0] == '.' || strings.Trim(name, nameCharacters) != "" {
		return Invalid("name", "pattern", "letters, digits and . _ -", "may only hold letters, digits and . _ -, and cannot start with a dot")
	}
	for _, p := range reservedPrefixes {
		if strings.HasPrefix(name, p) {
			return Invalid("name", "reserved_prefix", p, "cannot start with the reserved prefix %q", p)
		}
	}
	return nil
}
