package shim

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// ReadSpec reads the spec that Start has written to dir.
func ReadSpec(dir string) (Spec, error) {
	var spec Spec
	if err := readJSON(filepath.Join(dir, SpecFile), &spec); err != nil {
		return spec, fmt.Errorf("read spec: %w", err)
	}
	if spec.Version != SpecVersion {
		return spec, fmt.Errorf("spec has version %d, this shim knows %d", spec.Version, SpecVersion)
	}
	return spec, nil
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// writeJSON replaces path in one step, so that a reader never sees half of it.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
