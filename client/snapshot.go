package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"skerry.dev/skerry"
)

// CreateSnapshot starts to capture memory and disk of a running sandbox;
// WaitSnapshot waits for the end.
func (c *Client) CreateSnapshot(ctx context.Context, sandbox, name string) (skerry.Snapshot, error) {
	body := struct {
		Name string `json:"name"`
	}{name}
	var snap skerry.Snapshot
	err := c.call(ctx, request{method: http.MethodPost, path: sandboxPath(sandbox) + "/snapshots", body: body}, &snap)
	return snap, err
}

// Snapshot returns a snapshot by id or name.
func (c *Client) Snapshot(ctx context.Context, idOrName string) (skerry.Snapshot, error) {
	var snap skerry.Snapshot
	err := c.call(ctx, request{method: http.MethodGet, path: snapshotPath(idOrName)}, &snap)
	return snap, err
}

// Snapshots lists the snapshots.
func (c *Client) Snapshots(ctx context.Context) ([]skerry.Snapshot, error) {
	var list struct {
		Items []skerry.Snapshot `json:"items"`
	}
	err := c.call(ctx, request{method: http.MethodGet, path: "/v2/snapshots"}, &list)
	return list.Items, err
}

// WaitSnapshot waits until a snapshot is ready. One that failed is an error with
// CodeConflict. The end of the time is a *RequestTimeoutError; a timeout of 0
// waits until ctx is done.
func (c *Client) WaitSnapshot(ctx context.Context, idOrName string, timeout time.Duration) (skerry.Snapshot, error) {
	var snap skerry.Snapshot
	query := url.Values{"wait": {"ready"}}
	err := poll(ctx, timeout, func(ctx context.Context, hold time.Duration) (bool, error) {
		query.Set("timeout_seconds", formatSeconds(hold))
		snap = skerry.Snapshot{} // what an answer leaves out is not there any more
		if err := c.call(ctx, request{method: http.MethodGet, path: snapshotPath(idOrName), query: query}, &snap); err != nil {
			return false, err
		}
		if snap.Status == skerry.ImageFailed {
			return false, skerry.Errorf(skerry.CodeConflict, "snapshot %s failed: %s", snap.Name, snap.Error)
		}
		return snap.Status == skerry.ImageReady, nil
	})
	return snap, stillIs(err, "snapshot", string(snap.ID), string(snap.Status))
}

// DeleteSnapshot deletes a snapshot. Sandboxes restored from it stay.
func (c *Client) DeleteSnapshot(ctx context.Context, idOrName string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: snapshotPath(idOrName)}, nil)
}

// RestoreSnapshot creates a sandbox that resumes from a snapshot; WaitSandbox
// waits until it runs.
func (c *Client) RestoreSnapshot(ctx context.Context, idOrName string, req skerry.RestoreRequest) (skerry.Sandbox, error) {
	if req.IdempotencyKey == "" && req.Name == "" {
		req.IdempotencyKey = freshKey()
	}
	var sb skerry.Sandbox
	err := c.call(ctx, request{method: http.MethodPost, path: snapshotPath(idOrName) + "/restore", body: req, idempotent: true}, &sb)
	return sb, err
}

func snapshotPath(idOrName string) string { return "/v2/snapshots/" + url.PathEscape(idOrName) }
