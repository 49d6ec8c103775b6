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

	Persistent bool `json:"persistent,omitempty"`
	// Snapshot is set to restore a memory snapshot that the runner has. A job
	// of a fork restores what the fork has saved of its source. Resources,
	// image and disk are then the source's; Env is over the image's.
	Snapshot skerry.SnapshotID `json:"snapshot_id,omitempty"`
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

// The kinds of commands. Those that end an operation of a sandbox are answered
// by an EventOperation, besides the changes of status they cause.
const (
	CommandDeleteSandbox = "sandbox.delete"
	// CommandRemoveMachine removes a machine that its sandbox has no more. The
	// disk of a persistent sandbox is not the machine's and stays.
	CommandRemoveMachine  = "sandbox.remove_machine"
	CommandCreateSandbox  = "sandbox.create" // Job: one that only this runner can do
	CommandStop           = "sandbox.stop"
	CommandStart          = "sandbox.start" // from stopped or paused; Machine is the new one
	CommandPause          = "sandbox.pause"
	CommandFork           = "sandbox.fork"     // Jobs: the children, which the runner then claims
	CommandCapture        = "sandbox.capture"  // Capture: the disk becomes an image
	CommandSnapshot       = "sandbox.snapshot" // Snapshot: memory and disk are saved
	CommandActivity       = "sandbox.activity" // is answered by EventActivity
	CommandDeleteSnapshot = "snapshot.delete"
	CommandPushImage      = "image.push"
	CommandPullImage      = "image.pull"
	CommandImportImage    = "image.import"
	CommandBuildDefault   = "image.build_default"
	CommandDeleteImage    = "image.delete"
	CommandReport         = "runner.report" // publish a RunnerReport
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
	Push   *skerry.PushRequest   `json:"push,omitempty"`

	// Job is of CommandCreateSandbox; of CommandStart it says what the
	// machine is made of. Boot lets a paused sandbox whose memory does not
	// fit the host any more boot from its disk.
	Job        *CreateJob        `json:"job,omitempty"`
	Boot       bool              `json:"boot,omitempty"`
	Jobs       []CreateJob       `json:"jobs,omitempty"`
	SnapshotID skerry.SnapshotID `json:"snapshot_id,omitempty"`
	// Capture names the image that ImageID becomes.
	Capture *CaptureOrder `json:"capture,omitempty"`
}

// CaptureOrder makes an image of a sandbox's file system: one more layer on the
// image it was made of.
type CaptureOrder struct {
	BaseDigest string `json:"base_digest"`
	Comment    string `json:"comment"` // of the layer, in the image's history
}

// The kinds of events.
const (
	EventSandbox = "sandbox" // a sandbox changed its status
	EventImage   = "image"   // an image changed its status or progress
	EventReport  = "report"  // what the runner has; sent first at each start, and when asked for

	// EventOperation: the source sandbox's part of an operation is over; with
	// a Reason it did not work, and the sandbox is what it was before.
	EventOperation = "operation"
	// EventActivity tells whether a sandbox is in use, see CommandActivity.
	EventActivity = "activity"
	EventSnapshot = "snapshot" // a snapshot changed its status
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

	// Of an operation.
	Operation skerry.Action `json:"operation,omitempty"`
	// Of an activity: Busy while a request or a command runs, else LastActive
	// is when the last one ended (host clock; zero if there was none).
	Busy       bool      `json:"busy,omitempty"`
	LastActive time.Time `json:"last_active,omitzero"`

	Snapshot *SnapshotReport `json:"snapshot,omitempty"`

	// Of an image: the fields of skerry.Image that the runner knows.
	Image *ImageReport `json:"image,omitempty"`

	// Of a report.
	Report *RunnerReport `json:"report,omitempty"`
}

// ReasonFull is the Reason with which a runner tells that a running sandbox stands
// still; without it, that it goes on.
const ReasonFull = "the host's disk is full; it stands still, and goes on when there is room"

// RunnerReport is all that a runner has, for the control plane to compare with
// what it believes. Sandboxes that were claimed in an earlier epoch and are not
// listed are taken for lost.
type RunnerReport struct {
	Heartbeat
	Machines  []MachineReport  `json:"machines"`
	Images    []ImageReport    `json:"images"`
	Snapshots []SnapshotReport `json:"snapshots,omitempty"`
}

// MachineReport is a machine that a runner has, or knows to be broken, or the
// last machine of a persistent sandbox that is stopped or paused.
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
	// Push is set in the report of an upload, which changes nothing else.
	Push *skerry.PushProgress `json:"push,omitempty"`
}

// SnapshotReport is a runner's word on a memory snapshot.
type SnapshotReport struct {
	SnapshotID  skerry.SnapshotID  `json:"snapshot_id"`
	Status      skerry.ImageStatus `json:"status"`
	Error       string             `json:"error,omitempty"`
	MemoryBytes int64              `json:"memory_bytes,omitempty"`
	DiskBytes   int64              `json:"disk_bytes,omitempty"`
	PauseMillis int64              `json:"pause_millis,omitempty"`
	Deleted     bool               `json:"deleted,omitempty"`
}
