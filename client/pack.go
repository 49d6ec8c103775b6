package client

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Pack writes a tar stream of the directory dir, names relative to it, owners
// left out. Links are kept as links. Sockets, devices and pipes are skipped and
// passed to skipped, which may be nil.
func Pack(dir string, w io.Writer, skipped func(name string)) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	tw := tar.NewWriter(w)
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name == "." {
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if t := info.Mode().Type(); t&^(fs.ModeDir|fs.ModeSymlink) != 0 {
			if skipped != nil {
				skipped(name)
			}
			return nil
		}
		return packEntry(root, tw, name, info)
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

func packEntry(root *os.Root, tw *tar.Writer, name string, info fs.FileInfo) error {
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if target, err = root.Readlink(filepath.FromSlash(name)); err != nil {
			return err
		}
	}
	hdr, err := tar.FileInfoHeader(info, filepath.ToSlash(target))
	if err != nil {
		return err
	}
	hdr.Name = name
	if info.IsDir() {
		hdr.Name += "/"
	}
	hdr.Uid, hdr.Gid, hdr.Uname, hdr.Gname = 0, 0, "", ""
	hdr.Format = tar.FormatPAX // any name, size and time
	if err := tw.WriteHeader(hdr); err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	f, err := root.Open(filepath.FromSlash(name))
	if err != nil {
		return err
	}
	defer f.Close()
	// The header has promised a size: a file that grew is cut there.
	if _, err := io.CopyN(tw, f, info.Size()); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	return nil
}
