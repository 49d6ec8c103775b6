package app

import (
	"context"
	"os"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/runner/cgroup"
)

// Doctor checks what a server with this configuration needs.
func Doctor(ctx context.Context, cfg Config) ([]skerry.Check, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, err
	}
	cfg.cgroups = cgroup.Open("doctor")
	defer cfg.cgroups.Close()
	return newSoftware(cfg).checks(ctx), nil
}
