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

	// Scratch is the path of the writable disk if it is not ScratchFile of the
	// directory: the disk of a persistent sandbox outlives its machines.
	Scratch string `json:"scratch,omitempty"`

	// TemplateScratchBytes is the size of the writable disk that the template
	// was captured with.
	TemplateScratchBytes int64 `json:"template_scratch_bytes,omitempty"`
	// Saved is set when the template is what Save has written: the machine has
	// a user's processes in it and wants Renew, not Activate.
	Saved bool `json:"saved,omitempty"`

	// MemoryLedger is the file in which the machine borrows memory beyond its
	// floor (package growth). Without it no machine grows.
	MemoryLedger string `json:"memory_ledger,omitempty"`

	// Boot is set for a cold boot; without it the template's RAM and device
	// state are inherited as descriptors.
	Boot *machine.Boot `json:"boot,omitempty"`
	// Capture makes the shim boot, prepare the root on the writable disk, save
	// a template into its directory (RAMFile, StateFile and what belongs to
	// them; ScratchFile is then the disk that goes with them) and exit.
	Capture bool `json:"capture,omitempty"`
	// Bare captures an agent that has prepared nothing, with a placeholder for
	// the writable disk: for machines that get a disk which is in use already.
	Bare bool `json:"bare,omitempty"`
	// Warm makes the shim run a restored machine up to the agent's first
	// answer and hold it there: a member of the ready pool.
	Warm bool `json:"warm,omitempty"`
	// Zygote makes the shim rehearse a restored machine, stop it for good, and
	// let others be forked from it at OriginSock.
	Zygote bool `json:"zygote,omitempty"`
	// Forked is set for a machine that is forked from a zygote of the template,
	// of whose disk it has a copy; a connection to its OriginSock is inherited.
	// If that fails the machine is restored, with a copy of TemplateScratch.
	Forked          bool   `json:"forked,omitempty"`
	TemplateScratch string `json:"template_scratch,omitempty"`
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

// The phases. A shim goes through them in this order, from running to full and
// back, to saved or stopped; it can fail from any.
const (
	PhaseStarting   Phase = "starting"   // the hypervisor is being started or restored
	PhaseReady      Phase = "ready"      // anonymous; waits for Activate
	PhaseActivating Phase = "activating" // becoming a sandbox
	PhaseRunning    Phase = "running"    // the agent accepts toolbox requests
	PhaseFull       Phase = "full"       // stands still: the host's disk is full; runs on when there is room
	PhaseSaved      Phase = "saved"      // stands still, its memory is saved; Resume takes that back
	PhaseStopped    Phase = "stopped"    // was shut down as asked; the machine is gone
	PhaseFrozen     Phase = "frozen"     // a zygote, for good
	PhaseFailed     Phase = "failed"     // over; Error says why
)

// Live reports whether there is a sandbox in the machine.
func (p Phase) Live() bool { return p == PhaseRunning || p == PhaseFull }

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
	MemoryMiB  int64            `json:"memory_mib,omitempty"` // guaranteed to the sandbox
	// MemoryLimitMiB is how far its memory may grow, if that is more.
	MemoryLimitMiB int64 `json:"memory_limit_mib,omitempty"`
	MachinePID     int   `json:"machine_pid,omitempty"`
	// MachineStartTicks goes with MachinePID.
	MachineStartTicks uint64    `json:"machine_start_ticks,omitempty"`
	Since             time.Time `json:"since"`
}

// ActivateRequest makes a ready machine a sandbox.
type ActivateRequest struct {
	SandboxID  skerry.SandboxID    `json:"sandbox_id"`
	Activation guestapi.Activation `json:"activation"`
	// MemoryLimitMiB is how far the memory may grow, if that is more than the
	// activation's.
	MemoryLimitMiB int64 `json:"memory_limit_mib,omitempty"`
}

// RenewRequest makes a ready machine with a user's memory the sandbox.
type RenewRequest struct {
	SandboxID skerry.SandboxID `json:"sandbox_id"`
	MemoryMiB int64            `json:"memory_mib"`
	// MemoryLimitMiB is how far the memory may grow, if that is more.
	MemoryLimitMiB int64 `json:"memory_limit_mib,omitempty"`
	// Identity is set for a sandbox that is another than the saved one.
	Identity *guestapi.Activation `json:"identity,omitempty"`
}

// SaveRequest asks a running sandbox to be saved into Dir: RAMFile, StateFile
// and what belongs to them, and with Disk also ScratchFile.
type SaveRequest struct {
	Dir  string `json:"dir"`
	Disk bool   `json:"disk"`
	// Final leaves it standing still (PhaseSaved); else it runs on.
	Final bool `json:"final"`
}

// SaveReply tells what a save was.
type SaveReply struct {
	// StillMicros is how long the user's processes stood still.
	StillMicros int64 `json:"still_micros"`
	MemoryBytes int64 `json:"memory_bytes"` // stored beyond the template
}

// CopyDiskRequest asks for a copy of the writable disk at one instant, with a
// consistent file system that needs no journal, while the sandbox runs on.
type CopyDiskRequest struct {
	Path string `json:"path"`
}

// CopyDiskReply tells for how long writes were held back.
type CopyDiskReply struct {
	FrozenMicros int64 `json:"frozen_micros"`
}

// ShutdownRequest asks for an orderly end.
type ShutdownRequest struct {
	GraceMillis int64 `json:"grace_millis"` // between TERM and KILL of the user's processes
}

// ShutdownReply has a reason when the guest did not end in order, and was
// switched off.
type ShutdownReply struct {
	Reason string `json:"reason,omitempty"`
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
	OriginSock  = "origin.sock" // of a zygote
	ScratchFile = "scratch.img"
	RAMFile     = "ram"
	StateFile   = "state"
	// BaseFile is the memory that the machine was restored from, a hard link
	// to the RAMFile of its template or save (and to what belongs to that):
	// what is saved of the machine is what differs from it.
	BaseFile    = "template-ram"
	LogFile     = "shim.log"
	ConsoleFile = "console.log"
)
