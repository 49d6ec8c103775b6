package skerry

// SandboxFilter selects sandboxes; zero fields select all.
type SandboxFilter struct {
	Labels   map[string]string // all must match
	Statuses []Status
	Cursor   string // of the previous page's NextCursor
	Limit    int    // 1 to MaxPageSize; 0 is DefaultPageSize
	// Deleted includes deleted sandboxes, which stay listed for a while.
	Deleted bool
}

// Page sizes of lists.
const (
	DefaultPageSize = 100
	MaxPageSize     = 1000
)

// SandboxPage is one page of a list, newest first.
type SandboxPage struct {
	Items      []Sandbox `json:"items"`
	NextCursor string    `json:"next_cursor,omitempty"`
}

// PullRequest registers an image from a registry.
type PullRequest struct {
	Reference string `json:"reference" doc:"docker.io/library/alpine:3.20, or with @sha256:…"`
	Name      string `json:"name,omitempty" doc:"Name to register it under; default the reference."`
	// PlainHTTP allows a registry without TLS.
	PlainHTTP bool   `json:"plain_http,omitempty"`
	Platform  string `json:"platform,omitempty" doc:"Default linux/ and the runner's architecture."`
	Default   bool   `json:"default,omitempty" doc:"Make it the image of creates that name none."`
	// Warm boots the image once before it is ready, so that no create has to.
	Warm bool `json:"warm,omitempty" doc:"Boot it once before it is ready, so that the first create need not; an image that does not boot fails."`
	// Auth is the registry login the client found in its docker config.
	Auth *RegistryAuth `json:"auth,omitempty"`
}

// RegistryAuth is a login at a registry, as in a docker config file.
type RegistryAuth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identity_token,omitempty"`
	RegistryToken string `json:"registry_token,omitempty"`
}

// PushRequest uploads a registered image to a registry.
type PushRequest struct {
	Reference string        `json:"reference" doc:"Where to: registry.example/team/env:1"`
	PlainHTTP bool          `json:"plain_http,omitempty"`
	Auth      *RegistryAuth `json:"auth,omitempty"`
}

// CaptureRequest makes an image of a sandbox's file system ("Linux Sandboxes"
// page, filesystem snapshot).
type CaptureRequest struct {
	Name              string `json:"name,omitempty" minLength:"1" doc:"Unique among images and snapshots. Without it the image is anonymous."`
	IdleExpirySeconds *int   `json:"idle_expiry_seconds,omitempty" doc:"How long an anonymous image may go without a create before it is deleted: 1 to the maximum of 7 days, or -1 for the maximum, the default. Refused with a name."`
}

// ForkRequest duplicates a sandbox.
type ForkRequest struct {
	Count      int               `json:"count,omitempty" minimum:"1" maximum:"64" doc:"How many copies; default one for each name, or 1."`
	Names      []string          `json:"names,omitempty" doc:"Names of the copies, all different: one for each, or none."`
	Labels     map[string]string `json:"labels,omitempty" doc:"Labels of the copies, which do not inherit any."`
	InheritEnv bool              `json:"inherit_env,omitempty" doc:"New commands in the copies get the source's environment variables, which may hold secrets. Processes that run keep theirs either way."`
}

// RestoreRequest makes a sandbox of a memory snapshot.
type RestoreRequest struct {
	Name                 string            `json:"name,omitempty" minLength:"1" doc:"Display name, as of a create; generated when omitted."`
	Labels               map[string]string `json:"labels,omitempty" doc:"The restored sandbox does not inherit the source's."`
	Env                  map[string]string `json:"env,omitempty" doc:"Of new commands; the source's are not inherited."`
	Persistent           *bool             `json:"persistent,omitempty" doc:"Default: as the source was. A snapshot of an ephemeral sandbox cannot become persistent."`
	Spot                 bool              `json:"spot,omitempty" doc:"Capacity that the operator can reclaim."`
	Policy               *PolicyRequest    `json:"lifecycle_policy,omitempty" doc:"As of a create; the source's is not inherited."`
	IdempotencyKey       string            `json:"idempotency_key,omitempty" minLength:"1" doc:"A restore that is retried with the same key returns the same sandbox. Default: derived from name, if that is given."`
	CreateTimeoutSeconds *int              `json:"create_timeout_seconds,omitempty" doc:"As of a create."`
}

// Kinds of archives that can be imported.
const (
	ArchiveOCI    = "oci-layout"  // a tar of an OCI image layout
	ArchiveDocker = "docker-save" // `docker save`
	ArchiveAuto   = ""            // told by its content
)

// ImportRequest registers an image from an archive on the server's disk, where
// the API has spooled the upload.
type ImportRequest struct {
	Path    string `json:"path"`
	Kind    string `json:"kind,omitempty"`
	Name    string `json:"name"`
	Tag     string `json:"tag,omitempty" doc:"Which image of an archive that holds several."`
	Default bool   `json:"default,omitempty"`
	Warm    bool   `json:"warm,omitempty" doc:"Boot it once before it is ready, so that the first create need not; an image that does not boot fails."`
}
