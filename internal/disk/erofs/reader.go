package erofs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sort"
)

// ErrCorrupt is wrapped by errors about images that break the format or use a
// part of it that the writer does not.
var ErrCorrupt = errors.New("corrupt image")

// Reader reads an image. It is safe for concurrent use if the file below is.
type Reader struct {
	r    io.ReaderAt
	meta int64 // position of the inode area
	root uint64
}

// NewReader checks the superblock and returns a reader.
func NewReader(r io.ReaderAt) (*Reader, error) {
	b := make([]byte, BlockSize-superOffset)
	if _, err := r.ReadAt(b, superOffset); err != nil {
		return nil, fmt.Errorf("read superblock: %w", eofIsCorrupt(err))
	}
	le := binary.LittleEndian
	sum := le.Uint32(b[4:])
	le.PutUint32(b[4:], 0)
	switch {
	case le.Uint32(b) != superMagic, b[12] != blockBits, le.Uint32(b[80:])&^incompatChunkedMap != 0:
		return nil, fmt.Errorf("%w: not an image of this package", ErrCorrupt)
	case superChecksum(b) != sum:
		return nil, fmt.Errorf("%w: superblock checksum differs", ErrCorrupt)
	}
	return &Reader{r: r, meta: int64(le.Uint32(b[40:])) * BlockSize, root: uint64(le.Uint16(b[14:]))}, nil
}

func eofIsCorrupt(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: cut off", ErrCorrupt)
	}
	return err
}

// Inode is a file of an image that is read.
type Inode struct {
	Attr
	NID   uint64
	Links uint32
	Size  int64

	layout uint16
	union  uint32
	body   int64 // position behind inode and attributes
}

// Root returns the root directory.
func (r *Reader) Root() (*Inode, error) { return r.Inode(r.root) }

// Inode returns the file with a number.
func (r *Reader) Inode(nid uint64) (*Inode, error) {
	if nid >= 1<<32 {
		return nil, fmt.Errorf("%w: inode number %d", ErrCorrupt, nid)
	}
	pos := r.meta + int64(nid)*nidSize
	b := make([]byte, inodeSize)
	if _, err := r.r.ReadAt(b, pos); err != nil {
		return nil, fmt.Errorf("read inode %d: %w", nid, eofIsCorrupt(err))
	}
	le := binary.LittleEndian
	format := le.Uint16(b)
	n := &Inode{NID: nid, layout: format >> 1, union: le.Uint32(b[16:]), Links: le.Uint32(b[44:]),
		Size: int64(le.Uint64(b[8:])), Attr: Attr{Mode: uint32(le.Uint16(b[4:])), UID: le.Uint32(b[24:]),
			GID: le.Uint32(b[28:]), Mtime: int64(le.Uint64(b[32:])), MtimeNsec: le.Uint32(b[40:])}}
	if format&1 == 0 || fileTypes[n.Type()] == 0 || n.Size < 0 || n.Size > MaxFile ||
		n.layout != layoutPlain && n.layout != layoutInline && n.layout != layoutChunk {
		return nil, fmt.Errorf("%w: inode %d", ErrCorrupt, nid)
	}
	if n.Type() == TypeChar || n.Type() == TypeBlock {
		n.Major, n.Minor = decodeRdev(n.union)
	}
	n.body = pos + inodeSize
	if count := int(le.Uint16(b[2:])); count > 0 {
		xattrs := make([]byte, xattrHeaderSize+4*(count-1))
		if _, err := r.r.ReadAt(xattrs, n.body); err != nil {
			return nil, fmt.Errorf("read attributes of inode %d: %w", nid, eofIsCorrupt(err))
		}
		var err error
		if n.Xattrs, err = parseXattrs(xattrs); err != nil {
			return nil, fmt.Errorf("%w: inode %d: %w", ErrCorrupt, nid, err)
		}
		n.body += int64(len(xattrs))
	}
	return n, nil
}

// Open returns the content of a regular file; holes read as zeros.
func (r *Reader) Open(n *Inode) *io.SectionReader {
	return io.NewSectionReader(&content{r.r, n}, 0, n.Size)
}

// Readlink returns the target of a symbolic link.
func (r *Reader) Readlink(n *Inode) (string, error) {
	if n.Type() != TypeSymlink || n.Size > MaxTarget {
		return "", fmt.Errorf("%w: inode %d is not a symbolic link", ErrCorrupt, n.NID)
	}
	b := make([]byte, n.Size)
	if _, err := io.ReadFull(r.Open(n), b); err != nil {
		return "", fmt.Errorf("read link: %w", eofIsCorrupt(err))
	}
	return string(b), nil
}

