package ext4

import (
	"fmt"
	"io"
)

// File is the content of a file. It holds no resources.
type File struct {
	fs   *Reader
	node *Inode
}

// Open returns the content of a regular file.
func (r *Reader) Open(n *Inode) *File { return &File{r, n} }

// ReadAt implements io.ReaderAt. Holes read as zeros.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at %d", off)
	}
	done := 0
	for done < len(p) && off < f.node.Size {
		e, err := f.extent(off)
		if err != nil {
			return done, err
		}
		skip := off - int64(e.first)*blockSize
		n := min(int64(e.count)*blockSize-skip, int64(len(p)-done), f.node.Size-off)
		part := p[done:][:n]
		if e.start == 0 {
			clear(part)
		} else if err := f.fs.read(part, int64(e.start)*blockSize+skip); err != nil {
			return done, err
		}
		done += int(n)
		off += n
	}
	if done < len(p) {
		return done, io.EOF
	}
	return done, nil
}

// NextData returns the first range of written data that ends after off, as
// lseek(2) does with SEEK_DATA and SEEK_HOLE; ranges that follow one another may
// touch. It returns io.EOF if nothing but a hole is left.
func (f *File) NextData(off int64) (start, end int64, err error) {
	for off < f.node.Size {
		e, err := f.extent(off)
		if err != nil {
			return 0, 0, err
		}
		end := min(int64(e.end())*blockSize, f.node.Size)
		if e.start != 0 {
			return max(off, int64(e.first)*blockSize), end, nil
		}
		off = end
	}
	return 0, 0, io.EOF
}

func (f *File) extent(off int64) (extent, error) {
	e, err := f.fs.nextExtent(f.node, uint64(off)/blockSize)
	if err != nil {
		return e, fmt.Errorf("inode %d: %w", f.node.Number, err)
	}
	return e, nil
}
