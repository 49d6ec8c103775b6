// Package store keeps the state of the control plane in a SQL database.
//
// Store is the interface, package storetest the suite that every
// implementation must pass, package sqlite the embedded implementation. A store
// knows the types of package skerry and no rules: which change of a sandbox is
// allowed, for example, is for its caller to check, in the transaction that
// reads and writes it.
//
// Times are kept to the microsecond, in UTC.
package store

import (
	"context"
	"errors"
	"time"

	"skerry.dev/skerry"
)

// Errors that callers branch on.
var (
	// ErrNotFound: no such row.
	ErrNotFound = errors.New("not found")
	// ErrExists: a unique value (name, idempotency key, id) is taken.
	ErrExists = errors.New("already exists")
	// ErrStale: the row has another version than the one to be replaced.
	ErrStale = errors.New("changed meanwhile")
)

// Store is a database of the control plane.
type Store interface {
	// View runs fn on one consistent state of the database.
	View(ctx context.Context, fn func(Reader) error) error
	// Update runs fn in a transaction that is committed when fn returns
	// nil and rolled back otherwise; fn's error is returned unwrapped. An
	// implementation may run fn again, as when the database reports a
	// conflict with another transaction, so fn must not have other effects.
	Update(ctx context.Context, fn func(Tx) error) error
	// UpdateLazily is Update without waiting for the disk: a power failure
	// (not the end of the process) may undo it and the lazy ones after it,
	// up to the next Update. It is for what can be found out again.
	UpdateLazily(ctx context.Context, fn func(Tx) error) error
	// Close ends the connections. Transactions under way are waited for.
	Close() error
}

// Reader reads, within a transaction. All methods return ErrNotFound where one
// row is asked for and there is none.
type Reader interface {
	SandboxReader
	ImageReader
	SnapshotReader
	RunnerReader
	EventReader

	// Outbox returns up to limit entries, oldest first.
	Outbox(ctx context.Context, limit int) ([]OutboxEntry, error)
	// APIKeyByHash finds a key by the hash of its token.
	APIKeyByHash(ctx context.Context, hash []byte) (APIKey, error)
	// CountAPIKeys returns how many keys there are.
	CountAPIKeys(ctx context.Context) (int, error)
	// Meta returns the value of a setting, "" when it was never set.
	Meta(ctx context.Context, key string) (string, error)
}

// SandboxReader reads sandboxes.
type SandboxReader interface {
	Sandbox(ctx context.Context, id skerry.SandboxID) (Sandbox, error)
	// SandboxByName finds the sandbox that is not deleted or, if there is
	// none, the one of that name that was deleted last.
	SandboxByName(ctx context.Context, name string) (Sandbox, error)
	// SandboxByKey finds the not deleted sandbox of an idempotency key.
	SandboxByKey(ctx context.Context, key string) (Sandbox, error)
	// Sandboxes returns a page, newest first. A page ends at filter.Limit
	// sandboxes, or earlier when it holds MaxPageBytes of environments.
	Sandboxes(ctx context.Context, filter skerry.SandboxFilter) (SandboxPage, error)
	// SandboxesOnRunner returns those of a runner that are not deleted.
	SandboxesOnRunner(ctx context.Context, runner skerry.RunnerID) ([]Sandbox, error)
	// CountSandboxesOfImage counts those that are not deleted.
	CountSandboxesOfImage(ctx context.Context, image skerry.ImageID) (int, error)
	// SandboxesForkedFrom returns the copies of a sandbox that have one of
	// the statuses, in the order of insertion.
	SandboxesForkedFrom(ctx context.Context, source skerry.SandboxID, statuses []skerry.Status) ([]Sandbox, error)
	// CountSandboxesOfSnapshot counts those made of a snapshot that have one
	// of the statuses.
	CountSandboxesOfSnapshot(ctx context.Context, snapshot skerry.SnapshotID, statuses []skerry.Status) (int, error)
	// NextCreateDeadline returns the sandbox that must run the soonest
	// among those with one of the statuses that never ran.
	NextCreateDeadline(ctx context.Context, statuses []skerry.Status) (Sandbox, error)
	// NextDue returns the sandbox with the earliest DueAt.
	NextDue(ctx context.Context) (Sandbox, error)
	// OldestDeleted returns when the sandbox deleted first was deleted.
	OldestDeleted(ctx context.Context) (time.Time, error)
}

// ImageReader reads images.
type ImageReader interface {
	Image(ctx context.Context, id skerry.ImageID) (Image, error)
	ImageByName(ctx context.Context, name string) (Image, error)
	// DefaultImage finds the image of creates that name none.
	DefaultImage(ctx context.Context) (Image, error)
	// Images returns all images, newest first.
	Images(ctx context.Context) ([]Image, error)
	// NextImageExpiry returns the image with the earliest ExpiresAt among
	// those that neither a snapshot nor a sandbox that is not deleted uses.
	NextImageExpiry(ctx context.Context) (Image, error)
}

// SnapshotReader reads memory snapshots.
type SnapshotReader interface {
	Snapshot(ctx context.Context, id skerry.SnapshotID) (Snapshot, error)
	SnapshotByName(ctx context.Context, name string) (Snapshot, error)
	// Snapshots returns all snapshots, newest first.
	Snapshots(ctx context.Context) ([]Snapshot, error)
	CountSnapshotsOfImage(ctx context.Context, image skerry.ImageID) (int, error)
}

