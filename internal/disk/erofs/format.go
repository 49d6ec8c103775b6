package erofs

import (
	"encoding/binary"
	"hash/crc32"
)

// BlockSize is the block size of every image, in bytes. An image is a whole
// number of blocks long.
const BlockSize = 1 << blockBits

const blockBits = 12

// The file type bits of a mode, as in inode(7).
const (
	TypeMask    = 0o170000
	TypeFIFO    = 0o010000
	TypeChar    = 0o020000
	TypeDir     = 0o040000
	TypeBlock   = 0o060000
	TypeRegular = 0o100000
	TypeSymlink = 0o120000
)

// Bounds of the format and of Linux.
const (
	MaxName       = 255           // bytes in a name, NAME_MAX
	MaxTarget     = 4095          // bytes in a symbolic link, PATH_MAX less its NUL
	MaxFile       = 1 << 56       // bytes in a file, holes included
	MaxXattrName  = 255           // bytes in an attribute's name after its prefix
	MaxXattrValue = 1<<16 - 1     // bytes in an attribute's value
	MaxXattrs     = 12 + 4*0xfffe // bytes of all attributes of an inode, as stored
	maxBlocks     = 1<<32 - 2     // of an image; 2^32-1 marks a hole
)

const (
	superOffset = 1024
	superSize   = 128
	superMagic  = 0xe0f5e1e2

	compatChecksum     = 1 << 0
	compatMtime        = 1 << 1
	incompatChunkedMap = 1 << 2

	inodeSize   = 64 // of an extended inode
	compactSize = 32
	nidSize     = 32 // an inode's number is its distance from the inode area in these
	direntSize  = 12

	// firstNID is not 0: readdir(3) would hide a file with that number.
	firstNID = 2

	layoutPlain  = 0
	layoutInline = 2
	layoutChunk  = 4

	chunkBitsMask = 0x1f
	nullAddr      = 0xffffffff

	xattrHeaderSize = 12
	xattrEntrySize  = 4
)

// fileTypes are the type codes of directory entries (FT_… in fs_types.h).
var fileTypes = map[uint32]byte{
	TypeRegular: 1, TypeDir: 2, TypeChar: 3, TypeBlock: 4, TypeFIFO: 5, TypeSymlink: 7,
}

// xattrPrefixes are the name prefixes that are stored as a number. Linux knows
// no other name spaces that a file of an image could use. The names of access
// control lists are whole: nothing follows them.
var xattrPrefixes = []struct {
	index  byte
	prefix string
	whole  bool
}{
	{1, "user.", false},
	{2, "system.posix_acl_access", true},
	{3, "system.posix_acl_default", true},
	{4, "trusted.", false},
	{6, "security.", false},
}

// super is the part of the superblock that the writer sets.
type super struct {
	incompat uint32
	inodes   uint64
	blocks   uint32
	metaAddr uint32 // block of the inode area
	rootNID  uint16
}

// encode returns block 0.
func (s super) encode() []byte {
	block := make([]byte, BlockSize)
	b := block[superOffset:]
	le := binary.LittleEndian
	le.PutUint32(b[0:], superMagic)
	le.PutUint32(b[8:], compatChecksum|compatMtime)
	b[12] = blockBits
	le.PutUint16(b[14:], s.rootNID)
	le.PutUint64(b[16:], s.inodes)
	le.PutUint32(b[36:], s.blocks)
	le.PutUint32(b[40:], s.metaAddr)
	le.PutUint32(b[80:], s.incompat)
	le.PutUint32(b[4:], superChecksum(b))
	return block
}

// superChecksum is the CRC-32C of the rest of block 0 without the final
// inversion, as the kernel's crc32c() leaves it.
func superChecksum(b []byte) uint32 {
	return ^crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
}

// encodeRdev packs a device number as the kernel's new_encode_dev does.
func encodeRdev(major, minor uint32) uint32 {
	return minor&0xff | major<<8 | minor&^0xff<<12
}

func decodeRdev(v uint32) (major, minor uint32) {
	return v & 0xfff00 >> 8, v&0xff | v>>12&^0xff
}

func alignUp(n, to int64) int64 { return (n + to - 1) / to * to }
