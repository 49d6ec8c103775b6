// Package machine is the seam between a sandbox and the hypervisor that runs
// it. A Machine is one life of one hypervisor process. Package qemu implements
// it; machinetest is the suite every implementation passes.
package machine

import (
	"context"
	"errors"
	"net"
	"os"
	"time"
)

// BaseSizesMiB are the memory sizes templates are made with; a sandbox uses the
// largest that is not larger than its memory, the rest is plugged in. Small
// classes keep the pages that clones share few, and the default size of a
// sandbox is one of them, so that a usual create plugs nothing.
var BaseSizesMiB = []int64{256, 512, 1024}

// BaseSizeMiB returns the template size for a sandbox of memMiB.
func BaseSizeMiB(memMiB int64) int64 {
	base := BaseSizesMiB[0]
	for _, s := range BaseSizesMiB {
		if s <= memMiB {
			base = s
		}
	}
	return base
}

// Shape is what a template's device state depends on, besides image, kernel,
// agent and hypervisor version.
type Shape struct {
	VCPUs     int   `json:"vcpus"`
	BaseMiB   int64 `json:"base_mib"`
	MaxMemMiB int64 `json:"max_mem_mib"` // room for plugged memory, base included
}

// Config describes a machine to start. Files are handed over as descriptors;
// the caller keeps its own and closes them after Start.
type Config struct {
	Shape Shape
	// Dir is private to the machine; the console log and sockets go there.
	Dir string
	// Image is the read-only image disk, Scratch the writable one. A nil
	// Scratch starts with an empty placeholder that SetScratch replaces.
	Image   ImageDisk
	Scratch *os.File

	// Control and Net are connected stream socket ends for the guest agent's
	// port and the network interface (frames with a 4-byte big-endian
	// length). A nil Control makes a listening socket Dir/control.sock
	// instead, for capturing a template.
	Control *os.File
	Net     *os.File

	// Boot is used for a cold boot, Template for a restore: exactly one.
	Boot     *Boot
	Template *Template

	// Zygote makes a machine from a template that others can be forked from:
	// the Machine that Start returns is then a Zygote. It needs Control, Net
	// and Scratch.
	Zygote bool
	// Origin is a connection whose other end a Zygote of the same template and
	// shape serves, or nil: the machine is then forked from that instead of
	// restored. It stays the caller's. Scratch must be a copy of the zygote's.
	Origin *os.File
}

// ImageDisk is one read-only disk whose content is the concatenation of
// extents (GPT head, layer files, GPT tail); see package disk.
type ImageDisk struct {
	Extents []Extent
}

// Extent is one piece of an image disk. Path is absolute.
type Extent struct {
	Path    string `json:"path"`
	Sectors int64  `json:"sectors"` // of 512 bytes
}

// Boot is a cold boot.
type Boot struct {
	KernelPath string
	InitrdPath string
	// Args is the kernel command line. It needs console=ttyS0 for the log and
	// panic=-1, so that a panic ends the machine.
	Args string
}

// Template is a machine that Capture or Save has written. RAM is a write-sealed
// memfd (or a file the hypervisor maps privately), State the device state; both
// are only read. The two files are all there is to hand over: a driver tells
// from the state how it was written.
type Template struct {
	RAM   *os.File
	State *os.File
	// ScratchBytes is the size of the writable disk it was captured with.
	// A machine that starts with a disk of another size is told so.
	ScratchBytes int64
}

// Driver starts machines.
type Driver interface {
	// Start starts the hypervisor. A machine started from a template is
	// loaded and paused when Start returns; a cold boot runs.
	Start(ctx context.Context, cfg Config) (Machine, error)
	// Version is the hypervisor's version and CPU arguments; templates are
	// keyed by it.
	Version(ctx context.Context) (string, error)
	// Accel is "kvm" or "tcg".
	Accel() string
}

