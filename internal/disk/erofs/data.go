package erofs

import (
	"bytes"
	"fmt"
	"io"
)

const (
	copyBuffer = 256 << 10 // bytes

	// maxChunks bounds the chunk map of a file: 4 bytes for each chunk.
	maxChunks = 1 << 14
	// minHole is the shortest run of zeros, in bytes, that becomes a hole:
	// shorter ones would cost a contiguous file more than they save.
	minHole = 64 << 10

	// maxTail is the longest tail, in bytes, that is kept with its inode.
	// Longer ones would leave gaps between inodes as large as they save.
	maxTail = 2048
	// tailBudget bounds the bytes of tails that wait in memory for the
	// inode area; later files get whole blocks.
	tailBudget = 64 << 20
)

var zeroBlock [BlockSize]byte

// WriteFile reads n.Size bytes from r and stores them as the content of n, a
// regular file. Runs of zeros become holes.
func (w *Writer) WriteFile(n *Node, r io.Reader) error {
	if n.Type() != TypeRegular || n.Size < 0 || n.Size > MaxFile || n.data.written {
		return fmt.Errorf("cannot store %d bytes as content of mode %#o", n.Size, n.Mode)
	}
	d := dataWriter{w: w, file: &n.data, blocks: (n.Size + BlockSize - 1) / BlockSize}
	for d.chunks() > maxChunks {
		d.file.chunkBits++
	}
	if w.copyBuf == nil {
		w.copyBuf = make([]byte, copyBuffer)
	}
	for left := n.Size; left > 0; {
		buf := w.copyBuf[:min(left, copyBuffer)]
		if _, err := io.ReadFull(r, buf); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("read data: %w", err)
		}
		left -= int64(len(buf))
		if err := d.write(buf); err != nil {
			return err
		}
	}
	if err := d.finish(); err != nil {
		return err
	}
	n.data.written = true
	return nil
}

// dataWriter stores one file's content.
type dataWriter struct {
	w      *Writer
	file   *data
	blocks int64 // of the whole file
	next   int64 // block of the file that comes next
	zeros  int64 // blocks of zeros before next that are not yet accounted for
}

func (d *dataWriter) perChunk() int64 { return 1 << d.file.chunkBits }

func (d *dataWriter) chunks() int64 {
	return (d.blocks + d.perChunk() - 1) >> d.file.chunkBits
}

// write stores the next bytes: whole blocks, except at the end of the file.
// Neighbouring blocks with data go out in one piece.
func (d *dataWriter) write(p []byte) error {
	var start int // of the piece of p that has data and is not yet out
	for off := 0; off < len(p); off += BlockSize {
		block := p[off:min(off+BlockSize, len(p))]
		if !bytes.Equal(block, zeroBlock[:len(block)]) {
			if err := d.settle(false); err != nil {
				return err
			}
			if d.keepTail(block) {
				return d.w.out.write(p[start:off])
			}
			d.next++
			continue
		}
		if err := d.w.out.write(p[start:off]); err != nil {
			return err
		}
		start = off + len(block)
		d.zeros++
		d.next++
	}
	return d.w.out.write(p[start:])
}

// keepTail keeps a short last block for the inode area, if the file has no hole.
func (d *dataWriter) keepTail(block []byte) bool {
	if len(block) > maxTail || d.next != d.blocks-1 || len(d.file.runs) > 1 ||
		len(d.file.runs) == 1 && d.file.runs[0].addr == nullAddr || d.w.tails+len(block) > tailBudget {
		return false
	}
	d.w.tails += len(block)
	d.file.tail = bytes.Clone(block)
	d.next++
	if d.next == 1 {
		d.file.runs = nil // nothing but the tail
	}
	return true
}

// settle turns the zeros before the next block into a hole or, if they are few,
// into blocks that are left out of the written file, and starts a run for what
// follows.
func (d *dataWriter) settle(end bool) error {
	defer func() { d.zeros = 0 }()
	first := d.next - d.zeros
	holeStart := (first + d.perChunk() - 1) >> d.file.chunkBits
	holeEnd := d.next >> d.file.chunkBits
	if end {
		holeEnd = d.chunks()
	}
	if holeEnd <= holeStart || (holeEnd-holeStart)<<d.file.chunkBits*BlockSize < minHole {
		if len(d.file.runs) == 0 {
			d.startRun(0)
		}
		return d.skip(d.zeros)
	}
	holeFirst := min(holeStart<<d.file.chunkBits, d.blocks)
	if holeFirst > first {
		if len(d.file.runs) == 0 {
			d.startRun(0)
		}
		if err := d.skip(holeFirst - first); err != nil {
			return err
		}
	}
	d.file.runs = append(d.file.runs, run{uint32(holeStart), nullAddr})
	if end {
		return nil
	}
	d.startRun(holeEnd)
	return d.skip(d.next - holeEnd<<d.file.chunkBits)
}

func (d *dataWriter) startRun(chunk int64) {
	d.file.runs = append(d.file.runs, run{uint32(chunk), d.w.out.addr()})
}

// skip leaves out blocks of zeros: the file under the image has a hole there.
func (d *dataWriter) skip(blocks int64) error {
	if blocks <= 0 {
		return nil
	}
	return d.w.out.skip(blocks * BlockSize)
}

func (d *dataWriter) finish() error {
	if d.zeros > 0 {
		if err := d.settle(true); err != nil {
			return err
		}
	}
	if err := d.w.out.align(BlockSize); err != nil {
		return err
	}
	d.file.coarsen(d.chunks())
	return nil
}

// flat reports whether the content is blocks in a row.
func (f *data) flat() bool {
	return len(f.runs) == 0 || len(f.runs) == 1 && f.runs[0].addr != nullAddr
}

// coarsen makes the chunk map as small as the positions of the holes permit.
func (f *data) coarsen(chunks int64) {
	if f.flat() {
		return
	}
	for ; chunks > 1 && f.chunkBits < chunkBitsMask; chunks = (chunks + 1) / 2 {
		for _, r := range f.runs {
			if r.chunk%2 != 0 {
				return
			}
		}
		for i := range f.runs {
			f.runs[i].chunk /= 2
		}
		f.chunkBits++
	}
}
