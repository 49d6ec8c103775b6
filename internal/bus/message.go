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
	MachineID skerry.MachineID `json:"machine_id"`
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
)

// Command is an order to one runner. Commands are idempotent: they are
// delivered again until they are acknowledged.
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
