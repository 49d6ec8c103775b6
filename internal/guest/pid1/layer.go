package pid1

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// layersDir has one mounted directory per layer, named by partition number:
// names are short because all of them go into one mount option string, which
// the kernel limits to a page.
const layersDir = "/l"

// The variants of the platform partition, which differ in where the kernel
// modules are (see package kernel).
const (
	variantLib    = "a" // lib/modules
	variantUsrLib = "b" // usr/lib/modules, for images whose lib is a symlink
)

// layers are the mounted layers of the image.
type layers struct {
	lower  string // the overlay's lowerdir option, relative to layersDir
	docker bool   // the image can run a Docker daemon
}

func (s *System) mountLayers(ctx context.Context) error {
	var tops []string // topmost first
	for _, part := range s.boot.Layers {
		dir, err := mountPartition(ctx, part)
		if err != nil {
			return err
		}
		tops = append([]string{dir}, tops...)
	}
	platform, err := mountPartition(ctx, s.boot.Platform)
	if err != nil {
		return err
	}
	tops = append(tops, filepath.Join(platform, platformVariant(tops)))
	names := make([]string, len(tops))
	for i, dir := range tops {
		names[i] = strings.TrimPrefix(dir, layersDir+"/")
	}
	s.layers = layers{lower: strings.Join(names, ":"), docker: hasDocker(tops)}
	return nil
}

// mountPartition mounts a partition of the image disk and returns where.
func mountPartition(ctx context.Context, part int) (string, error) {
	name := strconv.Itoa(part)
	device := "/dev/vda" + name
	err := waitFor(ctx, device, func() (bool, error) {
		_, err := os.Stat(device)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return "", err
	}
	dir := filepath.Join(layersDir, name)
	m := mount{device, dir, "erofs", unix.MS_RDONLY, ""}
	if err := m.do(); err != nil {
		return "", fmt.Errorf("partition %d: %w", part, err)
	}
	return dir, nil
}

// platformVariant picks where modules have to be so that /lib/modules finds
// them: an image's lib that is a symlink would hide a directory lib below it.
func platformVariant(layers []string) string {
	for _, dir := range layers {
		info, err := os.Lstat(filepath.Join(dir, "lib"))
		switch {
		case err != nil:
			continue // this layer says nothing about lib
		case info.Mode()&fs.ModeSymlink != 0:
			return variantUsrLib
		default:
			return variantLib
		}
	}
	return variantLib
}

// hasDocker reports whether an image has a Docker daemon or its directory.
func hasDocker(layers []string) bool {
	for _, dir := range layers {
		for _, name := range []string{"usr/bin/dockerd", "usr/sbin/dockerd", "usr/local/bin/dockerd", dockerDir} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
				return true
			}
		}
	}
	return false
}
