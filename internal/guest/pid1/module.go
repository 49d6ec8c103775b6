package pid1

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// modulesDir of the initramfs holds the modules needed at boot, their names
// numbered in the order of loading (see package kernel).
const modulesDir = "/modules"

func (s *System) loadModules(context.Context) error {
	entries, err := os.ReadDir(modulesDir)
	if err != nil {
		return err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	slices.Sort(names)
	for _, name := range names {
		if err := loadModule(filepath.Join(modulesDir, name)); err != nil {
			return err
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", loadFlags(path)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load %s: %w", path, err)
	}
	return nil
}
