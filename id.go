package skerry

import (
	"crypto/rand"
	"strings"
)

// Identifiers are a prefix that tells the kind and 20 characters of lower-case
// base 32 (100 random bits), so that they can be used in file names, host names
// and NATS subjects alike.
type (
	// SandboxID names a sandbox for its whole life ("sbx_…").
	SandboxID string
	// ImageID names an image ("img_…").
	ImageID string
	// MachineID names one life of one hypervisor process ("mch_…"). Every
	// operation on a host carries it, so that a late command cannot hit a
	// successor.
	MachineID string
	// RunnerID names a host that runs machines ("run_…").
	RunnerID string
	// ProcessID names a process started through the toolbox ("prc_…").
	ProcessID string
	// SnapshotID names a memory snapshot ("snap_…").
	SnapshotID string
	// KeyID names an API key ("key_…").
	KeyID string
)

const (
	sandboxPrefix  = "sbx_"
	imagePrefix    = "img_"
	machinePrefix  = "mch_"
	runnerPrefix   = "run_"
	processPrefix  = "prc_"
	snapshotPrefix = "snap_"
	keyPrefix      = "key_"

	idAlphabet = "abcdefghijklmnopqrstuvwxyz234567"
	idLength   = 20
)

// NewSandboxID returns a fresh sandbox identifier.
func NewSandboxID() SandboxID { return SandboxID(newID(sandboxPrefix)) }

// NewImageID returns a fresh image identifier.
func NewImageID() ImageID { return ImageID(newID(imagePrefix)) }

// NewMachineID returns a fresh machine identifier.
func NewMachineID() MachineID { return MachineID(newID(machinePrefix)) }

// NewRunnerID returns a fresh runner identifier.
func NewRunnerID() RunnerID { return RunnerID(newID(runnerPrefix)) }

// NewProcessID returns a fresh process identifier.
func NewProcessID() ProcessID { return ProcessID(newID(processPrefix)) }

// NewSnapshotID returns a fresh snapshot identifier.
func NewSnapshotID() SnapshotID { return SnapshotID(newID(snapshotPrefix)) }

// NewKeyID returns a fresh API key identifier.
func NewKeyID() KeyID { return KeyID(newID(keyPrefix)) }

// Valid reports whether id has the form of a sandbox identifier.
func (id SandboxID) Valid() bool { return validID(sandboxPrefix, string(id)) }

// Valid reports whether id has the form of an image identifier.
func (id ImageID) Valid() bool { return validID(imagePrefix, string(id)) }

// Valid reports whether id has the form of a snapshot identifier.
func (id SnapshotID) Valid() bool { return validID(snapshotPrefix, string(id)) }

// Valid reports whether id has the form of a machine identifier.
func (id MachineID) Valid() bool { return validID(machinePrefix, string(id)) }

// RandomToken returns n characters of the identifier alphabet (5 bits each)
// from the operating system's random source.
func RandomToken(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: crypto/rand aborts the program instead
	for i := range b {
		b[i] = idAlphabet[b[i]%32]
	}
	return string(b)
}

// Valid reports whether id has the form of a runner identifier.
func (id RunnerID) Valid() bool { return validID(runnerPrefix, string(id)) }

func newID(prefix string) string { return prefix + RandomToken(idLength) }

func validID(prefix, s string) bool {
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok || len(rest) != idLength {
		return false
	}
	return strings.Trim(rest, idAlphabet) == ""
}
