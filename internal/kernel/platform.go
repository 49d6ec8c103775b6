package kernel

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// The platform layer has the modules twice, as hard links: below lib for images
// whose lib is a directory and below usr/lib for those whose lib is a symlink
// to it. The agent uses the one that fits (package pid1).
var platformVariants = []struct{ dir, lib string }{
	{"a", "lib"},
	{"b", "usr/lib"},
}

// mountPoints are the directories that every system has. The platform is the
// lowest layer, so an image's own directories win.
var mountPoints = []struct {
	name string
	mode int64
}{
	{"dev", 0o755}, {"etc", 0o755}, {"proc", 0o755}, {"run", 0o755}, {"sys", 0o755}, {"tmp", 0o1777},
}

// boundFiles are empty files the agent binds the sandbox's own over.
var boundFiles = []string{"etc/hostname", "etc/hosts", "etc/machine-id", "etc/resolv.conf"}

// WritePlatformTar writes the platform layer of a kernel as a tar. Equal input
// gives equal bytes.
func WritePlatformTar(k *Kernel, w io.Writer) error {
	p := &platform{kernel: k, tar: tar.NewWriter(w), first: make(map[string]string)}
	for _, v := range platformVariants {
		if err := p.variant(v.dir, v.lib); err != nil {
			return fmt.Errorf("write platform layer: %w", err)
		}
	}
	if err := p.tar.Close(); err != nil {
		return fmt.Errorf("write platform layer: %w", err)
	}
	return nil
}

type platform struct {
	kernel *Kernel
	tar    *tar.Writer
	first  map[string]string // a module's path to the entry that has its content
}

func (p *platform) variant(dir, lib string) error {
	if err := p.dir(dir, 0o755); err != nil {
		return err
	}
	for _, m := range mountPoints {
		if err := p.dir(path.Join(dir, m.name), m.mode); err != nil {
			return err
		}
	}
	for _, name := range boundFiles {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: path.Join(dir, name), Mode: 0o644}
		if err := p.tar.WriteHeader(h); err != nil {
			return err
		}
	}
	at := dir
	for part := range strings.SplitSeq(path.Join(lib, "modules", p.kernel.Version), "/") {
		at = path.Join(at, part)
		if err := p.dir(at, 0o755); err != nil {
			return err
		}
	}
	return p.modules(at)
}

func (p *platform) dir(name string, mode int64) error {
	return p.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode})
}

// modules adds the module tree at a path of the tar. WalkDir's order is
// lexical, so the result is reproducible.
func (p *platform) modules(at string) error {
	return filepath.WalkDir(p.kernel.ModulesDir, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(p.kernel.ModulesDir, file)
		if err != nil || rel == "." {
			return err
		}
		name := path.Join(at, filepath.ToSlash(rel))
		switch {
		case d.IsDir():
			return p.dir(name, 0o755)
		case !d.Type().IsRegular():
			return nil // build and source lead to headers that are not here
		}
		if first, ok := p.first[rel]; ok {
			return p.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: first, Mode: 0o644})
		}
		p.first[rel] = name
		return p.file(name, file)
	})
}

func (p *platform) file(name, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	err = p.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: 0o644})
	if err != nil {
		return err
	}
	_, err = io.Copy(p.tar, f)
	return err
}
