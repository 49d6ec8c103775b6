package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"skerry.dev/skerry"
)

// The stand-in does at once what takes a real server its time; what is valid,
// the real table says.

func lifecycleOf(p skerry.LifecyclePolicy) skerry.Lifecycle {
	l := skerry.Lifecycle{LifecyclePolicy: p}
	now := time.Now()
	l.LastActivityAt = &now
	if p.TimeoutSeconds > 0 {
		at := now.Add(time.Duration(p.TimeoutSeconds) * time.Second)
		l.TimeoutAt = &at
	}
	if p.IdleExpirySeconds > 0 {
		at := now.Add(time.Duration(p.IdleExpirySeconds) * time.Second)
		l.IdleTimeoutAt = &at
	}
	return l
}

// changed adds an event; c.mu is held.
func (c *control) changed(sb skerry.Sandbox) {
	object, err := json.Marshal(sb)
	if err != nil {
		panic(err)
	}
	c.events = append(c.events, skerry.Event{ID: int64(len(c.events)) + 1, Type: skerry.EventSandboxStatus, Time: time.Now(),
		ObjectID: string(sb.ID), Status: string(sb.Status), Object: object})
}

// act changes a sandbox, if the action is valid.
func (c *control) act(action skerry.Action, id string, change func(*skerry.Sandbox)) (skerry.Sandbox, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sb, err := c.find(id)
	if err != nil {
		return skerry.Sandbox{}, err
	}
	if err := action.Check(*sb); err != nil {
		return skerry.Sandbox{}, err
	}
	c.log.WriteString(string(action) + " " + sb.Name + "\n")
	before := sb.Status
	change(sb)
	sb.State = sb.Status.State()
	if sb.Status != before {
		c.changed(*sb)
	}
	return *sb, nil
}

func becomes(s skerry.Status) func(*skerry.Sandbox) {
	return func(sb *skerry.Sandbox) { sb.Status = s }
}

func (c *control) StopSandbox(_ context.Context, id string) (skerry.Sandbox, error) {
	return c.act(skerry.Stop, id, becomes(skerry.StatusStopped))
}

// StartSandbox fails, and leaves what was there, for a sandbox with the label
// "start=broken".
func (c *control) StartSandbox(_ context.Context, id string) (skerry.Sandbox, error) {
	return c.act(skerry.Start, id, func(sb *skerry.Sandbox) {
		if sb.Labels["start"] == "broken" {
			sb.Reason = "no memory left"
			return
		}
		sb.Status = skerry.StatusRunning
	})
}

func (c *control) PauseSandbox(_ context.Context, id string) (skerry.Sandbox, error) {
	return c.act(skerry.Pause, id, becomes(skerry.StatusPaused))
}

func (c *control) ResumeSandbox(_ context.Context, id string) (skerry.Sandbox, error) {
	return c.act(skerry.Resume, id, becomes(skerry.StatusRunning))
}

func (c *control) ReclaimSandbox(_ context.Context, id string) (skerry.Sandbox, error) {
	return c.act(skerry.Reclaim, id, func(sb *skerry.Sandbox) {
		sb.Status = skerry.StatusDeleted
		if sb.Persistent {
			sb.Status = skerry.StatusPaused
		}
	})
}

func (c *control) ForkSandbox(_ context.Context, id string, req skerry.ForkRequest) ([]skerry.Sandbox, error) {
	source, err := c.act(skerry.Fork, id, func(*skerry.Sandbox) {})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var copies []skerry.Sandbox
	for i := range req.Count {
		sb := source
		sb.ID, sb.ForkedFrom, sb.Labels = skerry.NewSandboxID(), source.ID, req.Labels
		sb.Name = fmt.Sprintf("%s-%d", source.Name, i)
		if len(req.Names) > 0 {
			sb.Name = req.Names[i]
		}
		copies = append(copies, sb)
	}
	c.sandboxes = append(c.sandboxes, copies...)
	return copies, nil
}

func (c *control) TouchSandbox(_ context.Context, id string) (skerry.Lifecycle, error) {
	sb, err := c.act(skerry.Touch, id, func(sb *skerry.Sandbox) { sb.Lifecycle = lifecycleOf(sb.Lifecycle.LifecyclePolicy) })
	return sb.Lifecycle, err
}

func (c *control) UpdateLifecycle(_ context.Context, id string, req skerry.PolicyRequest) (skerry.Lifecycle, error) {
	var invalid error
	sb, err := c.act(skerry.UpdateLifecycle, id, func(sb *skerry.Sandbox) {
		var p skerry.LifecyclePolicy
		if p, invalid = req.Update(sb.Lifecycle.LifecyclePolicy, skerry.PolicyDefaults{}, sb.Persistent); invalid == nil {
			sb.Lifecycle = lifecycleOf(p)
		}
	})
	return sb.Lifecycle, cmp.Or(err, invalid)
}

