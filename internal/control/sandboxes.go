package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

// createAttempts bounds how often a create that clashed with another one looks
// again who was there first.
const createAttempts = 3

// CreateSandbox records a sandbox, which then makes its way to running by
// itself. The second result is false when an earlier create with the same
// idempotency key, or the same name, and the same arguments made it.
//
// Errors: CodeInvalid when no image is named and none is the default,
// CodeNotFound for an unknown image, CodeConflict for an image that is not
// ready and for a name or key that is in use with other arguments,
// CodeUnavailable when no runner is online.
func (c *Control) CreateSandbox(ctx context.Context, req skerry.SandboxRequest) (sb skerry.Sandbox, created bool, err error) {
	for range createAttempts {
		err = c.update(ctx, func(t *txn) (err error) {
			sb, created, err = c.createSandbox(ctx, t, req)
			return err
		})
		if !errors.Is(err, store.ErrExists) {
			break
		}
	}
	if err != nil {
		return skerry.Sandbox{}, false, fmt.Errorf("create sandbox: %w", err)
	}
	return sb, created, nil
}

func (c *Control) createSandbox(ctx context.Context, t *txn, req skerry.SandboxRequest) (skerry.Sandbox, bool, error) {
	who := identity{key: req.IdempotencyKey, digest: argumentsDigest(req)}
	if req.NamedByCaller {
		who.name = req.Name
	}
	earlier, found, err := who.earlier(ctx, t)
	if err != nil || found {
		return earlier.Sandbox, false, err
	}
	image, err := imageForCreate(ctx, t, req.Image)
	if err != nil {
		return skerry.Sandbox{}, false, err
	}
	if err := c.checkRunner(ctx, t); err != nil {
		return skerry.Sandbox{}, false, err
	}
	s := store.Sandbox{
		Sandbox: skerry.Sandbox{
			ID: skerry.NewSandboxID(), Name: req.Name, Status: skerry.StatusQueued,
			Image: req.Image, ImageID: image.ID, User: req.User, Env: maps.Clone(req.Env), Labels: maps.Clone(req.Labels), Resources: req.Resources,
			Persistent: req.Persistent, Spot: req.Spot, Lifecycle: skerry.Lifecycle{LifecyclePolicy: req.Policy},
			CreateDeadline: t.now.Add(req.CreateTimeout),
		},
		Region: c.cfg.Region, Arch: c.cfg.Arch, IdempotencyKey: who.storedKey(), ArgsDigest: who.digest,
	}
	if s.Image == "" {
		s.Image = image.Name
	}
	if s.User == "" {
		s.User = image.Config.DefaultUser()
	}
	if err := t.addSandbox(ctx, &s); err != nil {
		return skerry.Sandbox{}, false, err
	}
	if err := t.imageUsed(ctx, image); err != nil {
		return skerry.Sandbox{}, false, err
	}
	return s.Sandbox, true, t.queueJob(ctx, s.ID)
}