// Machine is a started machine. Its methods are safe for concurrent use.
type Machine interface {
	PID() int
	// Resume lets the virtual processors run; Pause stops them.
	Resume(ctx context.Context) error
	Pause(ctx context.Context) error
	// Stalled is closed while the machine stands still because the host's disk
	// has no room for what the guest writes to its writable disk; once it goes
	// on there is another. The write is not lost: it is tried again when the
	// machine goes on, and is part of what Save writes.
	Stalled() <-chan struct{}
	// Retry lets a machine go on that is stalled. It does nothing to another,
	// also to one that was paused since.
	Retry(ctx context.Context) error
	// SetScratch replaces the writable disk of a paused machine that the
	// guest has not opened yet.
	SetScratch(ctx context.Context, f *os.File) error
	// SetMemory plugs or unplugs memory so that the machine has memMiB.
	// It returns when the request is accepted; see MemoryMiB.
	SetMemory(ctx context.Context, memMiB int64) error
	// MemoryMiB is the memory the guest has now.
	MemoryMiB(ctx context.Context) (int64, error)
	// Capture saves device state and RAM of a cold-booted machine as a
	// template: statePath and ramPath are created. The machine is paused
	// and of no further use.
	Capture(ctx context.Context, statePath, ramPath string) error
	// Save writes device state and memory of a machine, restored or booted,
	// as a template for machines of the same shape. Unless the request is
	// final, or if Save fails, the machine then goes on as before: one that
	// ran runs, a paused one stays paused. One that is stalled is refused with
	// CodeExhausted. On an error none of the files it
	// was to make is left. Saves of one machine wait for each other; Pause,
	// Resume and SetMemory wait for the instant of one. Nothing is flushed to
	// the host's disk: what a loss of power damages is found by a load.
	Save(ctx context.Context, req SaveRequest) (Saved, error)
	// CopyScratch begins a copy of the writable disk to dst while the machine
	// runs, and returns when most is copied; Cut fixes the instant. dst is an empty regular file, opened
	// read-write, that stays the caller's; it becomes as large as the disk,
	// with holes where the disk has no data. It is not flushed to the host's
	// disk. One copy at a time: a second is refused with CodeConflict until
	// the first is closed.
	CopyScratch(ctx context.Context, dst *os.File) (DiskCopy, error)
	// Reconnect gives the agent's port a new host end, a connected stream
	// socket that stays the caller's; the guest sees the old one close. A
	// machine restored from a save whose port was in the middle of a write
	// never answers its first host end.
	Reconnect(ctx context.Context, control *os.File) error
	// Done is closed when the hypervisor process has ended; Err then says how.
	Done() <-chan struct{}
	Err() error
	// Kill ends the hypervisor and waits for it. It is idempotent.
	Kill() error
}

// Zygote is a machine that others are forked from: each begins with all that
// it has in memory, also with what its hypervisor has worked out, such as
// translated code.
type Zygote interface {
	Machine
	// Freeze stops a running machine for good. The host's end of its port must
	// be closed, and the guest at rest. Of the other methods only Fork, Done,
	// Err, PID and Kill work then.
	Freeze(ctx context.Context) error
	// Fork serves one Start on the other end of origin, and returns when the
	// machine that it started has ended. It kills that when the other end is
	// closed, or ctx is done; what it has started outlives this process. The
	// error is ErrNoFork if the zygote is of no use any more.
	Fork(ctx context.Context, origin *net.UnixConn) error
	// Learn has later forks begin with memory of their own where fork, which
	// has done what they will do, has written to.
	Learn(fork Machine) error
}

// SaveRequest says what Save writes and where.
type SaveRequest struct {
	// StatePath and RAMPath are created, as by Capture; the driver says which
	// files there are (qemu.TemplateFiles).
	StatePath, RAMPath string
	// BasePath is the RAM file of the template that the machine was started
	// from, or "". With it, only pages that differ from it are stored, and a
	// hard link beside RAMPath keeps it: both must be on one file system, and
	// the template may be deleted afterwards. It may be a save's own, with a
	// base: then pages are stored that differ from that base, so that a save
	// never depends on a chain of others. Of a machine that was booted it
	// must be "".
	BasePath string
	// Disk, or nil, is cut at the same instant as the memory. It is the
	// caller's to wait for and to close.
	Disk DiskCopy
	// Hold, or nil, is called just before the machine stands still, while it
	// runs; an error ends the save. Resumed, or nil, is called when it runs
	// again, well before Save returns, also after an error, but not after a
	// final save that succeeded.
	Hold    func(ctx context.Context) error
	Resumed func()
	// Final leaves the machine paused. Resume takes that back.
	Final bool
}

// Saved is what a save took.
type Saved struct {
	Pause       time.Duration // how long the virtual processors stood still; 0 if Final
	MemoryBytes int64         // of memory that are stored, beyond the base
}

// DiskCopy is a copy of a writable disk in the making. The disk itself never
// changes its form: a crash leaves an unfinished copy and nothing else. Its
// methods are called one at a time, but Close at any time.
type DiskCopy interface {
	// Cut makes the copy the disk as it is now; writes from here on do not
	// reach it. It takes milliseconds; the machine may run or be paused. If
	// it runs, the disk is as after a loss of power: freeze its file system
	// first where that is not good enough.
	Cut(ctx context.Context) error
	// Wait waits until the copy is complete. It needs a Cut before.
	Wait(ctx context.Context) error
	// Close ends the copy, complete or not, and is idempotent. It does not
	// close or remove dst.
	Close() error
}

// The ends of a machine that Err tells apart from faults.
var (
	// ErrKilled: Kill was called.
	ErrKilled = errors.New("machine was killed")
	// ErrNoFork: a machine could not be forked.
	ErrNoFork = errors.New("machine cannot be forked")
	// ErrReset: the guest rebooted, or its kernel panicked; a machine has
	// only one life, so that ended it.
	ErrReset = errors.New("guest rebooted or panicked")
)
