package erofs

import (
	"fmt"
	"maps"
	"slices"
)

// number returns all files below root, each once, the children of a directory
// behind one another, and counts their links.
func number(root *Node) ([]*Node, error) {
	root.placed, root.links, root.parent = true, 2, root
	order := []*Node{root}
	for i := 0; i < len(order); i++ {
		dir := order[i]
		if !dir.IsDir() {
			continue
		}
		dir.names = slices.Sorted(maps.Keys(dir.children))
		for _, name := range dir.names {
			child := dir.children[name]
			if err := CheckName(name); err != nil {
				return nil, err
			}
			if err := child.check(); err != nil {
				return nil, fmt.Errorf("file %q: %w", name, err)
			}
			if child.IsDir() {
				if child.placed {
					return nil, fmt.Errorf("directory %q has several names", name)
				}
				dir.links++
				child.links++ // its own "."
				child.parent = dir
			}
			child.links++
			if !child.placed {
				child.placed = true
				order = append(order, child)
			}
		}
	}
	return order, nil
}

// place gives every file its position in the inode area and every directory its
// blocks. It returns the length of the inode area in bytes.
func (w *Writer) place(order []*Node) (int64, error) {
	next := int64(firstNID * nidSize)
	var dirBlocks int64
	for _, n := range order {
		var err error
		if n.xattrs, err = xattrSize(n.Xattrs); err != nil {
			return 0, err
		}
		if n.IsDir() {
			n.split()
		}
		tail := n.chooseLayout()
		if n.Type() == TypeSymlink && tail == 0 {
			if err := w.writeTarget(n); err != nil {
				return 0, err
			}
		}
		next = position(next, int64(inodeSize+n.xattrs), tail)
		n.nid = uint64(next) / nidSize
		next += int64(inodeSize+n.xattrs) + tail
		switch {
		case n.layout == layoutChunk:
			w.chunked = true
			next += 4 * n.data.chunks(n.Size)
		case n.IsDir():
			n.addr = uint32(dirBlocks)
			dirBlocks += int64(len(n.splits))
			if n.layout == layoutInline {
				dirBlocks--
			}
		}
		if next/nidSize >= 1<<32 {
			return 0, fmt.Errorf("inode area over %d bytes", int64(nidSize)<<32)
		}
	}
	return next, nil
}

// position returns the first place from next on for an inode with attributes of
// size bytes and a tail. Neither the inode nor the tail may cross a block;
// attributes may, but do so only if they are longer than one.
func position(next, size, tail int64) int64 {
	next = alignUp(next, nidSize)
	if next%BlockSize+size+tail <= BlockSize {
		return next
	}
	next = alignUp(next, BlockSize)
	if at := (next + size) % BlockSize; size+tail > BlockSize && at+tail > BlockSize {
		next += alignUp(BlockSize-at, nidSize)
	}
	return next
}

// writeTarget stores a symbolic link's target in a block of its own.
func (w *Writer) writeTarget(n *Node) error {
	n.addr = w.out.addr()
	if err := w.out.write([]byte(n.Target)); err != nil {
		return err
	}
	return w.out.align(BlockSize)
}

func (f *data) chunks(size int64) int64 {
	chunk := int64(BlockSize) << f.chunkBits
	return (size + chunk - 1) / chunk
}

// chooseLayout sets the layout and returns the length of the inline tail. That
// of a symbolic link or a directory must fit in one block with the inode; that
// of a regular file has nowhere else to go.
func (n *Node) chooseLayout() int64 {
	n.layout = layoutPlain
	room := int64(BlockSize - inodeSize - n.xattrs)
	var tail int64
	switch n.Type() {
	case TypeRegular:
		if !n.data.flat() {
			n.layout = layoutChunk
			return 0
		}
		if len(n.data.runs) == 1 {
			n.addr = n.data.runs[0].addr
		}
		tail = int64(len(n.data.tail))
		room = maxTail
	case TypeDir:
		tail = n.storedSize() % BlockSize
		room = min(room, maxTail)
	case TypeSymlink:
		tail = int64(len(n.Target))
	}
	if tail == 0 || tail > room {
		return 0
	}
	n.layout = layoutInline
	return tail
}

// storedSize is the size as the inode tells it.
func (n *Node) storedSize() int64 {
	switch n.Type() {
	case TypeDir:
		last := len(n.splits) - 1
		return int64(last)*BlockSize + int64(n.dirBlockSize(last))
	case TypeSymlink:
		return int64(len(n.Target))
	default:
		return n.Size
	}
}
