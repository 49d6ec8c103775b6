package qemu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// A saved memory file is like a captured one, or a delta: only the pages that
// differ from a base, each at its own place, and behind them a trailer that
// says which these are: magic, CRC of the base (see copyPages), a bitmap with
// one bit a page, lowest first. Numbers are little endian. The base is a
// captured memory file, never a delta: a save of a machine that came from a
// delta holds that delta's pages too. It is kept by a hard link beside the file.
const (
	deltaMagic  = "SKRYDLT1"
	deltaHeader = len(deltaMagic) + 4
)

func basePath(ramPath string) string { return ramPath + ".base" }

// bitmap is a set of pages.
type bitmap []byte

func newBitmap(pages int64) bitmap   { return make(bitmap, (pages+7)/8) }
func (b bitmap) has(page int64) bool { return b[page/8]&(1<<(page%8)) != 0 }
func (b bitmap) set(page int64, on bool) { // clears it if not on
	if on {
		b[page/8] |= 1 << (page % 8)
	} else {
		b[page/8] &^= 1 << (page % 8)
	}
}

// ramFile is a memory file in the making. It implements pageSink.
type ramFile struct {
	f     *os.File
	size  int64
	base  *os.File // memory the machine was started with, or nil: all zero
	holds bitmap   // pages that differ from base
	page  [pageBytes]byte
}

func newRAMFile(f *os.File, size int64, base *os.File) (*ramFile, error) {
	return &ramFile{f: f, size: size, base: base, holds: newBitmap(size / pageBytes)}, f.Truncate(size)
}

// put stores a page if it differs from the base.
func (r *ramFile) put(page int64, data []byte) error {
	same, err := r.isBase(page, data)
	if err != nil {
		return err
	}
	if same {
		return r.drop(page)
	}
	r.holds.set(page, true)
	if bytes.Equal(data, zeroPage[:]) {
		return r.punch(page)
	}
	_, err = r.f.WriteAt(data, page*pageBytes)
	return err
}

func (r *ramFile) isBase(page int64, data []byte) (bool, error) {
	if r.base == nil {
		return bytes.Equal(data, zeroPage[:]), nil
	}
	if _, err := r.base.ReadAt(r.page[:], page*pageBytes); err != nil {
		return false, err
	}
	return bytes.Equal(data, r.page[:]), nil
}

// drop forgets a page.
func (r *ramFile) drop(page int64) error {
	if !r.holds.has(page) {
		return nil
	}
	r.holds.set(page, false)
	return r.punch(page)
}

