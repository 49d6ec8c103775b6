package qmp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
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

// RemoveFD closes what AddFD added to a set; what QEMU works with stays open.
func (c *Client) RemoveFD(ctx context.Context, set int) error {
	return c.Execute(ctx, "remove-fd", map[string]any{"fdset-id": set}, nil)
}

// SaveDevices writes the state of all devices, without memory and disks, to a
// file. The disks stay QEMU's.
func (c *Client) SaveDevices(ctx context.Context, filename string) error {
	return c.Execute(ctx, "xen-save-devices-state", map[string]any{"filename": filename, "live": false}, nil)
}

// Human runs a command of the monitor for people and returns its text.
func (c *Client) Human(ctx context.Context, command string) (string, error) {
	var text string
	err := c.Execute(ctx, "human-monitor-command", map[string]any{"command-line": command}, &text)
	return text, err
}

// RAMBlock is a block of the machine's memory.
type RAMBlock struct {
	Name      string
	UsedBytes int64
}

// RAMBlocks lists the machine's memory. QEMU shows it as a table.
func (c *Client) RAMBlocks(ctx context.Context) ([]RAMBlock, error) {
	var out struct {
		Text string `json:"human-readable-text"`
	}
	if err := c.Execute(ctx, "x-query-ramblock", nil, &out); err != nil {
		return nil, err
	}
	return parseRAMBlocks(out.Text)
}

// parseRAMBlocks reads lines like "pc.bios    4 KiB  0x0000000800000000
// 0x0000000000040000 0x0000000000040000": name, page size, offset, used, total.
func parseRAMBlocks(text string) ([]RAMBlock, error) {
	var blocks []RAMBlock
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 6 || f[0] == "Block" {
			continue
		}
		used, err := strconv.ParseInt(f[4], 0, 64)
		if err != nil {
			return nil, fmt.Errorf("x-query-ramblock: %w", err)
		}
		blocks = append(blocks, RAMBlock{Name: f[0], UsedBytes: used})
	}
	if len(blocks) == 0 {
		return nil, errors.New("x-query-ramblock: no memory")
	}
	return blocks, nil
}

// AddBitmap begins to note in a bitmap of a block node what is written to it.
func (c *Client) AddBitmap(ctx context.Context, node, name string) error {
	return c.Execute(ctx, "block-dirty-bitmap-add", map[string]any{"node": node, "name": name, "persistent": false}, nil)
}

// RemoveBitmap removes a bitmap.
func (c *Client) RemoveBitmap(ctx context.Context, node, name string) error {
	return c.Execute(ctx, "block-dirty-bitmap-remove", map[string]any{"node": node, "name": name}, nil)
}

// Backup starts a job that copies what a bitmap notes of a node to another, as
// it is now; before the guest changes it later, it is copied. The job stays
// until it is dismissed.
func (c *Client) Backup(ctx context.Context, job, node, target, bitmap string) error {
	return c.Execute(ctx, "blockdev-backup", map[string]any{
		"job-id": job, "device": node, "target": target,
		"sync": "bitmap", "bitmap": bitmap, "bitmap-mode": "never", "auto-dismiss": false,
	}, nil)
}

// Job is a background job of QEMU.
type Job struct {
	ID     string `json:"id"`
	Status string `json:"status"` // "running", "concluded", …
	Error  string `json:"error"`  // why it did not succeed, or ""
}

// Jobs lists the jobs that are not dismissed.
func (c *Client) Jobs(ctx context.Context) ([]Job, error) {
	var jobs []Job
	err := c.Execute(ctx, "query-jobs", nil, &jobs)
	return jobs, err
}

// CancelJob ends a job early; it concludes some time later.
func (c *Client) CancelJob(ctx context.Context, id string) error {
	return c.Execute(ctx, "job-cancel", map[string]any{"id": id}, nil)
}

// DismissJob forgets a job that has concluded.
func (c *Client) DismissJob(ctx context.Context, id string) error {
	return c.Execute(ctx, "job-dismiss", map[string]any{"id": id}, nil)
}

// ChangeSocket gives a character device a connected socket, handed over with
// GetFD under the name fd.
func (c *Client) ChangeSocket(ctx context.Context, chardev, fd string) error {
	return c.Execute(ctx, "chardev-change", map[string]any{"id": chardev, "backend": map[string]any{
		"type": "socket", "data": map[string]any{"server": false, "addr": map[string]any{"type": "fd", "data": map[string]any{"str": fd}}},
	}}, nil)
}
