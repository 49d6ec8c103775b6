package erofs

import (
	"fmt"
	"io"
)

// output writes an image front to back through a buffer.
type output struct {
	f   io.WriterAt
	buf []byte
	off int64 // where buf goes
}

const outputBuffer = 1 << 20 // bytes

func newOutput(f io.WriterAt, off int64) *output {
	return &output{f: f, buf: make([]byte, 0, outputBuffer), off: off}
}

// pos returns the position of the next byte.
func (o *output) pos() int64 { return o.off + int64(len(o.buf)) }

// addr returns the block of the next byte.
func (o *output) addr() uint32 { return uint32(o.pos() / BlockSize) }

func (o *output) write(p []byte) error {
	if (o.pos()+int64(len(p)))/BlockSize >= maxBlocks {
		return fmt.Errorf("image over %d blocks of %d bytes", uint32(maxBlocks), BlockSize)
	}
	for len(p) > 0 {
		n := min(len(p), cap(o.buf)-len(o.buf))
		o.buf = append(o.buf, p[:n]...)
		p = p[n:]
		if len(o.buf) == cap(o.buf) {
			if err := o.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// skip leaves n bytes unwritten: they read as zeros in a new file.
func (o *output) skip(n int64) error {
	if n < BlockSize {
		return o.write(zeroBlock[:n])
	}
	if (o.pos()+n)/BlockSize >= maxBlocks {
		return fmt.Errorf("image over %d blocks of %d bytes", uint32(maxBlocks), BlockSize)
	}
	if err := o.flush(); err != nil {
		return err
	}
	o.off += n
	return nil
}

// align moves to the next multiple of n, which divides BlockSize.
func (o *output) align(n int64) error {
	return o.skip(alignUp(o.pos(), n) - o.pos())
}

func (o *output) flush() error {
	if len(o.buf) == 0 {
		return nil
	}
	if _, err := o.f.WriteAt(o.buf, o.off); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	o.off += int64(len(o.buf))
	o.buf = o.buf[:0]
	return nil
}
