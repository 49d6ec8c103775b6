//go:build linux

package disk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumBlock is the unit of ScratchCRC in bytes.
const sumBlock = 4096

// ScratchCRC returns the CRC-32C of a disk at rest: of, for each block of 4 KiB
// that is not zero, its number (8 bytes, little endian) and its content. It does
// not depend on where the file has holes, and takes the time of what is in it,
// however large it is. It finds what disks and crashes do.
func ScratchCRC(path string) (uint32, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	var crc uint32
	next := int64(0) // a file system's blocks can be smaller: none is taken twice
	err = eachData(f, func(start, end int64) error {
		for at := max(next, start-start%sumBlock); at < end; at = next {
			n, err := f.ReadAt(buf[:min(int64(len(buf)), roundUp(end-at))], at)
			if err != nil && err != io.EOF {
				return err
			}
			if n == 0 {
				return io.ErrUnexpectedEOF
			}
			crc = addBlocks(crc, buf[:n], at/sumBlock)
			next = at + roundUp(int64(n))
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("checksum of a scratch disk: %w", err)
	}
	return crc, nil
}

func roundUp(n int64) int64 { return (n + sumBlock - 1) / sumBlock * sumBlock }

var zeroBlock [sumBlock]byte

// addBlocks adds blocks, the first of which has this number; the last one of a
// file may be short.
func addBlocks(crc uint32, b []byte, number int64) uint32 {
	for ; len(b) > 0; number++ {
		block := b[:min(len(b), sumBlock)]
		b = b[len(block):]
		if bytes.Equal(block, zeroBlock[:len(block)]) {
			continue
		}
		crc = crc32.Update(crc, castagnoli, binary.LittleEndian.AppendUint64(nil, uint64(number)))
		crc = crc32.Update(crc, castagnoli, block)
	}
	return crc
}
