// Package programs carries the other programs inside the host's binary, so
// that there is one file to install.
package programs

import (
	"bytes"
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// bin holds skerry-guest-<arch>.gz and skerry-shim-<arch>.gz as built by make,
// and a note that lets the package build without them.
//
//go:embed all:bin
var bin embed.FS

// ErrMissing says that this binary was built without a program.
var ErrMissing = errors.New("this binary does not carry it: build with make")

// Guest returns the guest agent, an ELF file, for a Go architecture name.
func Guest(arch string) ([]byte, error) { return program(bin, "skerry-guest-"+arch) }

// Shim returns the shim, an ELF file, for a Go architecture name.
func Shim(arch string) ([]byte, error) { return program(bin, "skerry-shim-"+arch) }

func program(files fs.FS, name string) ([]byte, error) {
	packed, err := fs.ReadFile(files, "bin/"+name+".gz")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, ErrMissing)
	}
	if err != nil {
		return nil, err
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	elf, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return elf, nil
}