func (c *control) CaptureImage(_ context.Context, id string, req skerry.CaptureRequest) (skerry.Image, error) {
	sb, err := c.act(skerry.CaptureImage, id, func(*skerry.Sandbox) {})
	if err != nil {
		return skerry.Image{}, err
	}
	img, err := c.addImage(req.Name, "capture")
	if err != nil || req.Name != "" {
		return img, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	last := &c.images[len(c.images)-1]
	at := time.Now().Add(time.Duration(*req.IdleExpirySeconds)*time.Second + time.Second)
	last.Anonymous, last.SourceSandbox, last.ExpiresAt, last.IdleExpirySeconds = true, sb.ID, &at, *req.IdleExpirySeconds
	return *last, nil
}

func (c *control) PushImage(ctx context.Context, id string, req skerry.PushRequest) (skerry.Image, error) {
	img, err := c.Image(ctx, id)
	if err != nil {
		return img, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log.WriteString("push " + img.Name + " " + req.Reference + "\n")
	for i := range c.images {
		if c.images[i].ID == img.ID {
			c.images[i].Push = &skerry.PushProgress{Reference: req.Reference, Status: skerry.ImageReady, Digest: "sha256:abc", TotalBytes: 1 << 20}
			if req.Reference == "localhost:1/refused" {
				c.images[i].Push.Status, c.images[i].Push.Error = skerry.ImageFailed, "connection refused"
			}
			img = c.images[i]
		}
	}
	return img, nil
}

func (c *control) CreateSnapshot(_ context.Context, id, name string) (skerry.Snapshot, error) {
	sb, err := c.act(skerry.CreateSnapshot, id, func(*skerry.Sandbox) {})
	if err != nil {
		return skerry.Snapshot{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.snapshots {
		if other.Name == name {
			return skerry.Snapshot{}, skerry.Errorf(skerry.CodeConflict, "the name %q is in use by %s", name, other.ID)
		}
	}
	snap := skerry.Snapshot{ID: skerry.NewSnapshotID(), Name: name, Status: skerry.ImageReady, Source: sb.ID, Persistent: sb.Persistent,
		Resources: sb.Resources, MemoryBytes: 64 << 20, DiskBytes: 3 << 20, CreatedAt: time.Now()}
	if name == "hopeless" {
		snap.Status, snap.Error = skerry.ImageFailed, "no disk space left"
	}
	c.snapshots = append(c.snapshots, snap)
	return snap, nil
}

func (c *control) Snapshot(_ context.Context, id string) (skerry.Snapshot, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, snap := range c.snapshots {
		if string(snap.ID) == id || snap.Name == id {
			return snap, nil
		}
	}
	return skerry.Snapshot{}, skerry.Errorf(skerry.CodeNotFound, "there is no snapshot %q", id)
}

func (c *control) ListSnapshots(context.Context) ([]skerry.Snapshot, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]skerry.Snapshot{}, c.snapshots...), nil
}

func (c *control) WaitSnapshot(ctx context.Context, id string, _ time.Duration) (skerry.Snapshot, error) {
	return c.Snapshot(ctx, id)
}

func (c *control) DeleteSnapshot(ctx context.Context, id string) error {
	snap, err := c.Snapshot(ctx, id)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.snapshots {
		if c.snapshots[i].ID == snap.ID {
			c.snapshots = append(c.snapshots[:i], c.snapshots[i+1:]...)
			break
		}
	}
	return nil
}

func (c *control) RestoreSnapshot(ctx context.Context, id string, req skerry.RestoreRequest) (skerry.Sandbox, bool, error) {
	snap, err := c.Snapshot(ctx, id)
	if err != nil {
		return skerry.Sandbox{}, false, err
	}
	var q skerry.PolicyRequest
	if req.Policy != nil {
		q = *req.Policy
	}
	p, err := q.Resolve(skerry.PolicyDefaults{}, snap.Persistent)
	if err != nil {
		return skerry.Sandbox{}, false, err
	}
	sb, created, err := c.CreateSandbox(ctx, skerry.SandboxRequest{Name: cmp.Or(req.Name, "restored"), Labels: req.Labels, Env: req.Env,
		Resources: snap.Resources, Persistent: snap.Persistent, Spot: req.Spot, Policy: p})
	sb.Snapshot = snap.ID
	return sb, created, err
}

func (c *control) Events(_ context.Context, f skerry.EventFilter) ([]skerry.Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []skerry.Event
	for _, e := range c.events {
		if e.ID > f.After && (f.ObjectID == "" || f.ObjectID == e.ObjectID) && len(list) < f.Limit {
			list = append(list, e)
		}
	}
	return list, nil
}

func (c *control) WaitEvents(ctx context.Context, f skerry.EventFilter, timeout time.Duration) ([]skerry.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		if list, err := c.Events(ctx, f); err != nil || len(list) > 0 {
			return list, err
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (c *control) LastEventID(context.Context) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.events)), nil
}
