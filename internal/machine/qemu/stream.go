package qemu

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// The parts of QEMU's migration stream that a save reads and writes
// (migration/savevm.c and migration/ram.c in the QEMU source). Numbers are
// big endian. A stream is magic and version, a configuration section, the
// sections of "ram", the sections of all devices, an end mark.
const (
	streamMagic   = "QEVM\x00\x00\x00\x03"
	sectionEOF    = 0x00
	sectionStart  = 0x01
	sectionPart   = 0x02
	sectionEnd    = 0x03
	sectionFull   = 0x04
	sectionVMDesc = 0x06
	sectionConfig = 0x07
	sectionFooter = 0x7e
)

// A record of "ram" is an address in a memory block, with flags in the bits
// that a page's address leaves free.
const (
	ramZero     = 0x02 // one byte follows: the page is full of it
	ramMemSize  = 0x04 // the blocks and their sizes follow
	ramPage     = 0x08 // a page follows
	ramEOS      = 0x10 // end of the section
	ramContinue = 0x20 // the block is that of the record before; else its name follows

	ramVersion = 4
	ramFlags   = pageBytes - 1
)

// subsectionMark begins a subsection, in the configuration section too.
const subsectionMark = 0x05

// maxHeadBytes bounds what is kept of a stream's head: the machine's read-only
// memory is below 3 MiB.
const maxHeadBytes = 16 << 20

// head is the beginning of a stream: all before the first device.
type head struct {
	start   []byte // to the end of the section that lists the memory blocks
	rest    []byte // sections with the pages of blocks other than the pluggable
	section uint32 // number of the section "ram"
	blocks  []ramBlock
}

type ramBlock struct {
	name  string
	bytes int64
}

// pluggable is the name of the memory block beyond the base, or "".
func (h *head) pluggable() string {
	for _, b := range h.blocks {
		if isPluggable(b.name) {
			return b.name
		}
	}
	return ""
}

// isPluggable: QEMU puts the address of the memory's device in front.
func isPluggable(name string) bool { return strings.HasSuffix(name, "/"+pluggableMemory) }

// headReader reads a head and keeps what it read in out.
type headReader struct {
	r     *bufio.Reader
	out   bytes.Buffer
	keep  bool // what is read now
	h     head
	share bool // capability x-ignore-shared: blocks have addresses
	last  string
	err   error
}

var errNotStream = errors.New("not a saved machine")

// readHead reads the head of a stream and drops the pages of pluggable memory.
// It reads beyond the head's end. What it reads may be of any content.
func readHead(r io.Reader) (*head, error) {
	d := &headReader{r: bufio.NewReader(r), keep: true}
	d.magic()
	d.config()
	d.startSection()
	for d.err == nil && d.nextSection() {
	}
	if d.err != nil {
		return nil, fmt.Errorf("read state: %w", d.err)
	}
	d.h.rest = bytes.Clone(d.out.Bytes())
	return &d.h, nil
}

// ignoresShared tells whether a state was written without the memory that
// QEMU shares: who reads it must say so too.
func ignoresShared(r io.Reader) (bool, error) {
	d := &headReader{r: bufio.NewReaderSize(r, 1<<10)}
	d.magic()
	d.config()
	if d.err != nil {
		return false, fmt.Errorf("read state: %w", d.err)
	}
	return d.share, nil
}

func (d *headReader) magic() {
	if string(d.bytes(len(streamMagic))) != streamMagic && d.err == nil {
		d.err = errNotStream
	}
}

func (d *headReader) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

// bytes reads n bytes, at most a page; they are valid until the next call.
func (d *headReader) bytes(n int) []byte {
	var buf [pageBytes]byte
	if d.err != nil {
		return buf[:n]
	}
	if _, err := io.ReadFull(d.r, buf[:n]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		d.err = err
	}
	if d.keep {
		d.out.Write(buf[:n])
	}
	if d.out.Len() > maxHeadBytes {
		d.fail("head is longer than %d bytes", maxHeadBytes)
	}
	return buf[:n]
}

func (d *headReader) byte() byte     { return d.bytes(1)[0] }
func (d *headReader) uint32() uint32 { return binary.BigEndian.Uint32(d.bytes(4)) }
func (d *headReader) uint64() uint64 { return binary.BigEndian.Uint64(d.bytes(8)) }
func (d *headReader) name() string   { return string(d.bytes(int(d.byte()))) }

// config reads the configuration section: the machine's type and, as
// subsections, what else both sides must agree on.
func (d *headReader) config() {
	if d.byte() != sectionConfig {
		d.fail("no configuration section")
		return
	}
	if n := d.uint32(); n > 256 {
		d.fail("machine type of %d bytes", n)
	} else {
		d.bytes(int(n))
	}
	for d.err == nil && d.peek() == subsectionMark {
		d.byte()
		name := d.name()
		d.uint32() // version
		if name != "configuration/capabilities" {
			d.fail("subsection %q is unknown", name)
			return
		}
		n := d.uint32()
		for ; n > 0 && d.err == nil; n-- {
			if c := d.name(); c == "x-ignore-shared" {
				d.share = true
			} else {
				d.fail("capability %q is unknown", c)
			}
		}
	}
}

func (d *headReader) peek() byte {
	if d.err != nil {
		return 0
	}
	b, err := d.r.Peek(1)
	if err != nil {
		d.fail("%w", io.ErrUnexpectedEOF)
		return 0
	}
	return b[0]
}

