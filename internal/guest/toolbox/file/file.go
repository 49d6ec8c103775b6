package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/toolbox/account"
)

var (
	// ErrPath says that a path cannot be one.
	ErrPath = errors.New("invalid path")
	// ErrNotRegular says that there is something else than a file or directory.
	ErrNotRegular = errors.New("is no regular file")
	// ErrTooMany says that a directory has more entries than a list may have.
	ErrTooMany = errors.New("too many entries")
)

// Files is the file system as one user sees it.
type Files struct {
	User  account.User
	Users account.Database
}

// Abs returns the absolute, clean form of a path, which may be relative to the
// user's home.
func (f *Files) Abs(path string) (string, error) {
	if path == "" || strings.Contains(path, "\x00") {
		return "", fmt.Errorf("path %.256q: %w", path, ErrPath)
	}
	if rest, ok := strings.CutPrefix(path, "~/"); ok || path == "~" {
		path = rest
		if path == "" || path == "~" {
			path = "."
		}
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(f.User.Home, path)
	}
	return filepath.Clean(path), nil
}

// Open opens a file or directory for reading. FIFOs and devices are refused,
// as reading them may never end.
func (f *Files) Open(path string) (*os.File, fs.FileInfo, error) {
	var file *os.File
	err := f.User.Do(func() (err error) {
		file, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		err = &fs.PathError{Op: "read", Path: path, Err: ErrNotRegular}
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

// Mkdir makes a directory and its missing parents. An existing directory is
// fine and is left as it is.
func (f *Files) Mkdir(path string, mode fs.FileMode) error {
	return f.User.Do(func() error {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return nil
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.Mkdir(path, mode.Perm()); err != nil {
			return err
		}
		return os.Chmod(path, mode) // whatever the umask
	})
}

// Move renames a file or directory; where rename(2) cannot, across file
// systems, it refuses with EXDEV. An existing destination is refused, as
// fs.ErrExist, unless it is a directory: then source goes into it.
func (f *Files) Move(source, destination string) error {
	return f.User.Do(func() error {
		if _, err := os.Lstat(source); err != nil {
			return err
		}
		if info, err := os.Stat(destination); err == nil && info.IsDir() {
			destination = filepath.Join(destination, filepath.Base(source))
		}
		return renameNew(source, destination)
	})
}

// Remove removes a file, an empty directory, or with recursive a tree.
func (f *Files) Remove(path string, recursive bool) error {
	if path == "/" {
		return fmt.Errorf("remove /: %w", ErrPath)
	}
	return f.User.Do(func() error {
		if _, err := os.Lstat(path); err != nil {
			return err
		}
		if recursive {
			return os.RemoveAll(path)
		}
		return os.Remove(path)
	})
}

// Permissions is what Chmod changes; the zero value changes nothing.
type Permissions struct {
	Mode         string // octal, "0755"
	Owner, Group string // name or number
}

// Chmod changes mode, owner and group.
func (f *Files) Chmod(path string, p Permissions) error {
	mode, err := ParseMode(p.Mode, 0)
	if err != nil {
		return err
	}
	uid, gid, err := f.owner(p)
	if err != nil {
		return err
	}
	return f.User.Do(func() error {
		if uid >= 0 || gid >= 0 {
			if err := os.Chown(path, uid, gid); err != nil {
				return err
			}
		}
		if p.Mode != "" { // after chown, which clears setuid bits
			return os.Chmod(path, mode)
		}
		_, err := os.Stat(path)
		return err
	})
}

// owner resolves names to numbers, -1 for none.
func (f *Files) owner(p Permissions) (uid, gid int, err error) {
	uid, gid = -1, -1
	if p.Owner != "" {
		user, err := f.Users.Lookup(p.Owner)
		if err != nil {
			return 0, 0, err
		}
		uid = int(user.UID)
	}
	if p.Group != "" {
		id, err := f.Users.GroupID(p.Group)
		if err != nil {
			return 0, 0, err
		}
		gid = int(id)
	}
	return uid, gid, nil
}

// ParseMode reads an octal mode of up to four digits, as chmod(1) does; "" is
// the default.
func ParseMode(s string, unset fs.FileMode) (fs.FileMode, error) {
	if s == "" {
		return unset, nil
	}
	bits, digits := uint32(0), strings.TrimPrefix(s, "0o")
	for _, c := range digits {
		if c < '0' || c > '7' || bits > 0o7777 {
			digits = ""
			break
		}
		bits = bits<<3 | uint32(c-'0')
	}
	if digits == "" || bits > 0o7777 {
		return 0, fmt.Errorf("mode %.16q is not octal, 0 to 7777: %w", s, ErrPath)
	}
	return modeOf(bits), nil
}

// modeOf converts the bits of chmod(2).
func modeOf(bits uint32) fs.FileMode {
	mode := fs.FileMode(bits & 0o777)
	if bits&syscall.S_ISUID != 0 {
		mode |= fs.ModeSetuid
	}
	if bits&syscall.S_ISGID != 0 {
		mode |= fs.ModeSetgid
	}
	if bits&syscall.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}

// bitsOf is the reverse of modeOf.
func bitsOf(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	if mode&fs.ModeSetuid != 0 {
		bits |= syscall.S_ISUID
	}
	if mode&fs.ModeSetgid != 0 {
		bits |= syscall.S_ISGID
	}
	if mode&fs.ModeSticky != 0 {
		bits |= syscall.S_ISVTX
	}
	return bits
}

// Stat describes a file; of a symbolic link it describes the target, and names
// it.
func (f *Files) Stat(path string) (skerry.FileInfo, error) {
	names, err := f.names()
	if err != nil {
		return skerry.FileInfo{}, err
	}
	var info skerry.FileInfo
	err = f.User.Do(func() error {
		link, err := os.Lstat(path)
		if err != nil {
			return err
		}
		info = names.describe(path, link)
		if link.Mode()&fs.ModeSymlink == 0 {
			return nil
		}
		if target, err := os.Stat(path); err == nil { // else it dangles
			name := info.LinkTarget
			info = names.describe(path, target)
			info.Name, info.LinkTarget = link.Name(), name
		}
		return nil
	})
	return info, err
}
