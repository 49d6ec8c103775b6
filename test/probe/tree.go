package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// tree prints a line for every entry below a directory: tree ROOT [SKIP…].
// Entries below a skipped name, relative to ROOT, are left out; a line says all
// that an image can say of a file.
func tree(args []string) error {
	root, skip := args[0], args[1:]
	type inode struct{ dev, ino uint64 }
	names := map[inode][]string{}
	type line struct{ name, text string }
	var lines []line
	inodes := map[string]inode{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if slices.Contains(skip, name) {
			if info, err := os.Lstat(path); err == nil && info.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		text, err := describe(path, &st)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		lines = append(lines, line{name, text})
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			inodes[name] = inode{st.Dev, st.Ino}
			names[inodes[name]] = append(names[inodes[name]], name)
		}
		return nil
	})
	for _, l := range lines {
		// The names that share an inode say more than its link count.
		if same := names[inodes[l.name]]; len(same) > 1 {
			slices.Sort(same)
			l.text += fmt.Sprintf(" same=%q", same)
		}
		fmt.Printf("%q %s\n", l.name, l.text)
	}
	return err
}

func describe(path string, st *unix.Stat_t) (string, error) {
	text := fmt.Sprintf("mode=%o uid=%d gid=%d", st.Mode, st.Uid, st.Gid)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
	case unix.S_IFREG:
		sum, err := digest(path)
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf(" size=%d nlink=%d sha256=%s", st.Size, st.Nlink, sum)
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf(" target=%q", target)
	default:
		text += fmt.Sprintf(" rdev=%d:%d", unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev)))
	}
	attrs, err := xattrs(path)
	return text + attrs, err
}

func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

func xattrs(path string) (string, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	if err != nil {
		return "", fmt.Errorf("list extended attributes: %w", err)
	}
	names := strings.FieldsFunc(string(buf[:n]), func(r rune) bool { return r == 0 })
	slices.Sort(names)
	var text strings.Builder
	for _, name := range names {
		n, err := unix.Lgetxattr(path, name, buf)
		if err != nil {
			return "", fmt.Errorf("extended attribute %s: %w", name, err)
		}
		fmt.Fprintf(&text, " %s=%x", name, buf[:n])
	}
	return text.String(), nil
}