// startSection reads the first section of "ram", the list of blocks.
func (d *headReader) startSection() {
	if t := d.byte(); t != sectionStart {
		d.fail("section of type %d, want the start of memory", t)
		return
	}
	d.h.section = d.uint32()
	name, _, version := d.name(), d.uint32(), d.uint32()
	if name != "ram" || version != ramVersion {
		d.fail("section %q version %d, want ram version %d", name, version, ramVersion)
		return
	}
	d.records()
	d.footer()
	if len(d.h.blocks) == 0 {
		d.fail("no list of memory blocks")
	}
	d.h.start = bytes.Clone(d.out.Bytes())
	d.out.Reset()
}

// nextSection reads a further section of "ram" and tells whether there was one.
// A section of which nothing is left is dropped.
func (d *headReader) nextSection() bool {
	t := d.peek()
	if t != sectionPart && t != sectionEnd {
		if t != sectionFull {
			d.fail("section of type %d after memory", t)
		}
		return false
	}
	before := d.out.Len()
	d.byte()
	if id := d.uint32(); id != d.h.section {
		d.fail("section %d, want %d", id, d.h.section)
	}
	kept := d.records()
	d.footer()
	if kept == 0 && t == sectionPart {
		d.out.Truncate(before)
	}
	return true
}

func (d *headReader) footer() {
	if t := d.byte(); t != sectionFooter {
		d.fail("section without a footer")
		return
	}
	if id := d.uint32(); id != d.h.section {
		d.fail("footer of section %d, want %d", id, d.h.section)
	}
}

// records reads the records of one section and returns how many pages were
// kept. A dropped page's block is never the one that a kept page continues.
func (d *headReader) records() (kept int) {
	for d.err == nil {
		mark := d.out.Len()
		v := d.uint64()
		flags := v & ramFlags
		switch flags &^ ramContinue {
		case ramEOS:
			return kept
		case ramMemSize:
			d.sizes(v &^ ramFlags)
		case ramZero, ramPage:
			if flags&ramContinue == 0 {
				d.last = d.name()
			} else if d.last == "" {
				d.fail("page of no block")
			}
			d.keep = !isPluggable(d.last)
			n := 1
			if flags&ramPage != 0 {
				n = pageBytes
			}
			d.bytes(n)
			if d.keep {
				kept++
			} else {
				d.out.Truncate(mark)
			}
			d.keep = true
		default:
			d.fail("memory record with flags %#x", flags)
		}
	}
	return kept
}

// maxRAMBlocks bounds the list of memory blocks; a machine has seven.
const maxRAMBlocks = 64

func (d *headReader) sizes(total uint64) {
	for sum := uint64(0); sum < total && d.err == nil; {
		b := ramBlock{name: d.name(), bytes: int64(d.uint64())}
		if d.share {
			d.uint64() // guest address
		}
		if b.bytes <= 0 || len(d.h.blocks) == maxRAMBlocks {
			d.fail("list of memory blocks is damaged")
			return
		}
		d.h.blocks = append(d.h.blocks, b)
		sum += uint64(b.bytes)
	}
}

// newHead is the head of a machine that was not restored from a stream.
func newHead(machineType string, blocks []ramBlock) *head {
	const section = 2
	h := &head{section: section, blocks: blocks}
	b := append([]byte(streamMagic), sectionConfig)
	b = binary.BigEndian.AppendUint32(b, uint32(len(machineType)))
	b = append(b, machineType...)
	b = append(b, sectionStart)
	b = binary.BigEndian.AppendUint32(b, section)
	b = appendName(b, "ram")
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, ramVersion)
	var total int64
	for _, k := range blocks {
		total += k.bytes
	}
	b = binary.BigEndian.AppendUint64(b, uint64(total)|ramMemSize)
	for _, k := range blocks {
		b = appendName(b, k.name)
		b = binary.BigEndian.AppendUint64(b, uint64(k.bytes))
	}
	h.start = appendSectionEnd(b, section)
	return h
}

func appendName(b []byte, name string) []byte {
	return append(append(b, byte(len(name))), name...)
}

func appendSectionEnd(b []byte, section uint32) []byte {
	b = binary.BigEndian.AppendUint64(b, ramEOS)
	return binary.BigEndian.AppendUint32(append(b, sectionFooter), section)
}

// pageStream writes the pages of one memory block as a section of "ram". A page
// may come again: the last one counts.
type pageStream struct {
	w       *bufio.Writer
	block   string
	section uint32
	begun   bool
	bytes   int64 // of pages that are not zero, with those that came again
	err     error
}

func newPageStream(w *bufio.Writer, h *head) *pageStream {
	return &pageStream{w: w, block: h.pluggable(), section: h.section}
}

func (s *pageStream) write(b []byte) {
	if s.err == nil {
		_, s.err = s.w.Write(b)
	}
}

// put implements pageSink.
func (s *pageStream) put(page int64, data []byte) error {
	zero := bytes.Equal(data, zeroPage[:])
	v := uint64(page * pageBytes)
	if zero {
		v |= ramZero
	} else {
		v |= ramPage
	}
	var b []byte
	if !s.begun {
		b = binary.BigEndian.AppendUint32([]byte{sectionPart}, s.section)
		b = appendName(binary.BigEndian.AppendUint64(b, v), s.block)
	} else {
		b = binary.BigEndian.AppendUint64(b, v|ramContinue)
	}
	s.begun = true
	if zero {
		s.write(append(b, 0))
		return s.err
	}
	s.bytes += pageBytes
	s.write(b)
	s.write(data)
	return s.err
}

// drop implements pageSink.
func (s *pageStream) drop(page int64) error { return s.put(page, zeroPage[:]) }

// finish ends the section.
func (s *pageStream) finish() error {
	if s.begun {
		s.write(appendSectionEnd(nil, s.section))
	}
	return s.err
}
