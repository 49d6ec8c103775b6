package runner

import (
	"context"

	"skerry.dev/skerry/internal/shim"
)

// Guest is the software of the guest: kernel, initramfs with the agent, and the
// platform partition with the kernel's modules.
type Guest struct {
	KernelPath   string
	InitrdPath   string
	PlatformPath string
	// Key changes whenever any of them does.
	Key string
}

// Prepared is what a host must have before a machine can start.
type Prepared struct {
	Guest  Guest
	Driver shim.DriverSpec
	// Hypervisor names version and processor arguments; templates are keyed
	// by it.
	Hypervisor string
}

// prepared returns what Config.Prepare found, and asks it again after an
// error: what was missing may have been installed meanwhile.
func (r *Runner) prepared(ctx context.Context) (Prepared, error) {
	r.prepareMu.Lock()
	defer r.prepareMu.Unlock()
	if p := r.ready.Load(); p != nil {
		return *p, nil
	}
	p, err := r.cfg.Prepare(ctx)
	if err != nil {
		return Prepared{}, err
	}
	r.ready.Store(&p)
	return p, nil
}
