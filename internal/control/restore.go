package control

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/store"
)

// RestoreSnapshot makes a sandbox of a memory snapshot, on the runner that has
// it; the sandbox makes its way to running by itself. It gets image, user and
// resources of the snapshot's source, but neither its labels nor its
// environment. Idempotency is as of CreateSandbox.
//
// Errors: CodeInvalid, CodeNotFound, CodeConflict for a snapshot that is not
// ready and for a name or key that is in use with other arguments,
// CodeUnavailable when its runner is not online.
func (c *Control) RestoreSnapshot(ctx context.Context, idOrName string, req skerry.RestoreRequest) (sb skerry.Sandbox, created bool, err error) {
	if req, err = req.Resolve(); err != nil {
		return skerry.Sandbox{}, false, err
	}
	for range createAttempts {
		err = c.update(ctx, func(t *txn) (err error) {
			sb, created, err = c.restoreSnapshot(ctx, t, idOrName, req)
			return err
		})
		if !errors.Is(err, store.ErrExists) {
			break
		}
	}
	if err != nil {
		return skerry.Sandbox{}, false, fmt.Errorf("restore snapshot: %w", err)
	}
	return sb, created, nil
}

func (c *Control) restoreSnapshot(ctx context.Context, t *txn, idOrName string, req skerry.RestoreRequest) (skerry.Sandbox, bool, error) {
	snapshot, err := findSnapshot(ctx, t, idOrName)
	if err != nil {
		return skerry.Sandbox{}, false, err
	}
	who := identity{key: req.IdempotencyKey, name: req.Name, digest: restoreDigest(snapshot.ID, req)}
	earlier, found, err := who.earlier(ctx, t)
	if err != nil || found {
		return earlier.Sandbox, false, err
	}
	if err := c.checkSnapshot(ctx, t, snapshot); err != nil {
		return skerry.Sandbox{}, false, err
	}
	s, err := c.restored(t, snapshot, req)
	if err != nil {
		return skerry.Sandbox{}, false, err
	}
	s.IdempotencyKey, s.ArgsDigest = who.storedKey(), who.digest
	if err := t.addSandbox(ctx, &s); err != nil {
		return skerry.Sandbox{}, false, err
	}
	return s.Sandbox, true, t.queueJob(ctx, s.ID)
}

func restoreDigest(id skerry.SnapshotID, req skerry.RestoreRequest) string {
	req.IdempotencyKey = ""
	return digestOf(struct {
		Snapshot skerry.SnapshotID
		Request  skerry.RestoreRequest
	}{id, req})
}

// checkSnapshot refuses a snapshot that cannot be restored now.
func (c *Control) checkSnapshot(ctx context.Context, r store.Reader, s store.Snapshot) error {
	if s.Status != skerry.ImageReady {
		why := "it must be ready"
		if s.Error != "" {
			why = s.Error
		}
		return skerry.Errorf(skerry.CodeConflict, "snapshot %s is %s: %s", s.Name, s.Status, why)
	}
	runner, err := r.Runner(ctx, s.Runner)
	if err != nil && !isNotFound(err) {
		return err
	}
	if err != nil || !c.runners.online(runner, c.clock.Now()) {
		return skerry.Errorf(skerry.CodeUnavailable, "runner %s, which has snapshot %s, is not online", s.Runner, s.Name)
	}
	return nil
}

// restored returns the row of a sandbox that is made of a snapshot.
func (c *Control) restored(t *txn, snapshot store.Snapshot, req skerry.RestoreRequest) (s store.Sandbox, err error) {
	persistent := snapshot.Persistent
	if req.Persistent != nil {
		persistent = *req.Persistent
	}
	if persistent && !snapshot.Persistent {
		return s, skerry.Invalid("persistent", "source", "false", "cannot be true, as snapshot %s is of an ephemeral sandbox", snapshot.Name)
	}
	var policy skerry.PolicyRequest
	if req.Policy != nil {
		policy = *req.Policy
	}
	resolved, err := policy.Resolve(c.cfg.Policy, persistent)
	if err != nil {
		return s, err
	}
	timeout, err := skerry.ResolveCreateTimeout(req.CreateTimeoutSeconds)
	if err != nil {
		return s, err
	}
	return store.Sandbox{
		Sandbox: skerry.Sandbox{
			ID: skerry.NewSandboxID(), Name: req.Name, Status: skerry.StatusQueued, Snapshot: snapshot.ID,
			Image: snapshot.Image, ImageID: snapshot.ImageID, User: snapshot.User, Resources: snapshot.Resources,
			Labels: maps.Clone(req.Labels), Env: maps.Clone(req.Env), Persistent: persistent, Spot: req.Spot,
			Lifecycle: skerry.Lifecycle{LifecyclePolicy: resolved}, Runner: snapshot.Runner, CreateDeadline: t.now.Add(timeout),
		},
		Region: c.cfg.Region, Arch: snapshot.Arch,
	}, nil
}
