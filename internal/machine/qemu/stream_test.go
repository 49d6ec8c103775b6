package qemu

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// record is a page of "ram" as QEMU writes it.
func record(page int64, block string, data []byte) []byte {
	v := uint64(page*pageBytes) | ramPage
	if len(data) == 1 {
		v = uint64(page*pageBytes) | ramZero
	}
	if block == "" {
		v |= ramContinue
	}
	b := binary.BigEndian.AppendUint64(nil, v)
	if block != "" {
		b = appendName(b, block)
	}
	return append(b, data...)
}

// part is a section of "ram" with records.
func part(kind byte, records ...[]byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{kind}, 2)
	return appendSectionEnd(append(b, slices.Concat(records...)...), 2)
}

const testPluggable = "0000:00:06.0/" + pluggableMemory

func testBlocks() []ramBlock {
	return []ramBlock{{testPluggable, 8 << 20}, {"ram", 4 << 20}, {"pc.bios", 256 << 10}}
}

// device is the section of a device, which a head does not read.
var device = []byte{sectionFull, 0, 0, 0, 3, 5, 't', 'i', 'm', 'e', 'r'}

func pageOf(c byte) []byte { return bytes.Repeat([]byte{c}, pageBytes) }

// TestReadHead: a head keeps all but the pages of pluggable memory, and what
// was written as a head is read as it was.
func TestReadHead(t *testing.T) {
	start := newHead("pc-q35-7.2", testBlocks()).start
	for _, c := range []struct {
		name string
		rest [][]byte
		want [][]byte
	}{
		{"no pages", nil, nil},
		{"read-only memory", [][]byte{part(sectionPart, record(0, "pc.bios", pageOf('a')), record(1, "", []byte{0})), part(sectionEnd)},
			[][]byte{part(sectionPart, record(0, "pc.bios", pageOf('a')), record(1, "", []byte{0})), part(sectionEnd)}},
		{"between pluggable memory", [][]byte{part(sectionPart, record(7, testPluggable, pageOf('p')), record(8, "", []byte{0}), record(0, "pc.bios", pageOf('a'))), part(sectionEnd)},
			[][]byte{part(sectionPart, record(0, "pc.bios", pageOf('a'))), part(sectionEnd)}},
		{"only pluggable memory", [][]byte{part(sectionPart, record(7, testPluggable, pageOf('p'))), part(sectionEnd, record(8, "", pageOf('p')))},
			[][]byte{part(sectionEnd)}},
	} {
		h, err := readHead(bytes.NewReader(slices.Concat(start, slices.Concat(c.rest...), device)))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if !bytes.Equal(h.start, start) || !bytes.Equal(h.rest, slices.Concat(c.want...)) {
			t.Errorf("%s: got %d and %d bytes, want %d and %d", c.name, len(h.start), len(h.rest), len(start), len(slices.Concat(c.want...)))
		}
		if !slices.Equal(h.blocks, testBlocks()) || h.pluggable() != testPluggable || h.section != 2 {
			t.Errorf("%s: got %+v, section %d", c.name, h.blocks, h.section)
		}
	}
}

// TestPageStream: what pageStream writes is a section that is read, and
// dropped, by the next save.
func TestPageStream(t *testing.T) {
	h := newHead("pc-q35-7.2", testBlocks())
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	s := newPageStream(w, h)
	for _, err := range []error{s.put(3, pageOf('x')), s.drop(3), s.put(4, pageOf('y')), s.finish(), w.Flush()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := part(sectionPart, record(3, testPluggable, pageOf('x')), record(3, "", []byte{0}), record(4, "", pageOf('y')))
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("got %d bytes, want %d", b.Len(), len(want))
	}
	got, err := readHead(bytes.NewReader(slices.Concat(h.start, b.Bytes(), device)))
	if err != nil || len(got.rest) != 0 {
		t.Errorf("read back: got %+v, %v", got, err)
	}
	var none bytes.Buffer
	w = bufio.NewWriter(&none)
	if err := newPageStream(w, h).finish(); err != nil || w.Buffered() != 0 {
		t.Errorf("no pages: got %d bytes, %v; want none", w.Buffered(), err)
	}
}

// TestDamagedHead: every way to be no head is an error that says what.
func TestDamagedHead(t *testing.T) {
	start := newHead("pc-q35-7.2", testBlocks()).start
	whole := slices.Concat(start, part(sectionPart, record(0, "pc.bios", pageOf('a'))), part(sectionEnd), device)
	for n := 0; n <= len(whole)-len(device); n++ {
		if n > len(start)+50 && n < len(whole)-len(device)-150 {
			n += 100 // inside the page
		}
		if _, err := readHead(bytes.NewReader(whole[:n])); err == nil {
			t.Errorf("cut after %d bytes: got nil, want an error", n)
		}
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"text":            {[]byte("no stream at all"), "not a saved machine"},
		"unknown flags":   {slices.Concat(start, part(sectionPart, binary.BigEndian.AppendUint64(nil, 0x40))), "flags 0x40"},
		"other section":   {slices.Concat(start, []byte{0x09}), "type 9"},
		"page of nothing": {slices.Concat(start, part(sectionPart, record(0, "", pageOf('a')))), "no block"},
		"no blocks":       {newHead("pc-q35-7.2", nil).start, "no list"},
		"endless": {slices.Concat(start, binary.BigEndian.AppendUint32([]byte{sectionPart}, 2),
			bytes.Repeat(record(0, "pc.bios", pageOf('a')), maxHeadBytes/pageBytes+1)), "longer than"},
	} {
		if _, err := readHead(bytes.NewReader(c.data)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func FuzzReadHead(f *testing.F) {
	start := newHead("pc-q35-7.2", testBlocks()).start
	f.Add(slices.Concat(start, part(sectionPart, record(0, "pc.bios", pageOf('a')), record(1, "", []byte{0})), part(sectionEnd), device))
	f.Add(slices.Concat(start, part(sectionEnd, record(7, testPluggable, pageOf('p')), record(0, "ram", []byte{0})), device))
	f.Add([]byte(streamMagic + "\x07\x00\x00\x00\x01q\x05\x1aconfiguration/capabilities\x00\x00\x00\x01\x00\x00\x00\x01\x0fx-ignore-shared"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := readHead(bytes.NewReader(data))
		if err != nil {
			return
		}
		// What was read is a head itself, and reads as the same.
		again, err := readHead(bytes.NewReader(slices.Concat(h.start, h.rest, device)))
		if err != nil || !bytes.Equal(again.rest, h.rest) || !bytes.Equal(again.start, h.start) {
			t.Fatalf("read again: %v", err)
		}
		for _, b := range h.blocks {
			if b.bytes <= 0 {
				t.Fatalf("block %+v", b)
			}
		}
	})
}
