package qmp

import (
	"context"
	"os"
)

// The commands this project uses, as QEMU's "QMP Reference Manual" defines
// them. Errors are those of Execute.

// Cont lets the virtual processors run.
func (c *Client) Cont(ctx context.Context) error { return c.Execute(ctx, "cont", nil, nil) }

// Stop halts the virtual processors.
func (c *Client) Stop(ctx context.Context) error { return c.Execute(ctx, "stop", nil, nil) }

// Status is the state of the machine: "running", "paused", "inmigrate", …
func (c *Client) Status(ctx context.Context) (string, error) {
	var out struct {
		Status string `json:"status"`
	}
	err := c.Execute(ctx, "query-status", nil, &out)
	return out.Status, err
}

// SetMigrationCapabilities switches migration capabilities on.
func (c *Client) SetMigrationCapabilities(ctx context.Context, names ...string) error {
	type capability struct {
		Capability string `json:"capability"`
		State      bool   `json:"state"`
	}
	caps := make([]capability, len(names))
	for i, n := range names {
		caps[i] = capability{n, true}
	}
	return c.Execute(ctx, "migrate-set-capabilities", map[string]any{"capabilities": caps}, nil)
}

// Migrate starts to write the machine's state to uri; it returns when that has
// begun. The end is told by MIGRATION events and MigrationStatus.
func (c *Client) Migrate(ctx context.Context, uri string) error {
	return c.Execute(ctx, "migrate", map[string]any{"uri": uri}, nil)
}

// MigrateIncoming starts to read the machine's state from uri.
func (c *Client) MigrateIncoming(ctx context.Context, uri string) error {
	return c.Execute(ctx, "migrate-incoming", map[string]any{"uri": uri}, nil)
}

// MigrationStatus is "completed", "failed", "active", …, and QEMU's reason for
// a failure.
func (c *Client) MigrationStatus(ctx context.Context) (status, reason string, err error) {
	var out struct {
		Status    string `json:"status"`
		ErrorDesc string `json:"error-desc"`
	}
	err = c.Execute(ctx, "query-migrate", nil, &out)
	return out.Status, out.ErrorDesc, err
}

// GetFD hands f to QEMU under a name that fd: addresses can use.
func (c *Client) GetFD(ctx context.Context, name string, f *os.File) error {
	return c.Execute(ctx, "getfd", map[string]any{"fdname": name}, nil, f)
}

// AddFD adds f to the descriptor set that /dev/fdset/<set> opens.
func (c *Client) AddFD(ctx context.Context, set int, f *os.File) error {
	return c.Execute(ctx, "add-fd", map[string]any{"fdset-id": set}, nil, f)
}

// BlockdevAdd makes a block node; node holds its BlockdevOptions.
func (c *Client) BlockdevAdd(ctx context.Context, node map[string]any) error {
	return c.Execute(ctx, "blockdev-add", node, nil)
}

// BlockdevDel removes a block node that nothing uses.
func (c *Client) BlockdevDel(ctx context.Context, node string) error {
	return c.Execute(ctx, "blockdev-del", map[string]any{"node-name": node}, nil)
}

// BlockResize sets the size of a block node and tells the guest.
func (c *Client) BlockResize(ctx context.Context, node string, sizeBytes int64) error {
	return c.Execute(ctx, "block_resize", map[string]any{"node-name": node, "size": sizeBytes}, nil)
}

// Get reads a property of an object in QEMU's object tree into out.
func (c *Client) Get(ctx context.Context, path, property string, out any) error {
	return c.Execute(ctx, "qom-get", map[string]any{"path": path, "property": property}, out)
}

// Set changes a property of an object in QEMU's object tree.
func (c *Client) Set(ctx context.Context, path, property string, value any) error {
	return c.Execute(ctx, "qom-set", map[string]any{"path": path, "property": property, "value": value}, nil)
}
