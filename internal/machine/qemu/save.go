package qemu

import (
	"context"
	"os"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
)

// Save implements machine.Machine.
func (m *instance) Save(context.Context, machine.SaveRequest) (machine.Saved, error) {
	return machine.Saved{}, skerry.Errorf(skerry.CodeUnsupported, "save: not in this build")
}

// CopyScratch implements machine.Machine.
func (m *instance) CopyScratch(context.Context, *os.File) (machine.DiskCopy, error) {
	return nil, skerry.Errorf(skerry.CodeUnsupported, "copy scratch disk: not in this build")
}

// Reconnect implements machine.Machine.
func (m *instance) Reconnect(context.Context, *os.File) error {
	return skerry.Errorf(skerry.CodeUnsupported, "reconnect: not in this build")
}
