package ext4

import (
	"encoding/binary"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum goes on with a CRC-32C as ext4 does: without the inversions before
// and after that package crc32 makes.
func checksum(seed uint32, b []byte) uint32 { return ^crc32.Update(^seed, castagnoli, b) }

// inodeSeed is where the checksums of what belongs to an inode start.
func (r *Reader) inodeSeed(num, generation uint32) uint32 {
	le := binary.LittleEndian
	return checksum(checksum(r.seed, le.AppendUint32(nil, num)), le.AppendUint32(nil, generation))
}

func (r *Reader) check(got, want uint32) error {
	if got != want && !r.unchecked {
		return corrupt("checksum %#x, want %#x", got, want)
	}
	return nil
}
