package erofs

import (
	"fmt"
	"maps"
	"slices"
)

// number returns all files below root, each once, the children of a directory
// behind one another, and counts their links.
func number(root *Node) ([]*Node, error) {
	root.setParent(root)
	root.placed, root.links = true, 2
	order := []*Node{root}
	for i := 0; i < len(order); i++ {
		dir := order[i]
		if !dir.IsDir() {
			continue
		}
		dir.dir.names = slices.Sorted(maps.Keys(dir.dir.children))
		for _, name := range dir.dir.names {
			child := dir.dir.children[name]
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
				child.setParent(dir)
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

// setParent sets what ".." of a directory is.
func (n *Node) setParent(parent *Node) {
	if n.dir == nil {
		n.dir = new(dirData)
	}
	n.dir.parent = parent
}

// place gives every file its position in the inode area and every directory its
// blocks. It returns the length of the inode area in bytes.
func (w *Writer) place(order []*Node) (int64, error) {
	next := int64(firstNID * nidSize)
	var dirBlocks int64
	for _, n := range order {
		size, err := xattrSize(n.Xattrs)
		if err != nil {
			return 0, err
		}
		n.xattrs = int32(size)
		if n.IsDir() {
			n.dir.split()
		}
		tail := n.chooseLayout()
		if n.Type() == TypeSymlink && tail == 0 {
			if err := w.writeTarget(n); err != nil {
				return 0, err
			}
		}
		body := inodeSize + int64(n.xattrs)
		next = position(next, body, tail)
		n.nid = uint64(next) / nidSize
		next += body + tail
		switch {
		case n.layout == layoutChunk:
			w.chunked = true
			next += 4 * n.data.chunks(n.Size)
		case n.IsDir():
			n.addr = uint32(dirBlocks)
			dirBlocks += int64(len(n.dir.splits))
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
	room := BlockSize - inodeSize - int64(n.xattrs)
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
		last := len(n.dir.splits) - 1
		return int64(last)*BlockSize + int64(n.dir.blockSize(last))
	case TypeSymlink:
		return int64(len(n.Target))
	default:
		return n.Size
	}
}