func (r *ramFile) punch(page int64) error {
	return unix.Fallocate(int(r.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, page*pageBytes, pageBytes)
}

// fill stores the base's pages that are not stored yet: the file is whole then.
func (r *ramFile) fill() error {
	if r.base == nil {
		return nil
	}
	return forPages(r.base, r.size, func(page int64, data []byte) error {
		if r.holds.has(page) {
			return nil
		}
		_, err := r.f.WriteAt(data, page*pageBytes)
		return err
	})
}

// inherit stores those of the base's pages, zero or not, that the base itself
// has as a delta: the file is then a delta to the base's own base.
func (r *ramFile) inherit(older bitmap) error {
	for page := range r.size / pageBytes {
		if !older.has(page) || r.holds.has(page) {
			continue
		}
		r.holds.set(page, true)
		if _, err := r.base.ReadAt(r.page[:], page*pageBytes); err != nil {
			return err
		}
		if r.page == zeroPage {
			continue
		}
		if _, err := r.f.WriteAt(r.page[:], page*pageBytes); err != nil {
			return err
		}
	}
	return nil
}

// finish makes the file a delta to the base with this CRC.
func (r *ramFile) finish(baseCRC uint32) error {
	b := binary.LittleEndian.AppendUint32([]byte(deltaMagic), baseCRC)
	_, err := r.f.WriteAt(append(b, r.holds...), r.size)
	return err
}

// delta is what a trailer says.
type delta struct {
	baseCRC uint32
	holds   bitmap
}

// readDelta reads the trailer of a memory file of size bytes; nil if it has none.
func readDelta(f *os.File, size int64) (*delta, error) {
	fi, err := f.Stat()
	if err != nil || fi.Size() == size {
		return nil, err
	}
	n := int64(deltaHeader + len(newBitmap(size/pageBytes)))
	if fi.Size() != size+n {
		return nil, fmt.Errorf("it has %d bytes, want %d or %d", fi.Size(), size, size+n)
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, size); err != nil {
		return nil, err
	}
	if string(b[:len(deltaMagic)]) != deltaMagic {
		return nil, errors.New("its trailer is damaged")
	}
	return &delta{baseCRC: binary.LittleEndian.Uint32(b[len(deltaMagic):]), holds: b[deltaHeader:]}, nil
}

// pages calls f for each page of the delta, in order.
func (d *delta) pages(file *os.File, size int64, f func(page int64, data []byte) error) error {
	var data [pageBytes]byte
	for page := range size / pageBytes {
		if !d.holds.has(page) {
			continue
		}
		if _, err := file.ReadAt(data[:], page*pageBytes); err != nil {
			return err
		}
		if err := f(page, data[:]); err != nil {
			return err
		}
	}
	return nil
}

// crc is that of the trailer and of all pages with their numbers.
func (d *delta) crc(file *os.File, size int64) (uint32, error) {
	return d.apply(file, size, discardAt{})
}

// apply writes the delta's pages to dst and returns the CRC.
func (d *delta) apply(file *os.File, size int64, dst io.WriterAt) (uint32, error) {
	head := binary.LittleEndian.AppendUint32(nil, d.baseCRC)
	crc := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, d.holds)
	err := d.pages(file, size, func(page int64, data []byte) error {
		crc = pageCRC(crc, page, data)
		_, err := dst.WriteAt(data, page*pageBytes)
		return err
	})
	return crc, err
}

// forPages calls f for each page of a file that is not zero.
func forPages(file *os.File, size int64, f func(page int64, data []byte) error) error {
	return fileMemory{file, size}.runs(func(from, to int64) error {
		var data [pageBytes]byte
		for ; from < to; from++ {
			if _, err := file.ReadAt(data[:], from*pageBytes); err != nil {
				return err
			}
			if bytes.Equal(data[:], zeroPage[:]) {
				continue
			}
			if err := f(from, data[:]); err != nil {
				return err
			}
		}
		return nil
	})
}

// discardAt is where pages go that only their CRC is wanted of.
type discardAt struct{}

func (discardAt) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

// sameAs is where the pages of a base go that must be those of a memory.
type sameAs struct{ memory *os.File }

func (s sameAs) WriteAt(p []byte, at int64) (int, error) {
	got := make([]byte, len(p))
	if _, err := s.memory.ReadAt(got, at); err != nil {
		return 0, err
	}
	if !bytes.Equal(got, p) {
		return 0, fmt.Errorf("the machine was not started from it: memory differs at byte %d or after", at)
	}
	return len(p), nil
}

// BaseFiles lists the files that make up a memory, given the name Capture or Save
// was called with; the second is there only if it is a delta.
func BaseFiles(ramPath string) []string { return []string{ramPath, basePath(ramPath)} }

// linkBase keeps the base of a delta beside ramPath: the file at from, or, if
// that is a delta, its base; then the delta is returned too. The pages are
// checked against want. The CRC is the base's.
func linkBase(from, ramPath string, want io.WriterAt, size int64) (*delta, uint32, error) {
	f, err := os.Open(from)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	d, err := readDelta(f, size)
	if err != nil {
		return nil, 0, err
	}
	if d != nil {
		if _, err := d.apply(f, size, want); err != nil {
			return nil, 0, err
		}
		return d, d.baseCRC, link(basePath(from), basePath(ramPath))
	}
	crc, err := copyPages(want, f, size)
	if err != nil {
		return nil, 0, err
	}
	return nil, crc, link(from, basePath(ramPath))
}

// link makes a hard link, also where one of an earlier try is left.
func link(from, to string) error {
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Link(from, to)
}
