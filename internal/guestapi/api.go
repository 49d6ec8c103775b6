// Package guestapi is everything the host and the guest agent say to each
// other: the handshake and the multiplexer on the virtio-serial port, the
// control messages, and the kinds of streams. Host and guest meet only here.
//
// # Wire
//
// The port ("org.skerry.agent") carries a nonce handshake (see handshake.go),
// then yamux with the host as client. The first byte of each stream tells its
// kind: StreamControl carries one request frame and one reply frame of JSON
// (see frame.go), StreamToolbox HTTP/1.1, StreamDial a request frame
// DialRequest, a reply frame DialReply and then the raw bytes of a connection
// inside the guest.
//
// Control does not use HTTP because the first message to a restored machine is
// on the path of every create, and under software emulation all guest code is
// cold then: net/http costs many times what a frame costs.
//
// # Versioning
//
// A restored machine runs the agent it was captured with, so the host may be
// newer than the guest. Fields are only added; Hello tells the version.
package guestapi

import "time"

// Version is raised whenever the agent's behaviour changes in a way that the
// host must know of.
const Version = 2

// PortName is the name of the virtio-serial port.
const PortName = "org.skerry.agent"

// The kinds of streams, the first byte the host writes on a stream.
const (
	StreamControl byte = 'C' // one frame each way: the Path… constants below; host only
	StreamToolbox byte = 'T' // HTTP/1.1: the toolbox API
	// StreamRehearsal is StreamToolbox for the time of a rehearsal.
	StreamRehearsal byte = 'R'
	StreamDial      byte = 'D' // a frame DialRequest, answered by a frame DialReply, then raw bytes
)

// Paths of the control API, with request and reply.
const (
	PathHello    = "/hello"    // nothing -> Hello
	PathPrepare  = "/prepare"  // Preparation -> nothing; optional, before activate
	PathRehearse = "/rehearse" // Activation -> Rehearsal; after prepare, until quiesce: an activation that does not count
	PathActivate = "/activate" // Activation -> Activated
	PathQuiesce  = "/quiesce"  // nothing -> nothing; frees memory; the host then closes the link and captures
	PathTune     = "/tune"     // Tuning -> nothing; after memory was plugged, before it is unplugged
	// PathPressure waits until the sandbox is short of memory: PressureWait ->
	// Pressure. One waits at a time.
	PathPressure = "/pressure"
	// PathFreeze and PathThaw bring the sandbox to a standstill for a capture:
	// Freeze -> nothing, nothing -> nothing. A machine that was captured with
	// frozen processes is thawed by PathRenew.
	PathFreeze   = "/freeze"
	PathThaw     = "/thaw"
	PathRenew    = "/renew"    // Renewal -> nothing; the first message to a machine that was restored from a user's memory
	PathShutdown = "/shutdown" // Shutdown -> nothing; ends processes, syncs, remounts read-only; the host then stops the machine
	PathStats    = "/stats"    // nothing -> Stats
)

// Hello is the agent's introduction.
type Hello struct {
	Version   int       `json:"version"`
	Build     string    `json:"build"`
	Kernel    string    `json:"kernel"`
	Activated bool      `json:"activated"`
	Time      time.Time `json:"time"`
}

// Preparation does the part of an activation that knows no sandbox yet but its
// writable disk: a machine kept ready has it done when it is claimed. Most of
// the time of an activation is the first mount of that disk. Time and Entropy
// are used as in Activation, which repeats them.
type Preparation struct {
	Time           time.Time `json:"time"`
	Entropy        []byte    `json:"entropy"`
	ScratchSectors int64     `json:"scratch_sectors,omitempty"`
	// MemoryMiB is the machine's size without plugged memory.
	MemoryMiB int64 `json:"memory_mib"`
}

// Activation turns a booted or restored, anonymous machine into one sandbox.
// The agent applies it in this order and fails closed: entropy (RNDADDENTROPY
// and RNDRESEEDCRNG), clock, identity, root file system, processes allowed.
// Nothing of a user runs before it has succeeded, and a second one is refused.
type Activation struct {
	Time      time.Time `json:"time"`    // host wall clock when it was sent
	Entropy   []byte    `json:"entropy"` // at least 32 bytes from the host
	SandboxID string    `json:"sandbox_id"`
	Hostname  string    `json:"hostname"`
	MachineID string    `json:"machine_id"` // 32 hex digits, machine-id(5)
	BootID    string    `json:"boot_id"`    // UUID, shown as /proc/sys/kernel/random/boot_id
	MAC       string    `json:"mac"`        // or "" to leave the interface's address

	// What commands get by default.
	User       string            `json:"user"`        // name or number; must exist in the image
	WorkingDir string            `json:"working_dir"` // the image's, or ""
	ImageEnv   []string          `json:"image_env"`   // KEY=value, in order
	Env        map[string]string `json:"env"`         // the sandbox's, over the image's

	MemoryMiB int64 `json:"memory_mib"` // the sandbox's size, plugged memory included
	// FixedMemory tells that the host will not give more, see Tuning.
	FixedMemory bool `json:"fixed_memory,omitempty"`
	// ScratchSectors is the size of the writable disk in 512-byte sectors. If
	// not 0, the agent waits until the kernel has seen it: the host exchanges
	// a template's placeholder disk just before.
	ScratchSectors int64 `json:"scratch_sectors,omitempty"`
}

