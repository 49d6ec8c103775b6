package client

import (
	"context"
	"net/http"

	"skerry.dev/skerry"
)

// StopSandbox starts a warm stop: the machine ends, the disk is kept. Wait for
// StatusStopped with WaitOperation.
func (c *Client) StopSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return c.operate(ctx, idOrName, "stop")
}

// StartSandbox starts a stopped sandbox, or resumes a paused one. Wait for
// StatusRunning with WaitOperation.
func (c *Client) StartSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return c.operate(ctx, idOrName, "start")
}

// PauseSandbox starts to save memory and processes beside the disk. Wait for
// StatusPaused with WaitOperation.
func (c *Client) PauseSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return c.operate(ctx, idOrName, "pause")
}

// ResumeSandbox lets a paused sandbox go on where it was. Wait for StatusRunning
// with WaitOperation.
func (c *Client) ResumeSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return c.operate(ctx, idOrName, "resume")
}

// ReclaimSandbox takes the capacity of a spot sandbox back: a persistent one is
// paused, another deleted.
func (c *Client) ReclaimSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	return c.operate(ctx, idOrName, "reclaim")
}

func (c *Client) operate(ctx context.Context, idOrName, operation string) (skerry.Sandbox, error) {
	var sb skerry.Sandbox
	err := c.call(ctx, request{method: http.MethodPost, path: sandboxPath(idOrName) + "/" + operation}, &sb)
	return sb, err
}

// ForkSandbox starts to duplicate a sandbox and returns the copies. Wait for
// StatusRunning of each with WaitSandbox.
func (c *Client) ForkSandbox(ctx context.Context, idOrName string, req skerry.ForkRequest) ([]skerry.Sandbox, error) {
	var list struct {
		Items []skerry.Sandbox `json:"items"`
	}
	err := c.call(ctx, request{method: http.MethodPost, path: sandboxPath(idOrName) + "/fork", body: req}, &list)
	return list.Items, err
}

// Lifecycle returns the timeouts of a sandbox.
func (c *Client) Lifecycle(ctx context.Context, idOrName string) (skerry.Lifecycle, error) {
	return c.lifecycle(ctx, request{method: http.MethodGet, path: sandboxPath(idOrName) + "/lifecycle"})
}

// UpdateLifecycle changes the timeouts of a sandbox; fields that are nil keep
// their values.
func (c *Client) UpdateLifecycle(ctx context.Context, idOrName string, req skerry.PolicyRequest) (skerry.Lifecycle, error) {
	return c.lifecycle(ctx, request{method: http.MethodPatch, path: sandboxPath(idOrName) + "/lifecycle", body: req})
}

// TouchSandbox resets the idle timer of a sandbox.
func (c *Client) TouchSandbox(ctx context.Context, idOrName string) (skerry.Lifecycle, error) {
	// Twice is as good as once.
	return c.lifecycle(ctx, request{method: http.MethodPost, path: sandboxPath(idOrName) + "/touch", idempotent: true})
}

func (c *Client) lifecycle(ctx context.Context, req request) (skerry.Lifecycle, error) {
	var l skerry.Lifecycle
	err := c.call(ctx, req, &l)
	return l, err
}
