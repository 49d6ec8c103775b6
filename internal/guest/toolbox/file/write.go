package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
)

// tempPrefix begins the names of files that are being written. One is left
// behind only when the machine stops in that moment.
const tempPrefix = ".skerry-"

const copyBuffer = 128 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

// Write makes the file at path hold what r gives: missing directories are made,
// the content goes into a temporary file beside it, and a rename puts that in
// place, so that nobody ever sees half a file. With an error, the disk being
// full included, the old file is untouched. The data is not synced: it is as
// durable as that of any program in the sandbox.
//
// A symbolic link at path is followed, with the user's rights. A file that
// exists keeps its mode unless p sets one; a new one gets 0644.
func (f *Files) Write(path string, p Permissions, r io.Reader) (written int64, err error) {
	mode, err := ParseMode(p.Mode, 0)
	if err != nil {
		return 0, err
	}
	uid, gid, err := f.owner(p)
	if err != nil {
		return 0, err
	}
	var temp *os.File
	err = f.User.Do(func() error {
		var old fs.FileMode
		if path, old, err = destination(path); err != nil {
			return err
		}
		if p.Mode == "" {
			mode = old
		}
		temp, err = createTemp(filepath.Dir(path))
		return err
	})
	if err != nil {
		return 0, err
	}
	written, err = fill(temp, r)
	if err == nil {
		err = f.User.Do(func() error { return install(temp.Name(), path, mode, uid, gid) })
	}
	if err != nil {
		// The first error counts; the user's rights still apply.
		_ = f.User.Do(func() error { return os.Remove(temp.Name()) })
		return written, err
	}
	return written, nil
}

// destination returns the file that a write to path replaces, with its mode,
// and makes the directory it is in.
func destination(path string) (string, fs.FileMode, error) {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return "", 0, &fs.PathError{Op: "write", Path: path, Err: unix.EISDIR}
	case err == nil && !info.Mode().IsRegular():
		return "", 0, &fs.PathError{Op: "write", Path: path, Err: ErrNotRegular}
	case err == nil:
		real, err := filepath.EvalSymlinks(path)
		return real, info.Mode() & (fs.ModePerm), err
	case !errors.Is(err, fs.ErrNotExist):
		return "", 0, err
	}
	// Nothing there, or a dangling link, which is replaced.
	return path, 0o644, os.MkdirAll(filepath.Dir(path), 0o755)
}

// createTemp makes a new file in dir that only its owner can read.
func createTemp(dir string) (*os.File, error) {
	name := filepath.Join(dir, tempPrefix+skerry.RandomToken(16))
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// fill writes r to the file and closes it. Some file systems report a full disk
// only there.
func fill(temp *os.File, r io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[copyBuffer]byte)
	defer copyBuffers.Put(buf)
	// Not io.Copy on the file, whose ReadFrom would bring a buffer of its own.
	written, err := io.CopyBuffer(struct{ io.Writer }{temp}, r, buf[:])
	if closeErr := temp.Close(); err == nil {
		err = closeErr
	}
	return written, err
}

// install gives a temporary file its owner, mode and name.
func install(temp, path string, mode fs.FileMode, uid, gid int) error {
	if uid >= 0 || gid >= 0 {
		if err := os.Lchown(temp, uid, gid); err != nil {
			return err
		}
	}
	if err := os.Chmod(temp, mode); err != nil { // after chown, which clears setuid bits
		return err
	}
	return os.Rename(temp, path)
}

// renameNew renames without replacing.
func renameNew(source, destination string) error {
	err := unix.Renameat2(unix.AT_FDCWD, source, unix.AT_FDCWD, destination, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // not on this file system
		if _, err := os.Lstat(destination); err == nil {
			return &os.LinkError{Op: "rename", Old: source, New: destination, Err: fs.ErrExist}
		}
		return os.Rename(source, destination)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: source, New: destination, Err: err}
	}
	return nil
}

// errEntry names the entry of an archive that is to blame.
func errEntry(name string, err error) error {
	return fmt.Errorf("entry %.512q: %w", name, err)
}
