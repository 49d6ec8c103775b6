//go:build linux

// Package disktest shows file trees as text, so that two of them can be
// compared: a mounted layer, what another tool unpacked, a guest's root.
package disktest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// List returns one line for each file below root, the root included, in the
// order of their names:
//
//	"name" type mode uid:gid mtime [rdev] [links "first name"] [size sha256] [-> "target"] [xattr="value" …]
//
// Names are quoted and relative, modes octal, times in seconds with nanoseconds.
// Links is left out for one link; the first name is the first in the list that
// is the same file. Sizes of directories are left out, they are the file
// system's business. Overlayfs' own attributes are left out if the caller may see
// them at all.
func List(root string) ([]string, error) {
	l := lister{root: root, first: make(map[[2]uint64]string)}
	if err := filepath.WalkDir(root, l.visit); err != nil {
		return nil, fmt.Errorf("list %s: %w", root, err)
	}
	return l.lines, nil
}

type lister struct {
	root  string
	first map[[2]uint64]string // device and inode to first name
	lines []string
}

func (l *lister) visit(path string, _ fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	name, err := filepath.Rel(l.root, path)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	var line strings.Builder
	fmt.Fprintf(&line, "%q %s %04o %d:%d %d.%09d", name, typeName(st.Mode), st.Mode&0o7777,
		st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
	if err := l.describe(&line, path, name, &st); err != nil {
		return err
	}
	if err := appendXattrs(&line, path); err != nil {
		return err
	}
	l.lines = append(l.lines, line.String())
	return nil
}

func typeName(mode uint32) string {
	names := map[uint32]string{unix.S_IFREG: "file", unix.S_IFDIR: "dir", unix.S_IFLNK: "link",
		unix.S_IFCHR: "char", unix.S_IFBLK: "block", unix.S_IFIFO: "fifo", unix.S_IFSOCK: "socket"}
	return names[mode&unix.S_IFMT]
}

func (l *lister) describe(line *strings.Builder, path, name string, st *unix.Stat_t) error {
	typ := st.Mode & unix.S_IFMT
	if typ == unix.S_IFCHR || typ == unix.S_IFBLK {
		fmt.Fprintf(line, " %d,%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	if typ != unix.S_IFDIR && st.Nlink > 1 {
		id := [2]uint64{st.Dev, st.Ino}
		if _, ok := l.first[id]; !ok {
			l.first[id] = name
		}
		fmt.Fprintf(line, " links=%d %q", st.Nlink, l.first[id])
	}
	switch typ {
	case unix.S_IFREG:
		sum, err := digest(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(line, " %d %x", st.Size, sum)
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(line, " -> %q", target)
	}
	return nil
}

// digest returns the start of the SHA-256 sum of a file.
func digest(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return h.Sum(nil)[:12], nil
}

func appendXattrs(line *strings.Builder, path string) error {
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, list)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list attributes of %s: %w", path, err)
	}
	names := strings.FieldsFunc(string(list[:n]), func(r rune) bool { return r == 0 })
	for _, name := range sorted(names) {
		if strings.HasPrefix(name, "trusted.overlay.") {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return fmt.Errorf("attribute %s of %s: %w", name, path, err)
		}
		if n > 64 {
			fmt.Fprintf(line, " %s=%d:%x", name, n, sha256.Sum256(value[:n]))
			continue
		}
		fmt.Fprintf(line, " %s=%q", name, value[:n])
	}
	return nil
}

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}
