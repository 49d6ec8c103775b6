package disk

import (
	"archive/tar"
	"io"
	"slices"
	"strings"
	"time"

	"skerry.dev/skerry/internal/disk/ext4"
)

const (
	overlayXattrs     = "trusted.overlay."
	userOverlayXattrs = "user.overlay."
)

var tarTypes = map[uint32]byte{
	ext4.TypeRegular: tar.TypeReg, ext4.TypeDir: tar.TypeDir, ext4.TypeSymlink: tar.TypeSymlink,
	ext4.TypeChar: tar.TypeChar, ext4.TypeBlock: tar.TypeBlock, ext4.TypeFIFO: tar.TypeFifo,
}

// writeDirEntry writes the entry of a directory and reports whether it hides
// what lower layers have in it.
func (u *upperWriter) writeDirEntry(name string, n *ext4.Inode) (opaque bool, err error) {
	hdr, opaque, err := u.header(name+"/", n)
	if err != nil {
		return false, err
	}
	if name == "" {
		hdr.Name = "./"
	}
	return opaque, u.entry(hdr)
}

// writeFile writes anything but a directory: nothing, a whiteout, another name of
// a file that was written, or the file.
func (u *upperWriter) writeFile(path, name string, n *ext4.Inode) error {
	switch {
	case strings.HasPrefix(name, whiteoutPrefix):
		// A user's file, which readers of the layer would take for a whiteout.
		u.stats.ReservedNames++
		return nil
	case n.Type() == ext4.TypeSocket:
		u.stats.Sockets++
		return nil
	case n.Type() == ext4.TypeChar && n.Major == 0 && n.Minor == 0:
		// Overlayfs makes all its whiteouts one file; here each is an entry.
		u.stats.Whiteouts++
		return u.marker(path[:len(path)-len(name)] + whiteoutPrefix + name)
	}
	if first, ok := u.links[n.Number]; ok {
		u.stats.HardLinks++
		return u.entry(&tar.Header{Typeflag: tar.TypeLink, Name: path, Linkname: first, Format: tar.FormatPAX,
			Mode: int64(n.Mode & 0o7777), Uid: int(n.UID), Gid: int(n.GID), ModTime: time.Unix(n.Mtime, int64(n.MtimeNsec))})
	}
	hdr, _, err := u.header(path, n)
	if err != nil {
		return err
	}
	if isMountPoint(path, n, hdr) {
		u.stats.MountPoints++
		return nil
	}
	if n.Links > 1 {
		u.links[n.Number] = path
		if err := u.count(0, int64(len(path))); err != nil {
			return err
		}
	}
	if err := u.entry(hdr); err != nil {
		return err
	}
	if n.Type() != ext4.TypeRegular {
		return nil
	}
	return u.writeData(u.disk.Open(n), n.Size)
}

// isMountPoint tells whether a file is what the agent makes to mount over, and
// only that.
func isMountPoint(path string, n *ext4.Inode, hdr *tar.Header) bool {
	return slices.Contains(boundFiles, path) && n.Mode == ext4.TypeRegular|0o644 && n.Size == 0 &&
		n.UID == 0 && n.GID == 0 && n.Links == 1 && len(hdr.PAXRecords) == 0
}

// header is the entry of a file under a name. opaque is what overlayfs says of
// a directory.
func (u *upperWriter) header(name string, n *ext4.Inode) (hdr *tar.Header, opaque bool, err error) {
	hdr = &tar.Header{
		Typeflag: tarTypes[n.Type()],
		Name:     name,
		Format:   tar.FormatPAX,
		Mode:     int64(n.Mode & 0o7777),
		Uid:      int(n.UID),
		Gid:      int(n.GID),
		ModTime:  time.Unix(n.Mtime, int64(n.MtimeNsec)),
	}
	switch n.Type() {
	case ext4.TypeRegular:
		hdr.Size = n.Size
	case ext4.TypeSymlink:
		if hdr.Linkname, err = u.disk.Readlink(n); err != nil {
			return nil, false, err
		}
	case ext4.TypeChar, ext4.TypeBlock:
		hdr.Devmajor, hdr.Devminor = int64(n.Major), int64(n.Minor)
	}
	opaque, err = u.setXattrs(hdr, n)
	return hdr, opaque, err
}

// setXattrs puts extended attributes into PAX records. Of overlayfs' own, one is
// translated, two would mean that the content is elsewhere (the agent mounts
// without these extensions), and the others are of no use in a layer.
func (u *upperWriter) setXattrs(hdr *tar.Header, n *ext4.Inode) (opaque bool, err error) {
	xattrs, err := u.disk.Xattrs(n)
	if err != nil {
		return false, err
	}
	for _, x := range xattrs {
		switch {
		case x.Name == overlayOpaque:
			opaque = x.Value == "y"
			continue
		case x.Name == overlayXattrs+"redirect", x.Name == overlayXattrs+"metacopy":
			return false, invalid("overlayfs keeps its content elsewhere (%s)", x.Name)
		case strings.HasPrefix(x.Name, overlayXattrs):
			continue
		case strings.HasPrefix(x.Name, userOverlayXattrs), strings.Contains(x.Name, "="):
			u.stats.DroppedXattrs++
			continue
		}
		if err := u.count(0, int64(len(x.Name)+len(x.Value))); err != nil {
			return false, err
		}
		if hdr.PAXRecords == nil {
			hdr.PAXRecords = make(map[string]string)
		}
		hdr.PAXRecords[xattrRecord+x.Name] = x.Value
	}
	return opaque, nil
}

// marker writes an empty file that says something of lower layers.
func (u *upperWriter) marker(path string) error {
	return u.entry(&tar.Header{Typeflag: tar.TypeReg, Name: path, Format: tar.FormatPAX, Mode: 0o644, ModTime: time.Unix(0, 0)})
}

func (u *upperWriter) entry(hdr *tar.Header) error {
	if hdr.Size > u.lim.TarBytes-u.out.n {
		return tooLarge("bytes of the layer", u.lim.TarBytes)
	}
	u.stats.Entries++
	return u.tar.WriteHeader(hdr)
}

// copyBuffer is how much of a file is read at once, in bytes.
const copyBuffer = 256 << 10

// writeData writes the content of a file, zeros for its holes.
func (u *upperWriter) writeData(f *ext4.File, size int64) error {
	u.stats.DataBytes += size
	for done := int64(0); done < size; {
		start, end, err := f.NextData(done)
		if err == io.EOF {
			start, end = size, size
		} else if err != nil {
			return err
		}
		if start > done {
			if _, err := io.CopyN(u.tar, zeros{}, start-done); err != nil {
				return err
			}
		}
		if u.buf == nil {
			u.buf = make([]byte, copyBuffer)
		}
		if _, err := io.CopyBuffer(u.tar, io.NewSectionReader(f, start, end-start), u.buf); err != nil {
			return err
		}
		done = end
	}
	return nil
}

// zeros is an endless file of them.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
