package shim

import (
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
	"skerry.dev/skerry/internal/machine"
)

// SpecVersion is the version of the files in a machine's directory. A runner
// that is newer than a shim it re-adopts reads older versions.
const SpecVersion = 1

// Spec is what a shim is started with, the file spec.json of its directory. The
// writable disk, ScratchFile, is there before the shim starts.
type Spec struct {
	Version   int              `json:"version"`
	MachineID skerry.MachineID `json:"machine_id"`
	// ImageDigest is the digest of the image's manifest.
	ImageDigest string           `json:"image_digest"`
	Shape       machine.Shape    `json:"shape"`
	Image       []machine.Extent `json:"image"`
	Driver      DriverSpec       `json:"driver"`
	Network     NetworkSpec      `json:"network"`

	// TemplateScratchMiB is the size of the writable disk that the template
	// was captured with.
	TemplateScratchMiB int64 `json:"template_scratch_mib,omitempty"`

	// Boot is set for a cold boot; without it the template's RAM and device
	// state are inherited as descriptors.
	Boot *machine.Boot `json:"boot,omitempty"`
	// Capture makes the shim boot, prepare the root on the writable disk, save
	// a template into its directory (RAMFile, StateFile and what belongs to
	// them; ScratchFile is then the disk that goes with them) and exit.
	Capture bool `json:"capture,omitempty"`
	// Warm makes the shim run a restored machine up to the agent's first
	// answer and hold it there: a member of the ready pool.
	Warm bool `json:"warm,omitempty"`
}

// DriverSpec selects the hypervisor.
type DriverSpec struct {
	Binary string `json:"binary"`
	Accel  string `json:"accel"`         // kvm, tcg
	UID    int    `json:"uid,omitempty"` // of the hypervisor process; 0 keeps the shim's
	GID    int    `json:"gid,omitempty"`
}

// NetworkSpec is the network of the sandbox.
type NetworkSpec struct {
	// AllowPrefixes are destinations an operator opened although they are
	// closed by default (private mirrors).
	AllowPrefixes []string `json:"allow_prefixes,omitempty"`
}

// Phase is how far a shim is.
type Phase string

// The phases. A shim goes through them in this order; it can fail from any.
const (
	PhaseStarting   Phase = "starting"   // the hypervisor is being started or restored
	PhaseReady      Phase = "ready"      // anonymous; waits for Activate
	PhaseActivating Phase = "activating" // becoming a sandbox
	PhaseRunning    Phase = "running"    // the agent accepts toolbox requests
	PhaseFailed     Phase = "failed"     // over; Error says why
)

// Status is what a shim says of itself; it is also kept in the file
// status.json, so that it outlives the shim.
type Status struct {
	Version    int              `json:"version"`
	MachineID  skerry.MachineID `json:"machine_id"`
	SandboxID  skerry.SandboxID `json:"sandbox_id,omitempty"`
	Phase      Phase            `json:"phase"`
	Error      string           `json:"error,omitempty"`
	PID        int              `json:"pid"`                  // of the shim
	StartTicks uint64           `json:"start_ticks"`          // proc_pid_stat(5) field 22, against re-use of the pid
	MemoryMiB  int64            `json:"memory_mib,omitempty"` // of the sandbox
	MachinePID int              `json:"machine_pid,omitempty"`
	// MachineStartTicks goes with MachinePID.
	MachineStartTicks uint64    `json:"machine_start_ticks,omitempty"`
	Since             time.Time `json:"since"`
}

// ActivateRequest makes a ready machine a sandbox.
type ActivateRequest struct {
	SandboxID  skerry.SandboxID    `json:"sandbox_id"`
	Activation guestapi.Activation `json:"activation"`
}

// ActivateReply tells what the guest resolved and how long each step took.
type ActivateReply struct {
	Activated guestapi.Activated `json:"activated"`
	// StepMicros are microseconds by step on the host.
	StepMicros map[string]int64 `json:"step_micros"`
}

// File names in a machine's directory.
const (
	SpecFile    = "spec.json"
	StatusFile  = "status.json"
	ControlSock = "shim.sock"
	ToolboxSock = "toolbox.sock"
	ScratchFile = "scratch.img"
	RAMFile     = "ram"
	StateFile   = "state"
	LogFile     = "shim.log"
	ConsoleFile = "console.log"
)
