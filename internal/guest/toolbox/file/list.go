package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"skerry.dev/skerry"
)

// maxEntries bounds the entries that a list reads of one directory.
const maxEntries = 50_000

// MaxDepth bounds the depth of a list.
const MaxDepth = 64

// List calls yield for each file below a directory, down to depth levels (1:
// its own entries), each directory before its entries, by name. Symbolic links
// are not followed. Directories further down that cannot be read have no
// entries. It stops with the first error of yield.
func (f *Files) List(path string, depth int, yield func(skerry.FileInfo) error) error {
	names, err := f.names()
	if err != nil {
		return err
	}
	return f.User.Do(func() error { return listDir(names, path, depth, yield) })
}

func listDir(names *nameTable, path string, depth int, yield func(skerry.FileInfo) error) error {
	entries, err := readDir(path)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		child := filepath.Join(path, entry.Name())
		if err := yield(names.describe(child, info)); err != nil {
			return err
		}
		if depth > 1 && info.IsDir() {
			err := listDir(names, child, depth-1, yield)
			if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// readDir returns a directory's entries by name.
func readDir(path string) ([]fs.DirEntry, error) {
	dir, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(entries) > maxEntries {
		return nil, &fs.PathError{Op: "list", Path: path, Err: fmt.Errorf("%w, more than %d", ErrTooMany, maxEntries)}
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// nameTable gives owners their names.
type nameTable struct{ users, groups map[uint32]string }

func (f *Files) names() (*nameTable, error) {
	users, groups, err := f.Users.Names()
	if err != nil {
		return nil, fmt.Errorf("read user database: %w", err)
	}
	return &nameTable{users, groups}, nil
}

func (n *nameTable) describe(path string, info fs.FileInfo) skerry.FileInfo {
	out := skerry.FileInfo{
		Name: info.Name(), Path: path, IsDir: info.IsDir(), Size: info.Size(),
		Mode: info.Mode().String(), Permissions: fmt.Sprintf("%04o", bitsOf(info.Mode())),
		ModTime: info.ModTime().UTC().Format(time.RFC3339Nano), ModifiedAt: info.ModTime().UTC(),
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		out.Owner, out.Group = nameOf(n.users, st.Uid), nameOf(n.groups, st.Gid)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		out.LinkTarget, _ = os.Readlink(path) // gone meanwhile: no target
	}
	return out
}

func nameOf(names map[uint32]string, id uint32) string {
	if name, ok := names[id]; ok {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}
