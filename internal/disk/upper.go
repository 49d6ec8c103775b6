package disk

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/disk/ext4"
)

// UpperStats is what was made of the changes on a scratch disk.
type UpperStats struct {
	Entries   int   `json:"entries"`    // of the layer, whiteouts and opaque markers included
	Whiteouts int   `json:"whiteouts"`  // files that were deleted
	Opaque    int   `json:"opaque"`     // directories that hide what is below them
	HardLinks int   `json:"hard_links"` // further names of files
	DataBytes int64 `json:"data_bytes"` // sum of file sizes, holes included
	TarBytes  int64 `json:"tar_bytes"`  // length of the layer

	// What a layer cannot hold, or must not.
	Sockets       int  `json:"sockets"`
	ReservedNames int  `json:"reserved_names"` // files whose own names start with ".wh."
	MountPoints   int  `json:"mount_points"`   // empty files that the agent mounts over
	DroppedXattrs int  `json:"dropped_xattrs"` // overlayfs' own, and names that a tar cannot hold
	DockerData    bool `json:"docker_data"`    // the disk has Docker's data, which was left out
}

// The directories of a scratch disk (the agent makes them): the upper directory
// of overlayfs, and Docker's data, which is mounted at /var/lib/docker.
//
// Docker's data is no part of the layer. It holds upper directories of other
// overlays, whose whiteouts and attributes mean something to overlayfs, so a
// layer could not say that they are just files.
const (
	upperDir  = "upper"
	dockerDir = "docker"
)

// boundFiles are mounted over in every guest. Where an image lacks one, the agent
// makes an empty file to mount over; that is no change of the sandbox's user,
// who cannot reach the file.
var boundFiles = []string{"etc/hostname", "etc/hosts", "etc/machine-id", "etc/resolv.conf"}

// WriteUpperLayer writes what a sandbox changed as the tar of an OCI layer: the
// upper directory of the overlay on its scratch disk, which is at rest, with
// whiteouts and opaque directories as the OCI image specification has them
// (layer.md, "Representing Changes"). Equal disks give equal bytes: entries are
// in the order of their names, parents first.
//
// Sparse files are written in full: the forms that tar has for holes are not
// understood by all tools that read layers, and compression and BuildLayer take
// zeros out again. lim.TarBytes bounds them. Extended attributes and times that
// the old header cannot hold become PAX records.
//
// Errors are CodeInvalid for a disk that is corrupt or no scratch disk,
// CodeConflict for one that is not at rest, CodeUnsupported for one the guest
// gave other features, CodeTooLarge for changes over a limit; those of w and ctx
// as they are. The guest can make the disk say anything; nothing it says leads
// anywhere but to blocks of the disk.
func WriteUpperLayer(ctx context.Context, w io.Writer, scratch io.ReaderAt, lim Limits) (UpperStats, error) {
	u := &upperWriter{
		lim:   lim.withDefaults(),
		out:   &countingWriter{w: w},
		dirs:  make(map[uint32]bool),
		links: make(map[uint32]string),
	}
	u.tar = tar.NewWriter(u.out)
	if err := u.write(ctx, &contextReaderAt{ctx, scratch}); err != nil {
		return UpperStats{}, fmt.Errorf("write layer of changes: %w", diskError(err))
	}
	u.stats.TarBytes = u.out.n
	return u.stats, nil
}

// diskError gives errors about the disk their codes.
func diskError(err error) error {
	switch {
	case errors.Is(err, ext4.ErrCorrupt):
		return skerry.Errorf(skerry.CodeInvalid, "scratch disk: %w", err)
	case errors.Is(err, ext4.ErrNotClean):
		return skerry.Errorf(skerry.CodeConflict, "scratch disk: %w", err)
	case errors.Is(err, ext4.ErrUnsupported):
		return skerry.Errorf(skerry.CodeUnsupported, "scratch disk: %w", err)
	}
	return err
}

// upperWriter is the state of one layer being written.
type upperWriter struct {
	disk  *ext4.Reader
	tar   *tar.Writer
	out   *countingWriter
	lim   Limits
	stats UpperStats

	files    int   // seen so far
	meta     int64 // bytes of names, targets and attributes so far
	dirBytes int64 // of directories so far
	dirs     map[uint32]bool
	links    map[uint32]string // names of files that have several, once written
	buf      []byte            // of copyBuffer bytes
}

