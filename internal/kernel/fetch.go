package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
)

// packageName is the kernel that a meta package stands for.
var packageName = regexp.MustCompile(`(?m)^\s*Depends: (linux-image-[a-z0-9.+-]+)`)

// Fetch downloads the current kernel package of the distribution (Debian
// linux-image-cloud-<arch>) into dir with apt-get, which needs no root for that,
// and returns its path. arch is a Go architecture name; both of ours are spelled
// the same by Debian.
func Fetch(ctx context.Context, arch, dir string) (string, error) {
	meta := "linux-image-cloud-" + arch
	out, err := command(ctx, dir, "apt-cache", "depends", "--important", meta)
	if err != nil {
		return "", fmt.Errorf("fetch kernel: %w", err)
	}
	match := packageName.FindSubmatch(out)
	if match == nil {
		return "", fmt.Errorf("fetch kernel: apt knows no package behind %s: run apt-get update", meta)
	}
	tmp, err := os.MkdirTemp(dir, ".fetch-")
	if err != nil {
		return "", fmt.Errorf("fetch kernel: %w", err)
	}
	defer os.RemoveAll(tmp)
	if _, err := command(ctx, tmp, "apt-get", "download", string(match[1])); err != nil {
		return "", fmt.Errorf("fetch kernel: %w", err)
	}
	found, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(found) != 1 {
		return "", errors.Join(fmt.Errorf("fetch kernel: apt-get left %d packages, want one", len(found)), err)
	}
	deb := filepath.Join(dir, filepath.Base(found[0]))
	if err := os.Rename(found[0], deb); err != nil {
		return "", fmt.Errorf("fetch kernel: %w", err)
	}
	return deb, nil
}

func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}
