package erofs

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// split adds "." and ".." to the sorted names of a directory and shares the
// names out to blocks.
func (d *dirData) split() {
	for _, dots := range []string{".", ".."} {
		i, _ := slices.BinarySearch(d.names, dots)
		d.names = slices.Insert(d.names, i, dots)
	}
	d.splits = nil
	size := BlockSize
	for i, name := range d.names {
		size += direntSize + len(name)
		if size > BlockSize {
			d.splits = append(d.splits, i)
			size = direntSize + len(name)
		}
	}
}

// block returns the names in a block.
func (d *dirData) block(i int) []string {
	if i+1 < len(d.splits) {
		return d.names[d.splits[i]:d.splits[i+1]]
	}
	return d.names[d.splits[i]:]
}

func (d *dirData) blockSize(i int) int {
	size := 0
	for _, name := range d.block(i) {
		size += direntSize + len(name)
	}
	return size
}

// target returns what a name of a directory stands for.
func (n *Node) target(name string) *Node {
	switch name {
	case ".":
		return n
	case "..":
		return n.dir.parent
	default:
		return n.dir.children[name]
	}
}

// appendDirBlock appends one block of a directory, without padding: the entries
// and then their names.
func (n *Node) appendDirBlock(b []byte, i int) []byte {
	names := n.dir.block(i)
	nameOff := len(names) * direntSize
	for _, name := range names {
		target := n.target(name)
		b = binary.LittleEndian.AppendUint64(b, target.nid)
		b = binary.LittleEndian.AppendUint16(b, uint16(nameOff))
		b = append(b, fileTypes[target.Type()], 0)
		nameOff += len(name)
	}
	for _, name := range names {
		b = append(b, name...)
	}
	return b
}

// writeDirs writes the blocks of all directories, but for the tails that lie
// with the inodes.
func (w *Writer) writeDirs(order []*Node) error {
	first := w.out.addr()
	buf := make([]byte, 0, BlockSize)
	for _, n := range order {
		if !n.IsDir() {
			continue
		}
		blocks := len(n.dir.splits)
		if n.layout == layoutInline {
			blocks--
		}
		if blocks > 0 && w.out.addr() != first+n.addr {
			return fmt.Errorf("directory is not at its place")
		}
		for i := range blocks {
			buf = n.appendDirBlock(buf[:0], i)
			if err := w.out.write(buf); err != nil {
				return err
			}
			if err := w.out.align(BlockSize); err != nil {
				return err
			}
		}
	}
	return nil
}
