package erofs

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Writer writes one image. It is not safe for concurrent use.
type Writer struct {
	out      *output
	tails    int    // bytes of tails in memory
	copyBuf  []byte // of WriteFile
	inodeBuf []byte // of writeInode

	chunked bool // some file has a chunk map
}

// NewWriter returns a writer to a new, empty file. What it does not write must
// read as zeros.
func NewWriter(f io.WriterAt) *Writer {
	return &Writer{out: newOutput(f, BlockSize)}
}

// Finish writes everything but the data, which WriteFile has stored, and
// returns the length of the image: a multiple of BlockSize. The file may be
// shorter, if the image ends with zeros; the caller sets its length.
func (w *Writer) Finish(root *Node) (int64, error) {
	if !root.IsDir() {
		return 0, fmt.Errorf("root is not a directory")
	}
	order, err := number(root)
	if err != nil {
		return 0, err
	}
	end, err := w.place(order)
	if err != nil {
		return 0, err
	}
	meta := w.out.addr()
	dirs := int64(meta) + alignUp(end, BlockSize)/BlockSize
	if dirs >= maxBlocks {
		return 0, fmt.Errorf("image over %d blocks of %d bytes", uint32(maxBlocks), BlockSize)
	}
	base := w.out.pos()
	for _, n := range order {
		if err := w.out.skip(base + int64(n.nid)*nidSize - w.out.pos()); err != nil {
			return 0, err
		}
		if err := w.writeInode(n, uint32(dirs)); err != nil {
			return 0, err
		}
	}
	if err := w.out.align(BlockSize); err != nil {
		return 0, err
	}
	if err := w.writeDirs(order); err != nil {
		return 0, err
	}
	if err := w.out.flush(); err != nil {
		return 0, err
	}
	return w.writeSuper(meta, order)
}

func (w *Writer) writeSuper(meta uint32, order []*Node) (int64, error) {
	s := super{inodes: uint64(len(order)), blocks: w.out.addr(), metaAddr: meta, rootNID: uint16(order[0].nid)}
	if w.chunked {
		s.incompat |= incompatChunkedMap
	}
	if _, err := w.out.f.WriteAt(s.encode(), 0); err != nil {
		return 0, fmt.Errorf("write superblock: %w", err)
	}
	return w.out.pos(), nil
}

// writeInode writes an inode, its attributes and its tail or chunk map.
func (w *Writer) writeInode(n *Node, dirs uint32) error {
	b := append(w.inodeBuf[:0], make([]byte, inodeSize)...)
	defer func() { w.inodeBuf = b }()
	le := binary.LittleEndian
	le.PutUint16(b[0:], n.layout<<1|1)
	if n.xattrs > 0 {
		le.PutUint16(b[2:], uint16(1+(n.xattrs-xattrHeaderSize)/4))
	}
	le.PutUint16(b[4:], uint16(n.Mode))
	le.PutUint64(b[8:], uint64(n.storedSize()))
	le.PutUint32(b[16:], n.union(dirs))
	le.PutUint32(b[20:], uint32(n.nid))
	le.PutUint32(b[24:], n.UID)
	le.PutUint32(b[28:], n.GID)
	le.PutUint64(b[32:], uint64(n.Mtime))
	le.PutUint32(b[40:], n.MtimeNsec)
	le.PutUint32(b[44:], n.links)
	b = appendXattrs(b, n.Xattrs)

	switch {
	case n.layout == layoutChunk:
		if err := w.out.write(b); err != nil {
			return err
		}
		return w.writeChunkMap(&n.data, n.Size)
	case n.layout != layoutInline:
	case n.IsDir():
		b = n.appendDirBlock(b, len(n.dir.splits)-1)
	case n.Type() == TypeSymlink:
		b = append(b, n.Target...)
	default:
		b = append(b, n.data.tail...)
	}
	n.data.tail = nil
	return w.out.write(b)
}

// union is the field of an inode whose meaning depends on type and layout.
func (n *Node) union(dirs uint32) uint32 {
	switch {
	case n.Type() == TypeChar || n.Type() == TypeBlock:
		return encodeRdev(n.Major, n.Minor)
	case n.layout == layoutChunk:
		return uint32(n.data.chunkBits)
	case n.IsDir():
		return dirs + n.addr
	default:
		return n.addr
	}
}

// writeChunkMap writes the block address of each chunk of a file.
func (w *Writer) writeChunkMap(d *data, size int64) error {
	chunk := int64(BlockSize) << d.chunkBits
	chunks := uint32((size + chunk - 1) / chunk)
	var b [4]byte
	for i, r := range d.runs {
		end := chunks
		if i+1 < len(d.runs) {
			end = d.runs[i+1].chunk
		}
		for c := r.chunk; c < end; c++ {
			addr := r.addr
			if addr != nullAddr {
				addr += (c - r.chunk) << d.chunkBits
			}
			binary.LittleEndian.PutUint32(b[:], addr)
			if err := w.out.write(b[:]); err != nil {
				return err
			}
		}
	}
	return nil
}
