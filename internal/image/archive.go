package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"skerry.dev/skerry"
)

// archive is a set of files by name: an unpacked OCI layout, or a tar. Nothing
// of a tar is ever unpacked under a name of its own, so names and links in it
// can reach nothing outside.
type archive interface {
	// file opens a regular file. fs.ErrNotExist: there is none.
	file(name string) (io.ReadSeekCloser, int64, error)
	io.Closer
}

// openArchive opens a directory or a tar, which may be compressed as a whole.
func (s *Store) openArchive(ctx context.Context, name string) (archive, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if fi.IsDir() {
		root, err := os.OpenRoot(name)
		if err != nil {
			return nil, err
		}
		return dirArchive{root}, nil
	}
	if !fi.Mode().IsRegular() {
		return nil, skerry.Invalid("path", "type", "file or directory", "%s is neither a file nor a directory", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	a, err := s.openTarArchive(ctx, f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return a, nil
}

// dirArchive is a directory. os.Root keeps links in it from leading out.
type dirArchive struct{ root *os.Root }

func (d dirArchive) file(name string) (io.ReadSeekCloser, int64, error) {
	f, err := d.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not block
	if err != nil {
		return nil, 0, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = invalidImage("%s is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, fi.Size(), nil
}

func (d dirArchive) Close() error { return d.root.Close() }

const (
	// maxMembers and maxMemberName bound the index of a tar in memory.
	maxMembers    = 20000
	maxMemberName = 512
	// maxLinks is how many links may follow each other.
	maxLinks = 8
)

// tarArchive is an index of a tar file.
type tarArchive struct {
	f       *os.File
	members map[string]member
}

type member struct {
	offset, size int64
	link         string // name of another member, if not ""
}

// openTarArchive indexes a tar. A compressed one is first unpacked to a file of
// the store that has no name.
func (s *Store) openTarArchive(ctx context.Context, f *os.File) (archive, error) {
	head := make([]byte, 4)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if compression(head[:n]) != "" {
		plain, err := os.CreateTemp(s.path("tmp"), "archive-*")
		if err != nil {
			return nil, err
		}
		os.Remove(plain.Name())
		if _, err := decompressTo(ctx, plain, f, s.opt.Limits.ImageBytes); err != nil {
			plain.Close()
			return nil, err
		}
		members, err := indexTar(ctx, plain)
		if err != nil {
			plain.Close()
			return nil, err
		}
		f.Close()
		return &tarArchive{plain, members}, nil
	}
	members, err := indexTar(ctx, f)
	if err != nil {
		return nil, err
	}
	return &tarArchive{f, members}, nil
}

// indexTar notes where each file of a tar lies. Of two with one name the last
// counts.
func indexTar(ctx context.Context, f *os.File) (map[string]member, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	members := make(map[string]member)
	tr := tar.NewReader(&ctxSeeker{ctxReader{ctx, f}, f})
	for count := 0; ; count++ {
		hdr, err := tr.Next()
		if err == io.EOF {
			break
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, invalidImage("archive is not a tar, or broken: %v", err)
		}
		if count == maxMembers {
			return nil, invalidImage("archive has more than %d entries", maxMembers)
		}
		name := path.Clean(hdr.Name)
		if len(name) > maxMemberName || !fs.ValidPath(name) {
			continue // nothing in an image archive has such a name
		}
		switch hdr.Typeflag {
		case tar.TypeReg:
			// The reader does not read ahead: the file is now where the content begins.
			at, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			if isSparse(hdr) {
				return nil, invalidImage("archive entry %q is sparse", name)
			}
			if hdr.Size > fi.Size()-at {
				return nil, invalidImage("archive ends within entry %q", name)
			}
			members[name] = member{offset: at, size: hdr.Size}
		case tar.TypeSymlink, tar.TypeLink:
			if target, ok := linkTarget(name, hdr); ok {
				members[name] = member{link: target}
			}
		}
	}
	if len(members) == 0 {
		return nil, invalidImage("archive is empty")
	}
	return members, nil
}

func isSparse(hdr *tar.Header) bool {
	for k := range hdr.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// linkTarget is the member a link means, if it stays within the archive.
func linkTarget(name string, hdr *tar.Header) (string, bool) {
	target := path.Clean(hdr.Linkname)
	if hdr.Typeflag == tar.TypeSymlink {
		if path.IsAbs(hdr.Linkname) {
			return "", false
		}
		target = path.Join(path.Dir(name), hdr.Linkname)
	}
	return target, len(target) <= maxMemberName && fs.ValidPath(target)
}

func (t *tarArchive) file(name string) (io.ReadSeekCloser, int64, error) {
	clean := path.Clean(name)
	for range maxLinks {
		m, ok := t.members[clean]
		if !ok {
			return nil, 0, fmt.Errorf("%.100q: %w", name, fs.ErrNotExist)
		}
		if m.link == "" {
			return section{io.NewSectionReader(t.f, m.offset, m.size)}, m.size, nil
		}
		clean = m.link
	}
	return nil, 0, invalidImage("archive entry %.100q: too many links", name)
}

func (t *tarArchive) Close() error { return t.f.Close() }

type section struct{ *io.SectionReader }

func (section) Close() error { return nil }

// ctxSeeker lets archive/tar skip content instead of reading it.
type ctxSeeker struct {
	ctxReader
	io.Seeker
}

// readSmall reads a whole file of an archive that must be small.
func readSmall(a archive, name string, limit int64) ([]byte, error) {
	f, size, err := a.file(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > limit {
		return nil, tooLarge(name, limit)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = tooLarge(name, limit)
	}
	return data, err
}

// archiveSource reads blobs from an archive: from their place in an OCI layout,
// or from where names says.
type archiveSource struct {
	archive archive
	names   map[v1.Hash]string // or nil
}

func (a archiveSource) open(_ context.Context, blob v1.Descriptor, offset int64) (io.ReadCloser, int64, error) {
	name := a.names[blob.Digest]
	if name == "" {
		name = blobName(blob.Digest)
	}
	f, size, err := a.archive.file(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, invalidImage("archive lacks blob %s", blob.Digest)
	}
	if err != nil {
		return nil, 0, err
	}
	if size != blob.Size {
		f.Close()
		return nil, 0, invalidImage("blob %s has %d bytes in the archive, want %d", blob.Digest, size, blob.Size)
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, offset, nil
}