func (u *upperWriter) write(ctx context.Context, scratch io.ReaderAt) error {
	var err error
	if u.disk, err = ext4.NewReader(scratch); err != nil {
		return err
	}
	upper, err := u.findUpper()
	if err != nil {
		return err
	}
	if err := u.writeDir("", upper, 0); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return u.tar.Close()
}

// findUpper looks through the root of the disk.
func (u *upperWriter) findUpper() (*ext4.Inode, error) {
	root, err := u.disk.Root()
	if err != nil {
		return nil, err
	}
	var upper *ext4.Inode
	entries, err := u.readDir(root)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name != upperDir && e.Name != dockerDir {
			continue
		}
		n, err := u.disk.Inode(e.Inode)
		if err != nil {
			return nil, err
		}
		if e.Name == upperDir {
			upper = n
		} else if n.IsDir() {
			inside, err := u.readDir(n)
			if err != nil {
				return nil, err
			}
			u.stats.DockerData = len(inside) > 0
		}
	}
	if upper == nil || !upper.IsDir() {
		return nil, invalid("scratch disk has no directory %q: no sandbox has run on it", upperDir)
	}
	return upper, nil
}

// readDir returns the names in a directory, sorted. No directory is read twice:
// that ends loops.
func (u *upperWriter) readDir(n *ext4.Inode) ([]ext4.Dirent, error) {
	if u.dirs[n.Number] {
		return nil, fmt.Errorf("%w: directory %d has two names", ext4.ErrCorrupt, n.Number)
	}
	u.dirs[n.Number] = true
	if u.dirBytes += n.Size; u.dirBytes > u.disk.Size() {
		return nil, fmt.Errorf("%w: directories share blocks", ext4.ErrCorrupt)
	}
	var entries []ext4.Dirent
	err := u.disk.ReadDir(n, func(d ext4.Dirent) error {
		entries = append(entries, d)
		return u.count(1, int64(len(d.Name)))
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b ext4.Dirent) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(entries); i++ {
		if entries[i].Name == entries[i-1].Name {
			return nil, fmt.Errorf("%w: name %q twice", ext4.ErrCorrupt, entries[i].Name)
		}
	}
	return entries, nil
}

// count adds to what Limits bounds.
func (u *upperWriter) count(files int, meta int64) error {
	u.files += files
	u.meta += meta
	switch {
	case u.files > u.lim.Entries:
		return tooLarge("files", u.lim.Entries)
	case u.meta > u.lim.MetaBytes:
		return tooLarge("bytes of names and attributes", u.lim.MetaBytes)
	}
	return nil
}

// writeDir writes a directory and what is in it. name has no slash at its end
// and is empty for the root.
func (u *upperWriter) writeDir(name string, n *ext4.Inode, depth int) error {
	if depth > u.lim.Depth {
		return pathError(name, tooLarge("directories inside one another", u.lim.Depth))
	}
	opaque, err := u.writeDirEntry(name, n)
	if err != nil {
		return pathError(name, err)
	}
	if opaque {
		u.stats.Opaque++
		if err := u.marker(join(name, opaqueMarker)); err != nil {
			return pathError(name, err)
		}
	}
	entries, err := u.readDir(n)
	if err != nil {
		return pathError(name, err)
	}
	for _, e := range entries {
		path := join(name, e.Name)
		if len(path) > u.lim.PathBytes {
			return pathError(path, tooLarge("name bytes", u.lim.PathBytes))
		}
		child, err := u.disk.Inode(e.Inode)
		if err != nil {
			return pathError(path, err)
		}
		if child.IsDir() && !strings.HasPrefix(e.Name, whiteoutPrefix) {
			err = u.writeDir(path, child, depth+1)
		} else if err = u.writeFile(path, e.Name, child); err != nil {
			err = pathError(path, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

func pathError(path string, err error) error {
	code := skerry.CodeOf(err)
	if code == skerry.CodeInternal {
		return fmt.Errorf("%q: %w", path, err)
	}
	return skerry.Errorf(code, "%q: %w", path, err)
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// contextReaderAt ends a long walk when ctx is done.
type contextReaderAt struct {
	ctx context.Context
	r   io.ReaderAt
}

func (c *contextReaderAt) ReadAt(p []byte, off int64) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.ReadAt(p, off)
}
