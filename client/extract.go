package client

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// RefusedError lists entries of an archive that were not unpacked. All others
// were.
type RefusedError struct {
	Entries []Refusal // the first maxRefusals
	Count   int
}

// Refusal is one refused entry.
type Refusal struct{ Name, Reason string }

// Error names the first entry.
func (e *RefusedError) Error() string {
	more := ""
	if e.Count > 1 {
		more = fmt.Sprintf(" (and %d more)", e.Count-1)
	}
	return fmt.Sprintf("entry %q refused: %s%s", e.Entries[0].Name, e.Entries[0].Reason, more)
}

const maxRefusals = 100

// Extract unpacks a tar stream of a sandbox into the directory dir, which must
// exist. The stream counts as hostile: nothing outside dir is created, changed
// or read, whatever names and links it holds. Entries that would need that, and
// devices, are skipped and reported as a *RefusedError after all others are
// unpacked. Owners are not kept, nor are setuid, setgid and sticky bits.
// Existing files are replaced, never written through.
func Extract(dir string, stream io.Reader) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	x := &extraction{root: root}
	for tr := tar.NewReader(stream); ; {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if err := x.entry(hdr, tr); err != nil {
			var refusal refusedEntry
			if !errors.As(err, &refusal) {
				return fmt.Errorf("entry %q: %w", hdr.Name, err)
			}
			x.refuse(hdr.Name, refusal)
		}
	}
	// What follows the end of an archive is padding; an error there tells
	// that the stream broke.
	if _, err := io.CopyN(io.Discard, stream, 1<<20); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the archive: %w", err)
	}
	if err := x.finish(); err != nil {
		return err
	}
	if x.refused.Count > 0 {
		return &x.refused
	}
	return nil
}

// refusedEntry is why an entry is skipped.
type refusedEntry string

func (r refusedEntry) Error() string { return string(r) }

type extraction struct {
	root    *os.Root
	dirs    []*tar.Header // directories, whose times and modes come last
	refused RefusedError
}

func (x *extraction) refuse(name string, reason refusedEntry) {
	x.refused.Count++
	if len(x.refused.Entries) < maxRefusals {
		x.refused.Entries = append(x.refused.Entries, Refusal{Name: name, Reason: string(reason)})
	}
}

func (x *extraction) entry(hdr *tar.Header, content io.Reader) error {
	name, err := localName(hdr.Name)
	if err != nil {
		return err
	}
	if name == "." {
		return nil // the directory itself stays as it is
	}
	for key := range hdr.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			hdr.Typeflag = tar.TypeGNUSparse
		}
	}
	switch hdr.Typeflag {
	case tar.TypeDir, tar.TypeReg, tar.TypeSymlink, tar.TypeLink:
	case tar.TypeGNUSparse:
		// A few bytes would become as many as the header claims.
		return refusedEntry("sparse files are not unpacked")
	default:
		return refusedEntry("devices, pipes and the like are not unpacked")
	}
	if err := x.makeParents(name); err != nil {
		return err
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		return x.directory(name, hdr)
	case tar.TypeReg:
		return x.file(name, hdr, content)
	case tar.TypeSymlink:
		return x.symlink(name, hdr)
	default:
		return x.hardLink(name, hdr)
	}
}

// localName is the name of an entry below the directory, in the form of the
// host's file system.
func localName(name string) (string, error) {
	clean := path.Clean(name)
	if path.IsAbs(name) || !fs.ValidPath(clean) || strings.Contains(name, "\x00") {
		return "", refusedEntry("the name leads out of the directory")
	}
	local, err := filepath.Localize(clean)
	if err != nil {
		return "", refusedEntry("this system cannot have such a name")
	}
	return local, nil
}

