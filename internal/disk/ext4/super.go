package ext4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	blockSize = 4096 // bytes
	superAt   = 1024 // bytes into the disk
	superSize = 1024
	magic     = 0xEF53
	rootInode = 2
	// blocksPerGroup is what one block of bitmap covers.
	blocksPerGroup = 8 * blockSize
)

// Incompatible features: whoever does not know one of them must not read.
const (
	incompatFiletype = 0x2
	incompatRecover  = 0x4
	incompatMetaBG   = 0x10
	incompatExtents  = 0x40
	incompat64Bit    = 0x80
	incompatFlexBG   = 0x200

	incompatNeeded = incompatFiletype | incompatExtents | incompat64Bit
	incompatKnown  = incompatNeeded | incompatMetaBG | incompatFlexBG
)

// Features that only writers must know, but these tell where things are.
const (
	roCompatSparseSuper  = 0x1
	roCompatMetadataCsum = 0x400
)

// Reader reads a file system. It may be used by many goroutines.
type Reader struct {
	disk           io.ReaderAt
	blocks         uint64
	inodes         uint32
	inodesPerGroup uint32
	inodeSize      int64
	descSize       int64
	firstMetaBG    uint64 // in blocks of descriptors; beyond all without meta_bg
	sparseSuper    bool
	seed           uint32 // of all checksums
	unchecked      bool   // fuzzing sets it: a wrong checksum is no error
}

// NewReader reads and checks the superblock.
func NewReader(disk io.ReaderAt) (*Reader, error) { return newReader(disk, false) }

func newReader(disk io.ReaderAt, unchecked bool) (*Reader, error) {
	r := &Reader{disk: disk, unchecked: unchecked}
	b := make([]byte, superSize)
	if err := r.read(b, superAt); err != nil {
		return nil, fmt.Errorf("superblock: %w", err)
	}
	if err := r.parseSuper(b); err != nil {
		return nil, fmt.Errorf("superblock: %w", err)
	}
	return r, nil
}

func (r *Reader) parseSuper(b []byte) error {
	le := binary.LittleEndian
	if le.Uint16(b[0x38:]) != magic {
		return corrupt("no ext4 here")
	}
	if err := checkFeatures(le.Uint32(b[0x60:]), le.Uint32(b[0x64:])); err != nil {
		return err
	}
	if err := r.check(checksum(^uint32(0), b[:0x3fc]), le.Uint32(b[0x3fc:])); err != nil {
		return err
	}
	if log := le.Uint32(b[0x18:]); log != 2 {
		return fmt.Errorf("%w: blocks of 2^%d KiB", ErrUnsupported, log)
	}
	r.blocks = uint64(le.Uint32(b[0x4:])) | uint64(le.Uint32(b[0x150:]))<<32
	r.inodes = le.Uint32(b[0:])
	r.inodesPerGroup = le.Uint32(b[0x28:])
	r.inodeSize = int64(le.Uint16(b[0x58:]))
	r.descSize = int64(le.Uint16(b[0xfe:]))
	r.sparseSuper = le.Uint32(b[0x64:])&roCompatSparseSuper != 0
	r.firstMetaBG = r.blocks
	if le.Uint32(b[0x60:])&incompatMetaBG != 0 {
		r.firstMetaBG = uint64(le.Uint32(b[0x104:]))
	}
	r.seed = checksum(^uint32(0), b[0x68:0x78])
	switch {
	case le.Uint32(b[0x14:]) != 0 || le.Uint32(b[0x20:]) != blocksPerGroup:
		return corrupt("odd block groups")
	case r.blocks == 0 || r.blocks > 1<<48:
		return corrupt("%d blocks", r.blocks)
	case r.inodeSize < 256 || r.inodeSize > blockSize || r.inodeSize&(r.inodeSize-1) != 0:
		return corrupt("inodes of %d bytes", r.inodeSize)
	case r.descSize != 64:
		return fmt.Errorf("%w: group descriptors of %d bytes", ErrUnsupported, r.descSize)
	case r.inodesPerGroup == 0 || r.inodesPerGroup > blocksPerGroup:
		return corrupt("%d inodes per group", r.inodesPerGroup)
	case uint64(r.inodes) > r.groups()*uint64(r.inodesPerGroup):
		return corrupt("%d inodes", r.inodes)
	}
	return nil
}

