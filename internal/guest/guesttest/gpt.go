package guesttest

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	sector   = 512
	gptSlots = 256
)

type extent struct{ start, size int64 } // sectors

// gpt returns the head of a disk with a partition table (UEFI specification,
// chapter 5). There is no backup table; Linux does not insist on one.
func gpt(parts []extent, disk int64) []byte {
	le := binary.LittleEndian
	entries := make([]byte, gptSlots*128)
	for i, p := range parts {
		e := entries[i*128:]
		copy(e, "linux filesystem")      // type
		copy(e[16:], "partition number") // unique enough for a test
		le.PutUint32(e[28:], uint32(i))
		le.PutUint64(e[32:], uint64(p.start))
		le.PutUint64(e[40:], uint64(p.start+p.size-1))
	}
	first := int64(2 + len(entries)/sector)
	head := make([]byte, 92)
	copy(head, "EFI PART")
	le.PutUint32(head[8:], 0x10000)
	le.PutUint32(head[12:], uint32(len(head)))
	le.PutUint64(head[24:], 1)
	le.PutUint64(head[32:], uint64(disk-1))
	le.PutUint64(head[40:], uint64(first))
	le.PutUint64(head[48:], uint64(disk-1))
	le.PutUint64(head[72:], 2)
	le.PutUint32(head[80:], gptSlots)
	le.PutUint32(head[84:], 128)
	le.PutUint32(head[88:], crc32.ChecksumIEEE(entries))
	le.PutUint32(head[16:], crc32.ChecksumIEEE(head))

	out := make([]byte, first*sector)
	mbr := out[446:]
	mbr[4] = 0xee // protective
	le.PutUint32(mbr[8:], 1)
	le.PutUint32(mbr[12:], uint32(disk-1))
	out[510], out[511] = 0x55, 0xaa
	copy(out[sector:], head)
	copy(out[2*sector:], entries)
	return out
}