// Freeze asks for a standstill. It is answered when that is reached; after an
// error nothing is frozen. What is started meanwhile waits for the thaw.
type Freeze struct {
	// Processes stops all of the user's processes, so that none runs before a
	// restored copy has its own randomness, clock and names.
	Processes bool `json:"processes,omitempty"`
	// Disk writes all that is dirty to the writable disk and holds back writes
	// (FIFREEZE, ioctl_fs(2)): the disk is then consistent without its
	// journal. It is thawed by the agent itself after DiskMillis, should the
	// host not do it: at most 10 minutes, 5 seconds if 0.
	Disk       bool  `json:"disk,omitempty"`
	DiskMillis int64 `json:"disk_millis,omitempty"`
}

// Renewal gives a machine that was saved with a sandbox in it fresh randomness
// and the time, a new identity if it becomes another sandbox, and then thaws
// its processes. The agent fails closed: after an error nothing of the user
// runs. Processes go on over it; connections to the toolbox of before are gone.
type Renewal struct {
	Time    time.Time `json:"time"`
	Entropy []byte    `json:"entropy"`
	// Identity is nil for the same sandbox. Of it SandboxID, Hostname,
	// MachineID, BootID, MAC and Env count; Env takes the place of the
	// sandbox's variables for new commands.
	Identity *Activation `json:"identity,omitempty"`
}

// Rehearsal tells the host what to run over a StreamRehearsal.
type Rehearsal struct {
	// Argv does nothing, in every image.
	Argv []string `json:"argv"`
	// Usual are programs of this image that users often run, with arguments
	// that make them end at once.
	Usual [][]string `json:"usual,omitempty"`
}

// Activated is the agent's answer.
type Activated struct {
	// HomeDir and User are what was resolved from the image's passwd(5).
	User    string `json:"user"`
	HomeDir string `json:"home_dir"`
	// Durations in microseconds by step, for the trace of a create.
	StepMicros map[string]int64 `json:"step_micros"`
}

// Tuning tells the agent the machine's new size, so that it sets the limits of
// the user's control group.
type Tuning struct {
	MemoryMiB int64 `json:"memory_mib"`
	// FixedMemory tells that the host will not give more, for now or for good:
	// a program that takes too much is then killed. Without it, programs are
	// slowed down before that, which gives the host time to plug memory.
	FixedMemory bool `json:"fixed_memory,omitempty"`
}

// PressureWait asks to be told when memory is short.
type PressureWait struct {
	// Millis is after how long to answer in any case; 0 is never.
	Millis int64 `json:"millis,omitempty"`
}

// Pressure is the state of the sandbox's memory.
type Pressure struct {
	// UsedMiB is what the user's processes hold and the kernel could not take
	// from them: not the cache of files.
	UsedMiB int64 `json:"used_mib"`
	// Short is true when programs have been slowed down since the last answer.
	Short bool `json:"short"`
}

// UserMemoryMiB is the limit of the user's processes in a machine of memMiB.
// The kernel's text, its tables (1/64 of memory for page descriptors) and the
// agent need the rest. The limit must be below what is available to the user
// when nothing runs (MemAvailable is 81 MiB less than 512): a machine that is
// itself out of memory looks for one victim after the other and comes to
// nothing else, the agent's answers included.
//
// A machine with plugged memory has more zones, each of which the kernel keeps
// a part of free (min_free_kbytes; huge pages raise it).
func UserMemoryMiB(memMiB int64) int64 {
	zones := min(64, max(0, memMiB-1024)/16)
	return memMiB - memMiB/64 - 96 - zones
}

// Shutdown asks for an orderly end. It is answered, at most twice the grace and
// half a minute later, when the disk is clean; an error may also tell of
// processes that could not be ended.
type Shutdown struct {
	GraceMillis int64 `json:"grace_millis"` // between TERM and KILL of the user's processes
}

// Stats are counters of the guest.
type Stats struct {
	Processes      int   `json:"processes"` // running ones started through the toolbox
	MemoryUsedMiB  int64 `json:"memory_used_mib"`
	MemoryTotalMiB int64 `json:"memory_total_mib"`
	DiskUsedMiB    int64 `json:"disk_used_mib"`
	DiskTotalMiB   int64 `json:"disk_total_mib"`

	// Busy is true while a toolbox request is being served, a connection into
	// the sandbox is open, or a process started through the toolbox runs.
	Busy bool `json:"busy"`
	// IdleMillis is for how long it has not been busy, on the guest's
	// monotonic clock; 0 while it is.
	IdleMillis int64 `json:"idle_millis"`
}

// DialRequest asks for a connection to a port inside the guest.
type DialRequest struct {
	Network string `json:"network"` // tcp, unix
	Address string `json:"address"` // "127.0.0.1:8080"
}

// DialReply says whether the raw bytes follow.
type DialReply struct {
	Error string `json:"error,omitempty"`
}

// Boot is what the agent is told on the kernel command line as
// "skerry.boot=<base64 JSON>": the anonymous part that every sandbox of a
// template shares.
type Boot struct {
	// Layers are the partitions of the image disk (vda), bottom layer first:
	// 1-based partition numbers. Partition Platform holds the kernel modules
	// and mount points (see docs/state-dir.md).
	Layers   []int `json:"layers"`
	Platform int   `json:"platform"`

	// The fixed network of every sandbox.
	Address string `json:"address"` // "10.0.2.15/24"
	Gateway string `json:"gateway"`
	DNS     string `json:"dns"`
	MTU     int    `json:"mtu"`
}
