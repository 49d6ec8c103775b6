package skerry

import "time"

// ImageStatus is the state of an image.
type ImageStatus string

// The image statuses.
const (
	ImagePending  ImageStatus = "pending"
	ImageBuilding ImageStatus = "building"
	ImageReady    ImageStatus = "ready"
	ImageFailed   ImageStatus = "failed"
)

// DefaultImageName is what the image that is built from Debian packages is
// registered as.
const DefaultImageName = "skerry/debian:12"

// Image is a registered file system that sandboxes start from. A create never
// pulls: only registered images boot.
type Image struct {
	ID         ImageID       `json:"id"`
	Name       string        `json:"name"`
	Status     ImageStatus   `json:"status"`
	Error      string        `json:"error,omitempty"`
	Source     string        `json:"source" doc:"Registry reference, or the kind of archive it was imported from."`
	Digest     string        `json:"digest,omitempty" doc:"Digest of the image's manifest for its platform."`
	Platform   string        `json:"platform,omitempty"`
	Default    bool          `json:"default"`
	Bytes      int64         `json:"bytes" doc:"Size of the layers as stored, shared ones included."`
	LayerCount int           `json:"layer_count"`
	Config     ImageConfig   `json:"config"`
	Progress   *PullProgress `json:"progress,omitempty"`
	// Anonymous images are captures without a name; ExpiresAt is when one is
	// deleted unless a sandbox is created from it before.
	Anonymous         bool       `json:"anonymous"`
	IdleExpirySeconds int        `json:"idle_expiry_seconds,omitempty"`
	ExpiresAt         *time.Time `json:"expires_at,omitempty"`
	SourceSandbox     SandboxID  `json:"source_sandbox_id,omitempty" doc:"The sandbox a capture was made of, which may be gone."`
	// Push is the last upload to a registry, or nil.
	Push      *PushProgress `json:"push,omitempty"`
	CreatedAt time.Time     `json:"created_at"`
	UpdatedAt time.Time     `json:"updated_at"`
}

// MaxImageIdleSeconds is the longest, and the default, idle window of an
// anonymous image: 7 days.
const MaxImageIdleSeconds = 7 * 86400

// PushProgress is how far the upload of an image to a registry has come.
type PushProgress struct {
	Reference  string      `json:"reference"`
	Status     ImageStatus `json:"status" enum:"pending,building,ready,failed"`
	Error      string      `json:"error,omitempty"`
	Digest     string      `json:"digest,omitempty" doc:"Of the manifest as pushed."`
	DoneBytes  int64       `json:"done_bytes"`
	TotalBytes int64       `json:"total_bytes"`
}

// ImageConfig is the part of an OCI image configuration that a sandbox honours.
type ImageConfig struct {
	Env        []string `json:"env,omitempty"`
	User       string   `json:"user,omitempty"`
	WorkingDir string   `json:"working_dir,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
}

// DefaultUser is the user of a sandbox that names none: the image's USER, or
// root if the image sets none, sets root, or sets a numeric user ID ("Linux
// Sandboxes" page, parameter "user"). A group after a colon is dropped.
func (c ImageConfig) DefaultUser() string {
	user := c.User
	for i := range user {
		if user[i] == ':' {
			user = user[:i]
			break
		}
	}
	if user == "" || isDigits(user) {
		return "root"
	}
	return user
}

func isDigits(s string) bool {
	for i := range s {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// PullProgress is how far a pull or import has come. Bytes are of compressed
// layers; TotalBytes is 0 while it is not known.
type PullProgress struct {
	Phase      string `json:"phase"` // "resolving", "downloading", "converting", "building", "warming"
	DoneBytes  int64  `json:"done_bytes"`
	TotalBytes int64  `json:"total_bytes"`
}
