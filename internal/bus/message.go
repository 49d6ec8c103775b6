// Package bus carries messages between control plane and runners.
package bus

import (
	"time"

	"skerry.dev/skerry"
)

// CreateJob asks some runner to make a sandbox. It is published to the work
// queue of its region and architecture; a runner that takes it must Claim the
// sandbox before it does anything, so that a job delivered twice, or late, or
// for a sandbox deleted meanwhile, does nothing.
type CreateJob struct {
	SandboxID skerry.SandboxID   `json:"sandbox_id"`
	Name      string             `json:"name"`
	ImageID   skerry.ImageID     `json:"image_id"`
	Digest    string             `json:"digest"` // the image's manifest digest
	Config    skerry.ImageConfig `json:"config"`
	User      string             `json:"user"`
	Env       map[string]string  `json:"env,omitempty"`
	Resources skerry.Resources   `json:"resources"`
	Region    string             `json:"region"`
	Arch      string             `json:"arch"`
	Deadline  time.Time          `json:"deadline"`
}

// ClaimRequest is a runner's question whether a sandbox is its to make.
type ClaimRequest struct {
	SandboxID skerry.SandboxID `json:"sandbox_id"`
	RunnerID  skerry.RunnerID  `json:"runner_id"`
	MachineID skerry.MachineID `json:"machine_id"` // the same when a claim is repeated
	// Epoch tells the starts of a runner apart: it grows with each, for
	// example the time of the start in nanoseconds.
	Epoch int64 `json:"epoch"`
}

// ClaimReply is the control plane's answer; with OK the sandbox is "assigned".
type ClaimReply struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}

// The kinds of commands.
const (
	CommandDeleteSandbox = "sandbox.delete"
	CommandPullImage     = "image.pull"
	CommandImportImage   = "image.import"
	CommandBuildDefault  = "image.build_default"
	CommandDeleteImage   = "image.delete"
	CommandReport        = "runner.report" // publish a RunnerReport
)

// Command is an order to one runner. Commands are idempotent: they are
// delivered again until they are acknowledged. Commands for sandboxes and for
// images do not wait for one another, nor in order: a command names all it needs,
// and what it asks for may be done already, or its object unknown.
type Command struct {
	Kind      string           `json:"kind"`
	SandboxID skerry.SandboxID `json:"sandbox_id,omitempty"`
	MachineID skerry.MachineID `json:"machine_id,omitempty"`
	ImageID   skerry.ImageID   `json:"image_id,omitempty"`
	// Pull and Import are set for their kinds.
	Pull   *skerry.PullRequest   `json:"pull,omitempty"`
	Import *skerry.ImportRequest `json:"import,omitempty"`
}

// The kinds of events.
const (
	EventSandbox = "sandbox" // a sandbox changed its status
	EventImage   = "image"   // an image changed its status or progress
	EventReport  = "report"  // what the runner has; sent first at each start, and when asked for
)

// Event is what a runner reports. Events of one runner arrive in order and at
// least once.
type Event struct {
	Kind     string          `json:"kind"`
	RunnerID skerry.RunnerID `json:"runner_id"`
	Time     time.Time       `json:"time"`

	// Of a sandbox. An event of another machine than the sandbox has now is
	// stale and ignored.
	SandboxID  skerry.SandboxID `json:"sandbox_id,omitempty"`
	MachineID  skerry.MachineID `json:"machine_id,omitempty"`
	Status     skerry.Status    `json:"status,omitempty"`
	Reason     string           `json:"reason,omitempty"`
	Unenforced []string         `json:"unenforced,omitempty"`
	User       string           `json:"user,omitempty"` // as the guest resolved it

	// Of an image: the fields of skerry.Image that the runner knows.
	Image *ImageReport `json:"image,omitempty"`

	// Of a report.
	Report *RunnerReport `json:"report,omitempty"`
}

// RunnerReport is all that a runner has, for the control plane to compare with
// what it believes. Sandboxes that were claimed in an earlier epoch and are not
// listed are taken for lost.
type RunnerReport struct {
	Heartbeat
	Machines []MachineReport `json:"machines"`
	Images   []ImageReport   `json:"images"`
}

// MachineReport is a machine that a runner has, or knows to be broken.
type MachineReport struct {
	SandboxID skerry.SandboxID `json:"sandbox_id"`
	MachineID skerry.MachineID `json:"machine_id"`
	Status    skerry.Status    `json:"status"`
	Reason    string           `json:"reason,omitempty"`
}

// HeartbeatInterval is how often a runner publishes a Heartbeat.
const HeartbeatInterval = 5 * time.Second

// Heartbeat is a runner's sign of life, with what is known of the host.
type Heartbeat struct {
	Runner skerry.Runner `json:"runner"` // Online and LastSeen are for the control plane to say
	Region string        `json:"region"`
	Epoch  int64         `json:"epoch"`
}

// ImageReport is a runner's word on an image.
type ImageReport struct {
	ImageID    skerry.ImageID       `json:"image_id"`
	Status     skerry.ImageStatus   `json:"status"`
	Error      string               `json:"error,omitempty"`
	Digest     string               `json:"digest,omitempty"`
	Platform   string               `json:"platform,omitempty"`
	Bytes      int64                `json:"bytes,omitempty"`
	LayerCount int                  `json:"layer_count,omitempty"`
	Config     skerry.ImageConfig   `json:"config"`
	Progress   *skerry.PullProgress `json:"progress,omitempty"`
	Deleted    bool                 `json:"deleted,omitempty"`
}
