package file

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
)

// ErrArchive says that an archive is damaged or holds an entry that is refused.
var ErrArchive = errors.New("invalid archive")

// maxDirectories bounds the directories of an archive: their modes and times
// are set at the end, and remembered until then.
const maxDirectories = 100_000

// Unpack unpacks a tar stream below the directory path, which it makes if it is
// missing. Regular files, directories, symbolic and hard links are known; any
// other entry, and any name that is absolute or leads out of the directory, by
// ".." or through a link, ends it with an error that names the entry; what was
// unpacked until then stays, whole files only. Targets of symbolic links are
// kept as they are and never followed to the outside.
//
// Modes and times are kept, and numeric owners if the user is root, as with
// tar(1). Files and links replace files and links, never directories.
func (f *Files) Unpack(path string, r io.Reader) error {
	// All names are resolved below the directory by os.Root, on top of the
	// user's own rights.
	return f.User.Do(func() error {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		root, err := os.OpenRoot(path)
		if err != nil {
			return err
		}
		defer root.Close()
		u := &unpacker{root: root, owners: f.User.UID == 0 && os.Geteuid() == 0}
		if err := u.entries(tar.NewReader(r)); err != nil {
			return err
		}
		return u.finishDirectories()
	})
}

type unpacker struct {
	root   *os.Root
	owners bool
	dirs   []*tar.Header // in order; Name is clean
}

func (u *unpacker) entries(r *tar.Reader) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return archiveError(err)
		}
		name, err := localName(h.Name)
		if err != nil {
			return errEntry(h.Name, err)
		}
		original := h.Name
		h.Name = name
		if err := u.entry(h, r); err != nil {
			return errEntry(original, err)
		}
	}
}

// archiveError marks what the tar reader says of the archive; errors of the
// stream below it pass.
func archiveError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrInsecurePath) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w", ErrArchive, err)
	}
	return err
}

// localName returns the clean form of an entry's name, or of a hard link's
// target, if it stays inside.
func localName(name string) (string, error) {
	switch {
	case name == "" || strings.Contains(name, "\x00"):
		return "", fmt.Errorf("%w: name is empty or holds a NUL byte", ErrArchive)
	case path.IsAbs(name):
		return "", fmt.Errorf("%w: name is absolute", ErrArchive)
	case slices.Contains(strings.Split(name, "/"), ".."):
		return "", fmt.Errorf("%w: name holds \"..\"", ErrArchive)
	}
	return path.Clean(name), nil
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeDir {
		return u.directory(h)
	}
	if h.Name == "." {
		return fmt.Errorf("%w: is no directory", ErrArchive)
	}
	if err := u.root.MkdirAll(path.Dir(h.Name), 0o755); err != nil {
		return confined(err)
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return u.file(h, r)
	case tar.TypeSymlink:
		return u.symlink(h)
	case tar.TypeLink:
		return u.hardLink(h)
	}
	return fmt.Errorf("%w: type %q is not supported", ErrArchive, h.Typeflag)
}

func (u *unpacker) directory(h *tar.Header) error {
	if h.Name == "." {
		return nil // the target directory stays as it is
	}
	if len(u.dirs) == maxDirectories {
		return fmt.Errorf("%w: more than %d directories", ErrArchive, maxDirectories)
	}
	// Its own mode comes last, since it may forbid to write.
	if err := u.root.MkdirAll(h.Name, 0o755); err != nil {
		return confined(err)
	}
	info, err := u.root.Lstat(h.Name)
	if err != nil {
		return confined(err)
	}
	if !info.IsDir() { // a link to a directory
		return &fs.PathError{Op: "mkdir", Path: h.Name, Err: fs.ErrExist}
	}
	u.dirs = append(u.dirs, &tar.Header{Name: h.Name, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime})
	return nil
}