// content reads the bytes of an inode.
type content struct {
	r io.ReaderAt
	n *Inode
}

// ReadAt implements io.ReaderAt within the file's size.
func (c *content) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		pos, length, err := c.locate(off + int64(done))
		if err != nil {
			return done, err
		}
		piece := p[done:min(int64(len(p)), int64(done)+length)]
		if pos < 0 {
			clear(piece)
		} else if _, err := c.r.ReadAt(piece, pos); err != nil {
			return done, eofIsCorrupt(err)
		}
		done += len(piece)
	}
	return done, nil
}

// locate returns where the byte at off lies, -1 in a hole, and how many follow it.
func (c *content) locate(off int64) (pos, length int64, err error) {
	n := c.n
	if n.layout == layoutChunk {
		return c.locateChunk(off)
	}
	start := int64(n.union) * BlockSize
	tail := n.Size % BlockSize
	switch {
	case n.layout == layoutPlain:
		return start + off, n.Size - off, nil
	case off < n.Size-tail:
		return start + off, n.Size - tail - off, nil
	default:
		return n.body + off - (n.Size - tail), n.Size - off, nil
	}
}

func (c *content) locateChunk(off int64) (pos, length int64, err error) {
	chunkSize := int64(BlockSize) << (c.n.union & chunkBitsMask)
	var b [4]byte
	if _, err := c.r.ReadAt(b[:], c.n.body+off/chunkSize*4); err != nil {
		return 0, 0, eofIsCorrupt(err)
	}
	length = chunkSize - off%chunkSize
	addr := binary.LittleEndian.Uint32(b[:])
	if addr == nullAddr {
		return -1, length, nil
	}
	return int64(addr)*BlockSize + off%chunkSize, length, nil
}

// Dirent is an entry of a directory.
type Dirent struct {
	Name string
	NID  uint64
}

// Lookup returns the entry with a name, or fs.ErrNotExist.
func (r *Reader) Lookup(dir *Inode, name string) (*Inode, error) {
	blocks := int((dir.Size + BlockSize - 1) / BlockSize)
	var failed error
	// The first block whose first name is after the name we want is one too far.
	i := sort.Search(blocks, func(i int) bool {
		entries, err := r.dirBlock(dir, i)
		if err != nil {
			failed = err
			return true
		}
		return len(entries) == 0 || entries[0].Name > name
	})
	if failed != nil {
		return nil, failed
	}
	if i == 0 {
		return nil, fs.ErrNotExist
	}
	entries, err := r.dirBlock(dir, i-1)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name == name {
			return r.Inode(e.NID)
		}
	}
	return nil, fs.ErrNotExist
}

// ReadDir returns the entries of a directory but "." and "..", sorted.
func (r *Reader) ReadDir(dir *Inode) ([]Dirent, error) {
	var all []Dirent
	for i := range int((dir.Size + BlockSize - 1) / BlockSize) {
		entries, err := r.dirBlock(dir, i)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.Name != "." && e.Name != ".." {
				all = append(all, e)
			}
		}
	}
	return all, nil
}

func (r *Reader) dirBlock(dir *Inode, i int) ([]Dirent, error) {
	if !dir.IsDir() || dir.layout == layoutChunk {
		return nil, fmt.Errorf("%w: inode %d is not a directory", ErrCorrupt, dir.NID)
	}
	off := int64(i) * BlockSize
	b := make([]byte, min(BlockSize, dir.Size-off))
	c := content{r.r, dir}
	if _, err := c.ReadAt(b, off); err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	entries, err := parseDirBlock(b)
	if err != nil {
		return nil, fmt.Errorf("%w: directory %d: %w", ErrCorrupt, dir.NID, err)
	}
	return entries, nil
}

func parseDirBlock(b []byte) ([]Dirent, error) {
	if len(b) < direntSize {
		return nil, fmt.Errorf("block of %d bytes", len(b))
	}
	le := binary.LittleEndian
	count := int(le.Uint16(b[8:])) / direntSize
	if count == 0 || count*direntSize > len(b) {
		return nil, fmt.Errorf("block with %d entries", count)
	}
	entries := make([]Dirent, count)
	for i := range entries {
		e := b[i*direntSize:]
		start, end := int(le.Uint16(e[8:])), len(b)
		if i+1 < count {
			end = int(le.Uint16(e[direntSize+8:]))
		}
		if start > end || end > len(b) {
			return nil, fmt.Errorf("name at %d", start)
		}
		name := b[start:end]
		if i+1 == count {
			name, _, _ = bytes.Cut(name, []byte{0})
		}
		entries[i] = Dirent{string(name), le.Uint64(e)}
	}
	return entries, nil
}
