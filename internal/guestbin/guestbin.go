// Package guestbin carries the guest agent inside the host's binary.
package guestbin

import (
	"bytes"
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// bin holds skerry-guest-<arch>.gz as built by make, and a note that lets the
// package build without them.
//
//go:embed all:bin
var bin embed.FS

// ErrMissing says that this binary was built without agents.
var ErrMissing = errors.New("this binary has no guest agent: build with make")

// Agent returns the agent, an ELF file, for a Go architecture name.
func Agent(arch string) ([]byte, error) {
	return agent(bin, arch)
}

func agent(files fs.FS, arch string) ([]byte, error) {
	packed, err := fs.ReadFile(files, "bin/skerry-guest-"+arch+".gz")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("guest agent for %s: %w", arch, ErrMissing)
	}
	if err != nil {
		return nil, err
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("guest agent for %s: %w", arch, err)
	}
	elf, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("guest agent for %s: %w", arch, err)
	}
	return elf, nil
}
