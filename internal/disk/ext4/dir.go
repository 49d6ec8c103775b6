package ext4

import (
	"encoding/binary"
	"fmt"
	"strings"
)

const (
	direntHeader = 8  // bytes before the name
	dirTail      = 12 // bytes of the checksum entry at the end of a block
	dirTailType  = 0xde
)

// Dirent is a name in a directory.
type Dirent struct {
	Name  string // without slashes and zero bytes, not "." or ".."
	Inode uint32
}

// ReadDir calls visit for each name of a directory, in no order. It reads all
// blocks in a row and ignores the hash tree, which has no names of its own. An
// error of visit ends it.
func (r *Reader) ReadDir(dir *Inode, visit func(Dirent) error) error {
	if !dir.IsDir() {
		return fmt.Errorf("inode %d is no directory", dir.Number)
	}
	blocks := uint64(dir.Size / blockSize)
	for nr := uint64(0); nr < blocks; {
		e, err := r.nextExtent(dir, nr)
		if err != nil {
			return fmt.Errorf("directory %d: %w", dir.Number, err)
		}
		if e.start == 0 { // a hole holds no names; Linux skips it, too
			nr = e.end()
			continue
		}
		for end := min(e.end(), blocks); nr < end; nr++ {
			b, err := r.block(e.start + nr - e.first)
			if err == nil {
				err = r.readDirBlock(dir, nr, b, visit)
			}
			if err != nil {
				return fmt.Errorf("directory %d: block %d: %w", dir.Number, nr, err)
			}
		}
	}
	return nil
}

func (r *Reader) readDirBlock(dir *Inode, nr uint64, b []byte, visit func(Dirent) error) error {
	le := binary.LittleEndian
	if !isIndexNode(dir, nr, b) {
		tail := b[blockSize-dirTail:]
		if le.Uint32(tail) != 0 || le.Uint16(tail[4:]) != dirTail || tail[6] != 0 || tail[7] != dirTailType {
			return corrupt("no checksum")
		}
		if err := r.check(checksum(dir.seed, b[:blockSize-dirTail]), le.Uint32(tail[8:])); err != nil {
			return err
		}
		b = b[:blockSize-dirTail]
	}
	for len(b) > 0 {
		if len(b) < direntHeader {
			return corrupt("entry at the end")
		}
		inode, size, nameLen := le.Uint32(b), int(le.Uint16(b[4:])), int(b[6])
		if size < direntHeader || size%4 != 0 || size > len(b) || nameLen > size-direntHeader {
			return corrupt("entry of %d bytes with a name of %d", size, nameLen)
		}
		name := string(b[direntHeader:][:nameLen])
		b = b[size:]
		if inode == 0 || name == "." || name == ".." {
			continue
		}
		if name == "" || strings.ContainsAny(name, "/\x00") {
			return corrupt("name %q", name)
		}
		if err := visit(Dirent{name, inode}); err != nil {
			return err
		}
	}
	return nil
}

// isIndexNode tells a node of the hash tree, which is disguised as a block
// without names: the root's ".." or an unused entry reaches to the block's end.
func isIndexNode(dir *Inode, nr uint64, b []byte) bool {
	if dir.flags&flagIndex == 0 {
		return false
	}
	le := binary.LittleEndian
	if nr == 0 {
		return le.Uint16(b[4:]) == 12 && le.Uint16(b[16:]) == blockSize-12
	}
	return le.Uint32(b) == 0 && le.Uint16(b[4:]) == blockSize
}
