package disk

import (
	"encoding/binary"
	"hash/crc32"
)

// The GUID partition table, UEFI specification, chapter 5.
const (
	sectorSize   = 512
	gptEntries   = 256 // Linux reads 255
	gptEntrySize = 128
	gptNameChars = 36
	gptSectors   = gptEntries * gptEntrySize / sectorSize // of the entry array

	headSectors = 2048           // 1 MiB, as partitioning tools align
	tailSectors = gptSectors + 8 // entries and header, and so much that the disk is whole blocks
	gptRevision = 0x00010000
)

// linuxData is the partition type "Linux filesystem data",
// 0FC63DAF-8483-4772-8E79-3D69D8477DE4, as stored.
var linuxData = [16]byte{0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4}

// partition is a partition in sectors; last is its own last one.
type partition struct {
	first, last int64
	name        string // ASCII, at most gptNameChars
}

// encodeGPT returns the first headSectors and the last tailSectors of a disk.
// end is the sector behind the last partition.
func encodeGPT(parts []partition, end int64) (head, tail []byte) {
	le := binary.LittleEndian
	entries := make([]byte, gptEntries*gptEntrySize)
	seed := []any{"disk"}
	for i, p := range parts {
		e := entries[i*gptEntrySize:]
		id := guid("partition", i+1, p.first, p.last, p.name)
		copy(e[0:], linuxData[:])
		copy(e[16:], id[:])
		le.PutUint64(e[32:], uint64(p.first))
		le.PutUint64(e[40:], uint64(p.last))
		le.PutUint64(e[48:], 1<<60) // read-only, as mount tools understand it
		for j := range len(p.name) {
			le.PutUint16(e[56+2*j:], uint16(p.name[j]))
		}
		seed = append(seed, id)
	}
	last := end + tailSectors - 1
	h := gptHeader{disk: guid(seed...), firstUsable: 2 + gptSectors, lastUsable: last - gptSectors - 1,
		entriesCRC: crc32.ChecksumIEEE(entries)}

	head = make([]byte, headSectors*sectorSize)
	putProtectiveMBR(head, last)
	copy(head[sectorSize:], h.encode(1, last, 2))
	copy(head[2*sectorSize:], entries)

	tail = make([]byte, tailSectors*sectorSize)
	copy(tail[(tailSectors-1-gptSectors)*sectorSize:], entries)
	copy(tail[(tailSectors-1)*sectorSize:], h.encode(last, 1, last-gptSectors))
	return head, tail
}

type gptHeader struct {
	disk                    [16]byte
	firstUsable, lastUsable int64
	entriesCRC              uint32
}

// encode returns the header that lies at sector self.
func (h gptHeader) encode(self, other, entries int64) []byte {
	const size = 92
	le := binary.LittleEndian
	b := make([]byte, size)
	copy(b, "EFI PART")
	le.PutUint32(b[8:], gptRevision)
	le.PutUint32(b[12:], size)
	le.PutUint64(b[24:], uint64(self))
	le.PutUint64(b[32:], uint64(other))
	le.PutUint64(b[40:], uint64(h.firstUsable))
	le.PutUint64(b[48:], uint64(h.lastUsable))
	copy(b[56:], h.disk[:])
	le.PutUint64(b[72:], uint64(entries))
	le.PutUint32(b[80:], gptEntries)
	le.PutUint32(b[84:], gptEntrySize)
	le.PutUint32(b[88:], h.entriesCRC)
	le.PutUint32(b[16:], crc32.ChecksumIEEE(b))
	return b
}

// putProtectiveMBR marks the whole disk as taken for tools that know no GPT.
func putProtectiveMBR(b []byte, last int64) {
	e := b[446:]
	copy(e, []byte{0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff})
	binary.LittleEndian.PutUint32(e[8:], 1)
	binary.LittleEndian.PutUint32(e[12:], uint32(min(last, 0xffffffff)))
	b[510], b[511] = 0x55, 0xaa
}