func checkFeatures(incompat, roCompat uint32) error {
	switch {
	case incompat&incompatRecover != 0:
		return ErrNotClean
	case incompat&incompatNeeded != incompatNeeded || incompat&^incompatKnown != 0:
		return fmt.Errorf("%w: incompatible features %#x", ErrUnsupported, incompat)
	case roCompat&roCompatMetadataCsum == 0:
		return fmt.Errorf("%w: no metadata checksums", ErrUnsupported)
	}
	return nil
}

// Size returns the bytes of the file system, which are at most those of its disk.
func (r *Reader) Size() int64 { return int64(r.blocks) * blockSize }

func (r *Reader) groups() uint64 { return (r.blocks + blocksPerGroup - 1) / blocksPerGroup }

// inodeTable reads the descriptor of a group and returns the first block of its
// inode table.
func (r *Reader) inodeTable(group uint64) (uint64, error) {
	perBlock := uint64(blockSize / r.descSize)
	nr := group / perBlock
	block := nr + 1
	if nr >= r.firstMetaBG { // at the start of the first group that it describes
		first := nr * perBlock
		block = first * blocksPerGroup
		if r.hasSuper(first) {
			block++
		}
	}
	b := make([]byte, r.descSize)
	if err := r.read(b, int64(block)*blockSize+int64(group%perBlock)*r.descSize); err != nil {
		return 0, fmt.Errorf("descriptor of group %d: %w", group, err)
	}
	le := binary.LittleEndian
	want := le.Uint16(b[0x1e:])
	b[0x1e], b[0x1f] = 0, 0
	sum := checksum(checksum(r.seed, le.AppendUint32(nil, uint32(group))), b)
	if err := r.check(sum&0xffff, uint32(want)); err != nil {
		return 0, fmt.Errorf("descriptor of group %d: %w", group, err)
	}
	table := uint64(le.Uint32(b[0x8:])) | uint64(le.Uint32(b[0x28:]))<<32
	return table, r.checkBlocks(table, (uint64(r.inodesPerGroup)*uint64(r.inodeSize)+blockSize-1)/blockSize)
}

// hasSuper tells whether a group starts with a copy of the superblock: with
// sparse_super those of number 0, 1 and the powers of 3, 5 and 7.
func (r *Reader) hasSuper(group uint64) bool {
	if !r.sparseSuper || group <= 1 {
		return true
	}
	for _, base := range []uint64{3, 5, 7} {
		n := group
		for n%base == 0 {
			n /= base
		}
		if n == 1 {
			return true
		}
	}
	return false
}

// checkBlocks refuses blocks that are not on the disk, and the superblock's.
func (r *Reader) checkBlocks(first, count uint64) error {
	if first == 0 || first >= r.blocks || count > r.blocks-first {
		return corrupt("blocks %d+%d on a disk of %d", first, count, r.blocks)
	}
	return nil
}

// block reads one block and refuses one that is not on the disk.
func (r *Reader) block(nr uint64) ([]byte, error) {
	if err := r.checkBlocks(nr, 1); err != nil {
		return nil, err
	}
	b := make([]byte, blockSize)
	return b, r.read(b, int64(nr)*blockSize)
}

// read reads len(b) bytes. A disk that ends before them is corrupt.
func (r *Reader) read(b []byte, off int64) error {
	n, err := r.disk.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if errors.Is(err, io.EOF) || err == nil {
		return corrupt("disk ends before byte %d", off+int64(len(b)))
	}
	return err
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
