package ext4

import (
	"encoding/binary"
	"fmt"
)

const (
	extentMagic = 0xF30A
	extentSize  = 12 // of the header too
	maxDepth    = 5
	// maxInitialized is the longest extent of written blocks; longer ones are
	// that much shorter and not written yet.
	maxInitialized = 1 << 15
)

// extent is a run of blocks of a file; if start is 0 it is a hole.
type extent struct {
	first uint64 // block of the file
	count uint64
	start uint64 // block of the disk
}

func (e extent) end() uint64 { return e.first + e.count }

// nextExtent finds the run of blocks that holds a block of a file, or the hole
// there. Holes go to the next extent or to the end of what a file can have.
//
// A node of the tree covers a range of the file. What it says must lie in that
// range, and its depth is one less than its parent's, so there are no loops, and
// no node serves in two places.
func (r *Reader) nextExtent(n *Inode, block uint64) (extent, error) {
	node, from, to := n.area[:], uint64(0), uint64(1)<<32
	depth := -1
	for {
		entries, d, err := parseNode(node, depth)
		if err != nil {
			return extent{}, err
		}
		if depth = d; depth == 0 {
			return r.searchLeaf(entries, block, from, to)
		}
		child, childFrom, childTo, err := searchIndex(entries, block, from, to)
		if err != nil {
			return extent{}, err
		}
		if child == 0 {
			return extent{first: block, count: childTo - block}, nil
		}
		from, to = childFrom, childTo
		if node, err = r.extentBlock(n, child); err != nil {
			return extent{}, fmt.Errorf("extent block %d: %w", child, err)
		}
	}
}

// parseNode checks a node's header; depth is its parent's, -1 for the root. It
// returns the entries and the node's own depth.
func parseNode(node []byte, parent int) (entries []byte, depth int, err error) {
	le := binary.LittleEndian
	count, limit := int(le.Uint16(node[2:])), int(le.Uint16(node[4:]))
	depth = int(le.Uint16(node[6:]))
	switch {
	case le.Uint16(node) != extentMagic:
		return nil, 0, corrupt("no extents here")
	case limit > len(node)/extentSize-1 || count > limit:
		return nil, 0, corrupt("%d extents where %d fit", count, limit)
	case parent == -1 && depth > maxDepth, parent != -1 && depth != parent-1:
		return nil, 0, corrupt("extent node of depth %d", depth)
	case count == 0 && (parent != -1 || depth != 0):
		return nil, 0, corrupt("extent node without extents")
	}
	return node[extentSize:][:count*extentSize], depth, nil
}

// extentBlock reads a node and checks the checksum behind its last entry.
func (r *Reader) extentBlock(n *Inode, nr uint64) ([]byte, error) {
	b, err := r.block(nr)
	if err != nil {
		return nil, err
	}
	tail := extentSize * (1 + int(binary.LittleEndian.Uint16(b[4:])))
	if tail > blockSize-4 {
		return nil, corrupt("no room for a checksum")
	}
	return b, r.check(checksum(n.seed, b[:tail]), binary.LittleEndian.Uint32(b[tail:]))
}

// searchIndex returns the child that covers a block, and the range it covers;
// 0 and where the first child starts if none does.
func searchIndex(entries []byte, block, from, to uint64) (child, childFrom, childTo uint64, err error) {
	le := binary.LittleEndian
	last := from
	for i := 0; i < len(entries); i += extentSize {
		e := entries[i:]
		first := uint64(le.Uint32(e))
		if first < last || i > 0 && first == last || first >= to {
			return 0, 0, 0, corrupt("extent index out of order")
		}
		last = first
		if first > block {
			return child, childFrom, first, nil
		}
		child, childFrom = uint64(le.Uint32(e[4:]))|uint64(le.Uint16(e[8:]))<<32, first
		if child == 0 {
			return 0, 0, 0, corrupt("extent index leads nowhere")
		}
	}
	return child, childFrom, to, nil
}

func (r *Reader) searchLeaf(entries []byte, block, from, to uint64) (extent, error) {
	le := binary.LittleEndian
	last := from
	for i := 0; i < len(entries); i += extentSize {
		b := entries[i:]
		e := extent{first: uint64(le.Uint32(b)), count: uint64(le.Uint16(b[4:])),
			start: uint64(le.Uint32(b[8:])) | uint64(le.Uint16(b[6:]))<<32}
		unwritten := e.count > maxInitialized
		if unwritten {
			e.count -= maxInitialized
		}
		if e.count == 0 || e.first < last || e.end() > to {
			return extent{}, corrupt("extents out of order")
		}
		if err := r.checkBlocks(e.start, e.count); err != nil {
			return extent{}, err
		}
		if unwritten {
			e.start = 0
		}
		if last = e.end(); block >= last {
			continue
		}
		if block < e.first {
			return extent{first: block, count: e.first - block}, nil
		}
		return e, nil
	}
	return extent{first: block, count: to - block}, nil
}