func (u *unpacker) file(h *tar.Header, r io.Reader) error {
	temp := u.temp(h.Name)
	file, err := u.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return confined(err)
	}
	if _, err = fill(file, r); err != nil {
		err = archiveError(err)
	} else if err = u.attributes(temp, h); err == nil {
		err = u.root.Rename(temp, h.Name)
	}
	return u.orRemove(temp, err)
}

func (u *unpacker) symlink(h *tar.Header) error {
	temp := u.temp(h.Name)
	if h.Linkname == "" {
		return fmt.Errorf("%w: link without target", ErrArchive)
	}
	err := u.root.Symlink(h.Linkname, temp)
	if err != nil {
		return confined(err)
	}
	if u.owners {
		err = u.root.Lchown(temp, h.Uid, h.Gid)
	}
	if err == nil {
		err = u.linkTime(temp, h.ModTime)
	}
	if err == nil {
		err = u.root.Rename(temp, h.Name)
	}
	return u.orRemove(temp, err)
}

// linkTime sets the time of a symbolic link itself, which os.Root cannot. The
// directory is found within the root, and the link is not followed.
func (u *unpacker) linkTime(name string, t time.Time) error {
	if t.IsZero() {
		return nil
	}
	dir, err := u.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	spec, err := unix.TimeToTimespec(t)
	if err != nil {
		return fmt.Errorf("%w: time %s: %w", ErrArchive, t, err)
	}
	err = unix.UtimesNanoAt(int(dir.Fd()), path.Base(name), []unix.Timespec{spec, spec}, unix.AT_SYMLINK_NOFOLLOW)
	return os.NewSyscallError("utimensat", err)
}

func (u *unpacker) hardLink(h *tar.Header) error {
	target, err := localName(h.Linkname)
	if err != nil {
		return fmt.Errorf("hard link to %.512q: %w", h.Linkname, err)
	}
	info, err := u.root.Lstat(target)
	if err != nil {
		return fmt.Errorf("hard link to %.512q: %w", h.Linkname, confined(err))
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("hard link to %.512q: %w: is no regular file", h.Linkname, ErrArchive)
	}
	if target == h.Name {
		return nil
	}
	temp := u.temp(h.Name)
	if err := u.root.Link(target, temp); err != nil {
		return fmt.Errorf("hard link to %.512q: %w", h.Linkname, confined(err))
	}
	err = u.root.Rename(temp, h.Name)
	if err == nil {
		// rename(2) does nothing if both are links to one file already.
		if err := u.root.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return u.orRemove(temp, err)
}

func (u *unpacker) temp(name string) string {
	return path.Join(path.Dir(name), tempPrefix+skerry.RandomToken(16))
}

// orRemove removes a temporary file after an error.
func (u *unpacker) orRemove(temp string, err error) error {
	if err == nil {
		return nil
	}
	_ = u.root.Remove(temp) // the first error counts
	return confined(err)
}

func (u *unpacker) finishDirectories() error {
	for _, h := range slices.Backward(u.dirs) {
		err := u.attributes(h.Name, h)
		if errors.Is(err, fs.ErrNotExist) {
			continue // replaced by a later entry
		}
		if err != nil {
			return errEntry(h.Name, err)
		}
	}
	return nil
}

// attributes sets owner, mode and time.
func (u *unpacker) attributes(name string, h *tar.Header) error {
	if u.owners {
		if err := u.root.Lchown(name, h.Uid, h.Gid); err != nil {
			return confined(err)
		}
	}
	if err := u.root.Chmod(name, modeOf(uint32(h.Mode)&0o7777)); err != nil {
		return confined(err)
	}
	if h.ModTime.IsZero() {
		return nil
	}
	return confined(u.root.Chtimes(name, time.Now(), h.ModTime))
}

// confined makes an attempt to leave the directory an error of the archive.
func confined(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) && strings.Contains(pathErr.Err.Error(), "escapes") {
		return fmt.Errorf("%w: leads out of the directory: %w", ErrArchive, err)
	}
	return err
}
