// Package kernel prepares the guest's kernel on the host: it unpacks a
// distribution's package, packs the initramfs with the guest agent, and writes
// the platform layer that shows the kernel's modules inside every sandbox.
package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Kernel is a kernel image with its modules.
type Kernel struct {
	Version    string // as uname -r
	ImagePath  string // bootable image
	ModulesDir string // the directory with modules.dep
}

// The layout of a kernel's directory, as a package has it.
const (
	bootDir    = "boot"
	modulesDir = "lib/modules"
)

// Open opens a directory that Unpack made, and checks it.
func Open(dir string) (*Kernel, error) {
	entries, err := os.ReadDir(filepath.Join(dir, modulesDir))
	if err != nil {
		return nil, fmt.Errorf("open kernel: %w", err)
	}
	if len(entries) != 1 {
		return nil, fmt.Errorf("open kernel: %d versions in %s, want one", len(entries), filepath.Join(dir, modulesDir))
	}
	version := entries[0].Name()
	return New(filepath.Join(dir, bootDir, "vmlinuz-"+version), filepath.Join(dir, modulesDir, version))
}

// New returns a kernel of the user's choice: an image and the directory of its
// modules, whose name is the version and which depmod(8) has indexed. Both are
// checked.
func New(imagePath, modulesDir string) (*Kernel, error) {
	k := &Kernel{Version: filepath.Base(modulesDir), ImagePath: imagePath, ModulesDir: modulesDir}
	if err := k.check(); err != nil {
		return nil, fmt.Errorf("open kernel: %w", err)
	}
	return k, nil
}

var errNotBootable = errors.New("neither an x86 bzImage nor an arm64 Image")

func (k *Kernel) check() error {
	f, err := os.Open(k.ImagePath)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, 0x210)
	if _, err := f.ReadAt(head, 0); err != nil {
		return fmt.Errorf("%s: %w", k.ImagePath, err)
	}
	// Linux Documentation/x86/boot.rst and Documentation/arm64/booting.rst.
	x86, arm64 := bytes.Equal(head[0x202:0x206], []byte("HdrS")), bytes.Equal(head[56:60], []byte("ARM\x64"))
	if !x86 && !arm64 {
		return fmt.Errorf("%s: %w", k.ImagePath, errNotBootable)
	}
	_, err = k.bootModules()
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("modules of %s are not indexed, run depmod: %w", k.Version, err)
	}
	return err
}
