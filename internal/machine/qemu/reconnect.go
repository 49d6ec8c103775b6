package qemu

import (
	"context"
	"os"
)

// Reconnect implements machine.Machine.
func (m *instance) Reconnect(ctx context.Context, control *os.File) error {
	return m.request(ctx, "reconnect port", func(ctx context.Context) error {
		if err := m.monitor.GetFD(ctx, controlDevice, control); err != nil {
			return err
		}
		return m.monitor.ChangeSocket(ctx, controlDevice, controlDevice)
	})
}