// addSandbox writes a new sandbox, and sets what each one has.
func (t *txn) addSandbox(ctx context.Context, s *store.Sandbox) error {
	s.State, s.CreatedAt, s.UpdatedAt, s.Version = s.Status.State(), t.now, t.now, 1
	s.Lifecycle.LastActivityAt = &t.now
	if s.Name == "" {
		s.Name = generateName()
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	s.Labels[skerry.NameLabel] = s.Name
	schedule(s)
	if err := t.InsertSandbox(ctx, *s); err != nil {
		return err
	}
	t.wakeBy(s.CreateDeadline)
	t.sandboxes = append(t.sandboxes, s.Sandbox)
	return t.logSandbox(ctx, skerry.EventSandboxStatus, s)
}

// queueJob has the create of a sandbox published.
func (t *txn) queueJob(ctx context.Context, id skerry.SandboxID) error {
	t.outbox = true
	return t.AddOutbox(ctx, store.OutboxEntry{SandboxID: id})
}

// identity is what tells a create that is repeated: the key, or the name that
// the caller gave ("Linux Sandboxes" page, parameter "idempotency_key"), and what
// it asks for. Key and name can be "".
type identity struct{ key, name, digest string }

// storedKey is the given key, or made of the name if that was given, or "".
func (i identity) storedKey() string {
	switch {
	case i.key != "":
		return "key:" + i.key
	case i.name != "":
		return "name:" + i.name
	default:
		return ""
	}
}

// earlier returns the sandbox that a create made before which this one repeats.
// A sandbox that has the same key or name and is another, or is being deleted,
// is an error of CodeConflict.
func (i identity) earlier(ctx context.Context, r store.Reader) (s store.Sandbox, found bool, err error) {
	s, err = i.find(ctx, r)
	switch {
	case isNotFound(err):
		return s, false, nil
	case err != nil:
		return s, false, err
	case s.ArgsDigest != i.digest:
		return s, true, skerry.Errorf(skerry.CodeConflict, "sandbox %s (%s) was created with the same name or idempotency key and other arguments; delete it first", s.Name, s.ID)
	case s.Status == skerry.StatusDeleting:
		return s, true, skerry.Errorf(skerry.CodeConflict, "sandbox %s (%s) with the same name or idempotency key is being deleted; wait until it is deleted", s.Name, s.ID)
	}
	return s, true, nil
}

// find returns the sandbox that is not deleted and has the key, or else the
// name.
func (i identity) find(ctx context.Context, r store.Reader) (store.Sandbox, error) {
	if key := i.storedKey(); key != "" {
		if s, err := r.SandboxByKey(ctx, key); !isNotFound(err) {
			return s, err
		}
	}
	if i.name == "" {
		return store.Sandbox{}, store.ErrNotFound
	}
	s, err := r.SandboxByName(ctx, i.name)
	if err == nil && s.Status == skerry.StatusDeleted {
		return store.Sandbox{}, store.ErrNotFound
	}
	return s, err
}

// argumentsDigest tells whether two creates ask for the same.
func argumentsDigest(req skerry.SandboxRequest) string {
	if !req.NamedByCaller {
		req.Name = ""
	}
	req.IdempotencyKey = ""
	return digestOf(req)
}

func digestOf(request any) string {
	text, err := json.Marshal(request) // maps are written in the order of their keys
	if err != nil {
		panic("control: encode create: " + err.Error()) // holds only strings and finite numbers
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// findSandbox finds a sandbox by id or name.
func findSandbox(ctx context.Context, r store.Reader, idOrName string) (s store.Sandbox, err error) {
	if id := skerry.SandboxID(idOrName); id.Valid() {
		s, err = r.Sandbox(ctx, id)
	} else {
		s, err = r.SandboxByName(ctx, idOrName)
	}
	if errors.Is(err, store.ErrNotFound) {
		return s, skerry.Errorf(skerry.CodeNotFound, "no sandbox %q", idOrName)
	}
	return s, err
}

// Sandbox finds a sandbox by id or name. A name means the sandbox that has it
// now or, when that was deleted, had it last. Errors: CodeNotFound.
func (c *Control) Sandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	var s store.Sandbox
	err := c.store.View(ctx, func(r store.Reader) (err error) {
		s, err = findSandbox(ctx, r, idOrName)
		return err
	})
	if err != nil {
		return skerry.Sandbox{}, fmt.Errorf("get sandbox: %w", err)
	}
	return s.Sandbox, nil
}

// ListSandboxes returns a page of sandboxes, newest first. A page can be
// shorter than its limit although another one follows. Errors: CodeInvalid.
func (c *Control) ListSandboxes(ctx context.Context, filter skerry.SandboxFilter) (skerry.SandboxPage, error) {
	var page store.SandboxPage
	err := c.store.View(ctx, func(r store.Reader) (err error) {
		page, err = r.Sandboxes(ctx, filter)
		return err
	})
	if err != nil {
		return skerry.SandboxPage{}, fmt.Errorf("list sandboxes: %w", err)
	}
	items := make([]skerry.Sandbox, 0, len(page.Items))
	for _, s := range page.Items {
		items = append(items, s.Sandbox)
	}
	return skerry.SandboxPage{Items: items, NextCursor: page.Next}, nil
}

// WaitSandbox returns the sandbox once it has one of the statuses, can no
// longer reach any of them, or the time is over; the caller tells these apart
// by the status. If a stop, start, pause or resume is under way, the wait ends
// with it, so that one that did not work is not waited for. Errors: CodeNotFound, CodeUnavailable at Close.
func (c *Control) WaitSandbox(ctx context.Context, idOrName string, until []skerry.Status, timeout time.Duration) (skerry.Sandbox, error) {
	var operation skerry.Action // that was under way at first
	settled := func(s skerry.Sandbox) bool {
		return slices.Contains(until, s.Status) || changesStatus(operation) && s.Operation != operation ||
			!slices.ContainsFunc(until, func(u skerry.Status) bool { return s.Status.CanReach(u, s.Persistent) })
	}
	s, err := c.Sandbox(ctx, idOrName)
	operation = s.Operation
	if err != nil || settled(s) || timeout <= 0 {
		return s, err
	}
	return waitFor(ctx, c, c.sandboxes, s.ID, timeout, c.Sandbox, settled)
}

var errStopping = skerry.Errorf(skerry.CodeUnavailable, "the server is stopping")

// DeleteSandbox starts the teardown of a sandbox in whatever state it is, and
// returns it; deleting again changes nothing. A sandbox that no runner has is
// deleted at once. Otherwise it is deleting until its runner has removed
// everything, or is given up for gone (Config.LostAfter); the command to remove
// it stays queued for a runner that comes back. Errors: CodeNotFound.
func (c *Control) DeleteSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	var s store.Sandbox
	err := c.update(ctx, func(t *txn) (err error) {
		if s, err = findSandbox(ctx, t, idOrName); err != nil {
			return err
		}
		return c.deleteSandbox(ctx, t, &s)
	})
	if err != nil {
		return skerry.Sandbox{}, fmt.Errorf("delete sandbox: %w", err)
	}
	return s.Sandbox, nil
}

func (c *Control) deleteSandbox(ctx context.Context, t *txn, s *store.Sandbox) error {
	if !s.Status.CanBecome(skerry.StatusDeleting, s.Persistent) {
		return nil // is being deleted, or is deleted
	}
	end := skerry.StatusDeleted
	if s.Machine != "" {
		if err := t.deleteMachine(ctx, s.Runner, s.ID, s.Machine); err != nil {
			return err
		}
		runner, err := t.Runner(ctx, s.Runner)
		if err = ignoreNotFound(err); err != nil {
			return err
		}
		if !runner.Gone {
			end = skerry.StatusDeleting
		}
	}
	return c.end(ctx, t, s, end)
}

// end moves s to deleting or deleted.
func (c *Control) end(ctx context.Context, t *txn, s *store.Sandbox, to skerry.Status) error {
	if to == skerry.StatusDeleted {
		t.wakeBy(t.now.Add(c.cfg.Retention))
		if err := t.imageUnused(ctx, s.ImageID); err != nil {
			return err
		}
	}
	return t.move(ctx, s, to)
}
