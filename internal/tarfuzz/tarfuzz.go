// Package tarfuzz helps fuzz tests to get past the checksums of tar headers,
// which hardly any change of a byte leaves right. Test support only.
package tarfuzz

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// The header of the ustar format (pax(1), "ustar Interchange Format"), in bytes.
const (
	block                  = 512
	sizeStart, sizeEnd     = 124, 136
	sumStart, sumEnd       = 148, 156
	typeflag               = 156
	headerOnly             = "123456" // links, devices, directories and FIFOs have no content
	maxContent         int = 1 << 30
)

// Fix returns a copy of an archive in which the checksum of every header is
// right, as far as a reader would go.
func Fix(archive []byte) []byte {
	fixed := bytes.Clone(archive)
	for at := 0; at+block <= len(fixed); {
		h := fixed[at : at+block]
		at += block
		if len(bytes.Trim(h, "\x00")) == 0 {
			continue // the end, or the padding after it
		}
		sum := 8 * int(' ') // the field itself counts as spaces
		for i, b := range h {
			if i < sumStart || i >= sumEnd {
				sum += int(b)
			}
		}
		copy(h[sumStart:sumEnd], fmt.Sprintf("%06o\x00 ", sum))
		at += content(h)
	}
	return fixed
}

// content is the length of what follows a header, padding included.
func content(h []byte) int {
	size, err := strconv.ParseInt(strings.Trim(string(h[sizeStart:sizeEnd]), " \x00"), 8, 64)
	if err != nil || size < 0 || size > int64(maxContent) || strings.IndexByte(headerOnly, h[typeflag]) >= 0 {
		return 0
	}
	return (int(size) + block - 1) / block * block
}
