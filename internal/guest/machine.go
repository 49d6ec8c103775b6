package guest

import (
	"context"

	"skerry.dev/skerry/internal/guest/pid1"
	"skerry.dev/skerry/internal/guest/spawn"
)

// machine is the System of package control: to stop the user's processes takes
// the kernel and whoever starts new ones.
type machine struct {
	*pid1.System
	spawner *spawn.Spawner
}

// FreezeProcesses implements control.System.
func (m machine) FreezeProcesses(ctx context.Context) error {
	m.spawner.Hold()
	return m.System.FreezeProcesses(ctx)
}

// ThawProcesses implements control.System.
func (m machine) ThawProcesses() error {
	if err := m.System.ThawProcesses(); err != nil {
		return err
	}
	m.spawner.Release()
	return nil
}