// EventReader reads events.
type EventReader interface {
	// Events returns the events that the filter selects, oldest first.
	// CodeInvalid: the limit is out of range.
	Events(ctx context.Context, filter skerry.EventFilter) ([]skerry.Event, error)
	// LastEventID returns the id of the newest event, 0 if there is none.
	LastEventID(ctx context.Context) (int64, error)
	// OldestEvent returns when the oldest event was.
	OldestEvent(ctx context.Context) (time.Time, error)
}

// RunnerReader reads runners.
type RunnerReader interface {
	Runner(ctx context.Context, id skerry.RunnerID) (Runner, error)
	// Runners returns all runners in the order of their ids.
	Runners(ctx context.Context) ([]Runner, error)
}

// Tx reads and writes, within a transaction.
type Tx interface {
	Reader

	// InsertSandbox returns ErrExists when the id, the name or the
	// idempotency key of a sandbox that is not deleted is the same. The
	// new row has version 1.
	InsertSandbox(ctx context.Context, s Sandbox) error
	// UpdateSandbox replaces the row that has s.Version and raises it by
	// one; ErrStale when there is none. Name, labels, environment, key,
	// arguments, kind (persistent, spot), origin and creation time do not
	// change.
	UpdateSandbox(ctx context.Context, s Sandbox) error
	// PruneSandboxes forgets sandboxes deleted at t or before.
	PruneSandboxes(ctx context.Context, t time.Time) (int, error)

	// InsertImage returns ErrExists when the id is taken, or the name by an
	// image or a snapshot.
	InsertImage(ctx context.Context, i Image) error
	// UpdateImage works like UpdateSandbox; it can change every field but
	// id, name and creation time. An image that becomes the default takes
	// the place of the one that was.
	UpdateImage(ctx context.Context, i Image) error
	DeleteImage(ctx context.Context, id skerry.ImageID) error

	// InsertSnapshot, UpdateSnapshot and DeleteSnapshot work like those of
	// images, with which snapshots share their names. An update can change
	// the status, the error and the measures.
	InsertSnapshot(ctx context.Context, s Snapshot) error
	UpdateSnapshot(ctx context.Context, s Snapshot) error
	DeleteSnapshot(ctx context.Context, id skerry.SnapshotID) error

	// AddEvent appends an event; its ID is set by the store, larger than that
	// of any event before, also of those that a power failure has undone.
	AddEvent(ctx context.Context, e skerry.Event) error
	// PruneEvents forgets the events at t or before, and those whose id is
	// keep or more below that of the newest: all but keep ones at most.
	PruneEvents(ctx context.Context, t time.Time, keep int) (int, error)

	// AddOutbox appends an entry; its ID is set by the store.
	AddOutbox(ctx context.Context, e OutboxEntry) error
	DeleteOutbox(ctx context.Context, id int64) error

	// PutRunner inserts or replaces a runner.
	PutRunner(ctx context.Context, r Runner) error
	InsertAPIKey(ctx context.Context, k APIKey) error
	SetMeta(ctx context.Context, key, value string) error
}

// Sandbox is a sandbox and what only the control plane knows about it.
type Sandbox struct {
	skerry.Sandbox

	Version        int64  // counts the changes, from 1
	Region         string // where it is to be placed
	Arch           string // "amd64", "arm64"
	IdempotencyKey string // "" for none
	// ArgsDigest is a digest of what the create asked for.
	ArgsDigest string
	// RunnerEpoch is the start of the runner in which it claimed the sandbox.
	RunnerEpoch int64
	// DeletedAt is zero as long as the status is not deleted.
	DeletedAt time.Time

	// OperationTarget is what the operation under way is about: the image or
	// snapshot that it makes or, of a start, the status before it.
	OperationTarget string
	// ReclaimDue: a spot sandbox is to be paused as soon as it can be.
	ReclaimDue bool
	// IdleAskedAt is when its runner was asked, without an answer yet,
	// whether it is in use. Zero: it was not.
	IdleAskedAt time.Time
	// RetryAt holds back a timer whose action did not work.
	RetryAt time.Time
	// DueAt is when the timers must look at it, or zero.
	DueAt time.Time
}

// MaxPageBytes bounds the environments of one page of sandboxes.
const MaxPageBytes = 16 << 20

// SandboxPage is a page of sandboxes; Next is the cursor of the page after it.
type SandboxPage struct {
	Items []Sandbox
	Next  string
}

// Image is an image and what only the control plane knows about it.
type Image struct {
	skerry.Image

	Version int64
	Runner  skerry.RunnerID // who makes it
	// Command is the order to make it, kept until it is ready or failed, so
	// that it can be given again.
	Command []byte
	// PushCommand is the same for its upload.
	PushCommand []byte
}

// Snapshot is a memory snapshot and what only the control plane knows about it.
type Snapshot struct {
	skerry.Snapshot

	Version int64
	Arch    string
}

// OutboxEntry is a message to be published: it was decided upon in the same
// transaction that wrote it, and stays until the bus has confirmed it.
type OutboxEntry struct {
	ID int64 // in the order of insertion
	// SandboxID is set for the create job of a sandbox, whose text is made
	// of the rows of the sandbox and its image.
	SandboxID skerry.SandboxID
	// Runner and Payload are set for a command.
	Runner  skerry.RunnerID
	Payload []byte
}

// Runner is a host as it last reported itself.
type Runner struct {
	skerry.Runner

	Region string
	Epoch  int64 // grows with every start of the runner
	// Gone is true when the runner was silent for so long that its
	// sandboxes were given up.
	Gone bool
}

// APIKey is a key; the token itself is not kept.
type APIKey struct {
	ID        skerry.KeyID
	Name      string
	Hash      []byte // SHA-256 of the token
	CreatedAt time.Time
}
