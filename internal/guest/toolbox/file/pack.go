package file

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// maxLinks bounds the files with several names that Pack remembers; past it
// each name becomes a file of its own.
const maxLinks = 100_000

// Pack writes the tree below the directory path as a tar stream that Unpack
// reads: names relative to it, links, modes, times, numeric owners. Sockets,
// FIFOs and devices are left out; skipped tells how many. Errors name the file;
// the stream is then incomplete.
func (f *Files) Pack(path string, w io.Writer) (skipped int, err error) {
	err = f.User.Do(func() error {
		// The top may be a link; those below are kept as links.
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return err
		}
		p := &packer{top: real, tar: tar.NewWriter(w), links: map[inode]string{}}
		if err := filepath.WalkDir(real, p.visit); err != nil {
			return err
		}
		skipped = p.skipped
		return p.tar.Close()
	})
	return skipped, err
}

type inode struct{ dev, ino uint64 }

type packer struct {
	top     string
	tar     *tar.Writer
	links   map[inode]string
	skipped int
}

func (p *packer) visit(path string, entry fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	name, err := filepath.Rel(p.top, path)
	if err != nil {
		return err
	}
	if name == "." {
		if !entry.IsDir() {
			return &fs.PathError{Op: "pack", Path: path, Err: syscall.ENOTDIR}
		}
		return nil
	}
	info, err := entry.Info()
	if err != nil {
		return err
	}
	switch info.Mode().Type() {
	case 0:
		return p.file(path, name, info)
	case fs.ModeDir:
		return p.header(name+"/", "", info)
	case fs.ModeSymlink:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return p.header(name, target, info)
	}
	p.skipped++
	return nil
}

func (p *packer) header(name, link string, info fs.FileInfo) error {
	h, err := p.newHeader(name, link, info)
	if err != nil {
		return err
	}
	return p.tar.WriteHeader(h)
}

func (p *packer) newHeader(name, link string, info fs.FileInfo) (*tar.Header, error) {
	h, err := tar.FileInfoHeader(bareInfo{info}, link)
	if err != nil {
		return nil, err
	}
	h.Name, h.Format = name, tar.FormatPAX
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
	}
	return h, nil
}

// bareInfo keeps package tar from looking up names of owners, which would be
// another machine's where the archive is unpacked.
type bareInfo struct{ fs.FileInfo }

func (bareInfo) Sys() any { return nil }

func (p *packer) file(path, name string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok && st.Nlink > 1 {
		id := inode{uint64(st.Dev), st.Ino}
		if first, seen := p.links[id]; seen {
			h, err := p.newHeader(name, "", info)
			if err != nil {
				return err
			}
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return p.tar.WriteHeader(h)
		}
		if len(p.links) < maxLinks {
			p.links[id] = name
		}
	}
	return p.content(path, name)
}

// content writes a regular file. Its header is made from what was opened.
func (p *packer) content(path, name string) error {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &fs.PathError{Op: "pack", Path: path, Err: ErrNotRegular}
	}
	if err := p.header(name, "", info); err != nil {
		return err
	}
	buf := copyBuffers.Get().(*[copyBuffer]byte)
	defer copyBuffers.Put(buf)
	n, err := io.CopyBuffer(struct{ io.Writer }{p.tar}, io.LimitReader(file, info.Size()), buf[:])
	if err != nil {
		return err
	}
	if n < info.Size() {
		return fmt.Errorf("pack %s: it shrank from %d to %d bytes while it was read", path, info.Size(), n)
	}
	return nil
}
