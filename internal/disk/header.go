package disk

import (
	"archive/tar"
	"slices"
	"strings"

	"skerry.dev/skerry/internal/disk/erofs"
)

const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
	// metaPrefix is of other files that AUFS, where whiteouts come from,
	// kept for itself.
	metaPrefix  = ".wh..wh."
	xattrRecord = "SCHILY.xattr."
)

// splitName returns the components of an entry's name; none for the root. A
// name of slashes alone is the root, too: some image builders write it.
func splitName(name string, lim Limits) ([]string, error) {
	if len(name) > lim.PathBytes {
		return nil, tooLarge("name bytes", lim.PathBytes)
	}
	if strings.HasPrefix(name, "/") && strings.Trim(name, "/") != "" {
		return nil, invalid("name is absolute")
	}
	return splitPath(name, lim)
}

func splitPath(path string, lim Limits) ([]string, error) {
	var parts []string
	for part := range strings.SplitSeq(path, "/") {
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			return nil, invalid("name has %q in it", "..")
		case len(part) > lim.NameBytes:
			return nil, tooLarge("bytes of a name's component", lim.NameBytes)
		case len(parts) == lim.Depth:
			return nil, tooLarge("directories inside one another", lim.Depth)
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// entryTypes are the tar types that become files. Hard links are not among
// them; regular files of old archives and "contiguous" ones are.
var entryTypes = map[byte]uint32{
	tar.TypeReg: erofs.TypeRegular, '\x00': erofs.TypeRegular, tar.TypeCont: erofs.TypeRegular,
	tar.TypeGNUSparse: erofs.TypeRegular, tar.TypeDir: erofs.TypeDir, tar.TypeSymlink: erofs.TypeSymlink,
	tar.TypeChar: erofs.TypeChar, tar.TypeBlock: erofs.TypeBlock, tar.TypeFifo: erofs.TypeFIFO,
}

// nodeOf makes a file of a tar header, without data.
func (b *builder) nodeOf(hdr *tar.Header) (*erofs.Node, error) {
	typ, ok := entryTypes[hdr.Typeflag]
	if !ok {
		return nil, invalid("tar type %q is not supported", hdr.Typeflag)
	}
	if !fits(int64(hdr.Uid), 1<<32-2) || !fits(int64(hdr.Gid), 1<<32-2) {
		return nil, invalid("owner %d:%d is not a user and group", hdr.Uid, hdr.Gid)
	}
	n := &erofs.Node{Attr: erofs.Attr{
		Mode: typ | uint32(hdr.Mode)&0o7777, UID: uint32(hdr.Uid), GID: uint32(hdr.Gid),
		Mtime: hdr.ModTime.Unix(), MtimeNsec: uint32(hdr.ModTime.Nanosecond()),
	}}
	switch typ {
	case erofs.TypeRegular:
		n.Size = hdr.Size
	case erofs.TypeSymlink:
		if hdr.Linkname == "" || len(hdr.Linkname) > erofs.MaxTarget {
			return nil, invalid("link target of %d bytes", len(hdr.Linkname))
		}
		n.Target = strings.Clone(hdr.Linkname)
		n.Mode = typ | 0o777 // as Linux makes every link
	case erofs.TypeChar, erofs.TypeBlock:
		if !fits(hdr.Devmajor, 1<<12-1) || !fits(hdr.Devminor, 1<<20-1) {
			return nil, invalid("device number %d:%d", hdr.Devmajor, hdr.Devminor)
		}
		n.Major, n.Minor = uint32(hdr.Devmajor), uint32(hdr.Devminor)
	}
	return n, b.setXattrs(n, hdr.PAXRecords)
}

func fits(v, bound int64) bool { return v >= 0 && v <= bound }

// setXattrs takes the extended attributes over from PAX records. Those of
// overlayfs are the host's to set: "trusted.overlay.redirect" of an image would
// show any file of the layers under any name.
func (b *builder) setXattrs(n *erofs.Node, records map[string]string) error {
	size := 0
	for key, value := range records {
		name, ok := strings.CutPrefix(key, xattrRecord)
		if !ok {
			continue
		}
		if strings.HasPrefix(name, "trusted.overlay.") || strings.HasPrefix(name, "user.overlay.") ||
			!erofs.XattrSupported(name) {
			b.stats.DroppedXattrs++
			continue
		}
		size += len(name) + len(value)
		if size > b.lim.XattrBytes {
			return tooLarge("extended attribute bytes", b.lim.XattrBytes)
		}
		if len(name) > erofs.MaxXattrName {
			return tooLarge("bytes of an extended attribute's name", erofs.MaxXattrName)
		}
		if len(value) > erofs.MaxXattrValue {
			return tooLarge("bytes of an extended attribute's value", erofs.MaxXattrValue)
		}
		n.Xattrs = append(n.Xattrs, erofs.Xattr{Name: strings.Clone(name), Value: strings.Clone(value)})
	}
	slices.SortFunc(n.Xattrs, func(x, y erofs.Xattr) int { return strings.Compare(x.Name, y.Name) })
	return b.count(0, int64(size))
}
