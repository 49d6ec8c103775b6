package qemu

import (
	"context"
	"os"

	"skerry.dev/skerry"
)

// The names of what SetScratch makes.
const (
	swappedNode = "scratch-real"
	swappedSet  = 3
)

// SetScratch replaces the placeholder behind the writable disk of a paused
// machine. The guest sees the new size as soon as it runs; requests beyond it
// fail. It works once, and not on a machine that was started with a disk.
func (m *instance) SetScratch(ctx context.Context, f *os.File) error {
	if _, err := scratchSize(f); err != nil {
		return err
	}
	m.mu.Lock()
	again := m.swapped
	m.swapped = true
	m.mu.Unlock()
	if again {
		return skerry.Errorf(skerry.CodeConflict, "set scratch disk: the machine has one")
	}
	return m.request(ctx, "set scratch disk", func(ctx context.Context) error {
		if err := m.swapScratch(ctx, f); err != nil {
			return err
		}
		if err := m.keepScratch(f, swappedNode); err != nil {
			return err
		}
		return m.announceScratch(ctx, swappedNode, f)
	})
}

// keepScratch remembers the writable disk, for copies of it.
func (m *instance) keepScratch(f *os.File, node string) error {
	own, err := reopen(f)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.scratch = &scratchDisk{file: own, node: node}
	return nil
}

// scratchDisk is the writable disk of a machine.
type scratchDisk struct {
	file *os.File // only read from
	node string   // QEMU's block node
}

// disk is the writable disk, or nil.
func (m *instance) disk() *scratchDisk {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.scratch
}

func (m *instance) swapScratch(ctx context.Context, f *os.File) error {
	if err := m.monitor.AddFD(ctx, swappedSet, f); err != nil {
		return err
	}
	err := m.monitor.BlockdevAdd(ctx, map[string]any{
		"driver": "raw", "node-name": swappedNode, "discard": "unmap",
		"file": map[string]any{"driver": "file", "filename": fdset(swappedSet), "locking": "off", "discard": "unmap"},
	})
	if err != nil {
		return err
	}
	return m.monitor.Set(ctx, "/machine/peripheral/"+scratchDevice, "drive", swappedNode)
}

// announceScratch makes the guest read the disk's size, which in its memory is
// still the placeholder's: a resize to the size it has already raises the
// device's configuration interrupt.
func (m *instance) announceScratch(ctx context.Context, node string, f *os.File) error {
	size, err := scratchSize(f)
	if err != nil {
		return err
	}
	return m.monitor.BlockResize(ctx, node, size)
}