// makeParents makes the directories above name. It does not pass links, not
// even those that stay inside: only so the depth of a name is what it seems to
// be, which symlink relies on.
func (x *extraction) makeParents(name string) error {
	dir := filepath.Dir(name)
	if dir == "." {
		return nil
	}
	prefix := ""
	for part := range strings.SplitSeq(dir, string(filepath.Separator)) {
		prefix = filepath.Join(prefix, part)
		info, err := x.root.Lstat(prefix)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := x.root.Mkdir(prefix, 0o755); err != nil {
				return err
			}
		case err != nil:
			return err
		case !info.IsDir():
			return refusedEntry(fmt.Sprintf("%q above it is not a directory", filepath.ToSlash(prefix)))
		}
	}
	return nil
}

func (x *extraction) directory(name string, hdr *tar.Header) error {
	info, err := x.root.Lstat(name)
	if err == nil && !info.IsDir() {
		if err := x.root.Remove(name); err != nil {
			return err
		}
	}
	if err != nil || !info.IsDir() {
		if err := x.root.Mkdir(name, 0o755); err != nil {
			return err
		}
	}
	// A directory that its owner may not write would stop what follows.
	x.dirs = append(x.dirs, &tar.Header{Name: name, Mode: hdr.Mode, ModTime: hdr.ModTime})
	return nil
}

func (x *extraction) file(name string, hdr *tar.Header, content io.Reader) (err error) {
	if err := x.makeRoom(name); err != nil {
		return err
	}
	f, err := x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			x.root.Remove(name) // a part must not look like the whole
			return
		}
		_ = x.root.Chtimes(name, hdr.ModTime, hdr.ModTime)
	}()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	return f.Chmod(fs.FileMode(hdr.Mode) & 0o777)
}

// symlink makes a link that stays inside. Its target may go up only at its
// beginning and not above the directory; since no parent of name is a link,
// such a link cannot lead out.
func (x *extraction) symlink(name string, hdr *tar.Header) error {
	target := hdr.Linkname
	if target == "" || path.IsAbs(target) || strings.ContainsAny(target, "\x00\\") || filepath.VolumeName(target) != "" {
		return refusedEntry(fmt.Sprintf("the link to %q leads out of the directory", target))
	}
	up, down := 0, false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "..":
			if down {
				return refusedEntry(fmt.Sprintf("the link to %q goes up after going down", target))
			}
			up++
		case ".", "":
		default:
			down = true
		}
	}
	if depth := strings.Count(filepath.ToSlash(name), "/"); up > depth {
		return refusedEntry(fmt.Sprintf("the link to %q leads out of the directory", target))
	}
	if err := x.makeRoom(name); err != nil {
		return err
	}
	return x.root.Symlink(filepath.FromSlash(target), name)
}

func (x *extraction) hardLink(name string, hdr *tar.Header) error {
	target, err := localName(hdr.Linkname)
	if err != nil {
		return err
	}
	info, err := x.root.Lstat(target)
	if err != nil || !info.Mode().IsRegular() {
		return refusedEntry(fmt.Sprintf("it is a hard link to %q, which is not a file of the archive", hdr.Linkname))
	}
	if target == name {
		return nil
	}
	if err := x.makeRoom(name); err != nil {
		return err
	}
	return x.root.Link(target, name)
}

// makeRoom removes what a new file or link replaces; a directory stays.
func (x *extraction) makeRoom(name string) error {
	info, err := x.root.Lstat(name)
	if err != nil {
		return nil
	}
	if info.IsDir() {
		return refusedEntry("there is a directory of this name")
	}
	return x.root.Remove(name)
}

// finish sets modes and times of directories, the inner ones first.
func (x *extraction) finish() error {
	for i := len(x.dirs) - 1; i >= 0; i-- {
		d := x.dirs[i]
		info, err := x.root.Lstat(d.Name)
		if err != nil || !info.IsDir() {
			continue // replaced by a later entry
		}
		if err := x.root.Chmod(d.Name, fs.FileMode(d.Mode)&0o777); err != nil {
			return fmt.Errorf("entry %q: %w", d.Name, err)
		}
		_ = x.root.Chtimes(d.Name, d.ModTime, d.ModTime)
	}
	return nil
}
