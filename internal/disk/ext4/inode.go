package ext4

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// File types, the top bits of an inode's mode (inode(7)).
const (
	TypeMask    = 0o170000
	TypeFIFO    = 0o010000
	TypeChar    = 0o020000
	TypeDir     = 0o040000
	TypeBlock   = 0o060000
	TypeRegular = 0o100000
	TypeSymlink = 0o120000
	TypeSocket  = 0o140000
)

// Flags of an inode.
const (
	flagEncrypt = 0x800
	flagIndex   = 0x1000
	flagExtents = 0x80000
	flagEA      = 0x200000
	flagInline  = 0x10000000
	flagFolded  = 0x40000000

	flagsUnsupported = flagEncrypt | flagEA | flagInline | flagFolded
)

const (
	oldInodeSize = 128 // where the extra fields and attributes start
	rootArea     = 60  // bytes of an inode's root of extents, or short link target
	maxTarget    = blockSize - 1
	maxDirSize   = 1 << 31 // what a hash tree of two levels has room for
)

// Inode is a file without its names.
type Inode struct {
	Number       uint32
	Mode         uint32 // permissions and one of the Type… bits
	UID, GID     uint32
	Links        uint16 // 1 of a directory means any number
	Size         int64  // bytes
	Mtime        int64  // seconds since 1970, may be negative
	MtimeNsec    uint32
	Major, Minor uint32 // of a device

	flags      uint32
	seed       uint32 // of checksums of its extents and directory blocks
	area       [rootArea]byte
	attrs      []byte // extended attributes in the inode
	attrsBlock uint64 // and the block of further ones, or 0
}

// Type returns the file type bits of the mode.
func (n *Inode) Type() uint32 { return n.Mode & TypeMask }

// IsDir reports whether n is a directory.
func (n *Inode) IsDir() bool { return n.Type() == TypeDir }

// Root returns the root directory.
func (r *Reader) Root() (*Inode, error) {
	n, err := r.Inode(rootInode)
	if err == nil && !n.IsDir() {
		err = corrupt("root is no directory")
	}
	return n, err
}

// Inode reads the inode with a number that a Dirent has.
func (r *Reader) Inode(num uint32) (*Inode, error) {
	n, err := r.inode(num)
	if err != nil {
		return nil, fmt.Errorf("inode %d: %w", num, err)
	}
	return n, nil
}

func (r *Reader) inode(num uint32) (*Inode, error) {
	if num == 0 || num > r.inodes {
		return nil, corrupt("there are %d", r.inodes)
	}
	table, err := r.inodeTable(uint64((num - 1) / r.inodesPerGroup))
	if err != nil {
		return nil, err
	}
	b := make([]byte, r.inodeSize)
	index := int64((num - 1) % r.inodesPerGroup)
	if err := r.read(b, int64(table)*blockSize+index*r.inodeSize); err != nil {
		return nil, err
	}
	return r.parseInode(b, num)
}

func (r *Reader) parseInode(b []byte, num uint32) (*Inode, error) {
	le := binary.LittleEndian
	extra := int64(le.Uint16(b[0x80:]))
	if extra < 0x0c || extra%4 != 0 || oldInodeSize+extra > r.inodeSize {
		return nil, corrupt("%d extra bytes", extra)
	}
	n := &Inode{
		Number: num,
		Mode:   uint32(le.Uint16(b[0:])),
		UID:    uint32(le.Uint16(b[0x2:])) | uint32(le.Uint16(b[0x78:]))<<16,
		GID:    uint32(le.Uint16(b[0x18:])) | uint32(le.Uint16(b[0x7a:]))<<16,
		Links:  le.Uint16(b[0x1a:]),
		Size:   int64(uint64(le.Uint32(b[0x4:])) | uint64(le.Uint32(b[0x6c:]))<<32),
		flags:  le.Uint32(b[0x20:]),
		seed:   r.inodeSeed(num, le.Uint32(b[0x64:])),
		attrs:  b[oldInodeSize+extra:],
	}
	copy(n.area[:], b[0x28:])
	n.attrsBlock = uint64(le.Uint32(b[0x68:])) | uint64(le.Uint16(b[0x76:]))<<32
	// The low two bits of the extra field extend the seconds, the others are
	// nanoseconds.
	more := le.Uint32(b[0x88:])
	n.Mtime = int64(int32(le.Uint32(b[0x10:]))) + int64(more&3)<<32
	n.MtimeNsec = more >> 2

	want := uint32(le.Uint16(b[0x7c:])) | uint32(le.Uint16(b[0x82:]))<<16
	b[0x7c], b[0x7d], b[0x82], b[0x83] = 0, 0, 0, 0
	if err := r.check(checksum(n.seed, b), want); err != nil {
		return nil, err
	}
	if err := n.validate(); err != nil {
		return nil, err
	}
	if n.IsDir() && n.Size > r.Size() {
		return nil, corrupt("directory of %d bytes", n.Size)
	}
	return n, nil
}

// validate refuses what no file can be.
func (n *Inode) validate() error {
	le := binary.LittleEndian
	switch {
	case n.Links == 0:
		return corrupt("deleted, but has a name")
	case n.flags&flagsUnsupported != 0:
		return fmt.Errorf("%w: inode flags %#x", ErrUnsupported, n.flags)
	case n.MtimeNsec >= 1e9:
		return corrupt("%d nanoseconds in a second", n.MtimeNsec)
	case n.Size < 0 || n.Size > 1<<32*blockSize:
		return corrupt("size of %d bytes", n.Size)
	}
	switch n.Type() {
	case TypeRegular, TypeDir:
		if n.flags&flagExtents == 0 {
			return fmt.Errorf("%w: file without extents", ErrUnsupported)
		}
		if n.IsDir() && (n.Size%blockSize != 0 || n.Size > maxDirSize) {
			return corrupt("directory of %d bytes", n.Size)
		}
	case TypeSymlink:
		if n.Size == 0 || n.Size > maxTarget || n.flags&flagExtents == 0 && n.Size >= rootArea {
			return corrupt("symbolic link of %d bytes", n.Size)
		}
	case TypeChar, TypeBlock:
		if old := le.Uint32(n.area[:]); old != 0 {
			n.Major, n.Minor = old>>8&0xff, old&0xff
			break
		}
		dev := le.Uint32(n.area[4:])
		n.Major, n.Minor = dev>>8&0xfff, dev&0xff|dev>>12&0xfff00
	case TypeFIFO, TypeSocket:
	default:
		return corrupt("mode %#o", n.Mode)
	}
	return nil
}

// Readlink returns the target of a symbolic link: never empty, no zero byte.
func (r *Reader) Readlink(n *Inode) (string, error) {
	if n.Type() != TypeSymlink {
		return "", fmt.Errorf("inode %d is no symbolic link", n.Number)
	}
	target := make([]byte, n.Size)
	if n.flags&flagExtents == 0 {
		copy(target, n.area[:])
	} else if _, err := r.Open(n).ReadAt(target, 0); err != nil {
		return "", fmt.Errorf("inode %d: target: %w", n.Number, err)
	}
	if strings.Contains(string(target), "\x00") {
		return "", fmt.Errorf("inode %d: %w", n.Number, corrupt("zero byte in a link's target"))
	}
	return string(target), nil
}
