package erofs

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// XattrSupported reports whether attributes of this name can be stored.
func XattrSupported(name string) bool {
	_, _, ok := splitXattr(name)
	return ok
}

func splitXattr(name string) (index byte, rest string, ok bool) {
	for _, p := range xattrPrefixes {
		rest, found := strings.CutPrefix(name, p.prefix)
		if found && p.whole == (rest == "") {
			return p.index, rest, true
		}
	}
	return 0, "", false
}

// xattrSize returns the bytes that attributes take behind their inode.
func xattrSize(xattrs []Xattr) (int, error) {
	if len(xattrs) == 0 {
		return 0, nil
	}
	size := xattrHeaderSize
	for _, x := range xattrs {
		_, rest, ok := splitXattr(x.Name)
		if !ok || len(rest) > MaxXattrName || strings.Contains(rest, "\x00") {
			return 0, fmt.Errorf("extended attribute %q cannot be stored", x.Name)
		}
		if len(x.Value) > MaxXattrValue {
			return 0, fmt.Errorf("extended attribute %q of %d bytes, at most %d are possible",
				x.Name, len(x.Value), MaxXattrValue)
		}
		size += int(alignUp(int64(xattrEntrySize+len(rest)+len(x.Value)), 4))
		if size > MaxXattrs {
			return 0, fmt.Errorf("extended attributes over %d bytes", MaxXattrs)
		}
	}
	return size, nil
}

// appendXattrs appends the inline form: a header, then the entries, each padded
// to 4 bytes.
func appendXattrs(b []byte, xattrs []Xattr) []byte {
	if len(xattrs) == 0 {
		return b
	}
	start := len(b)
	b = append(b, make([]byte, xattrHeaderSize)...)
	for _, x := range xattrs {
		index, rest, _ := splitXattr(x.Name)
		b = append(b, byte(len(rest)), index)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(x.Value)))
		b = append(b, rest...)
		b = append(b, x.Value...)
		for (len(b)-start)%4 != 0 {
			b = append(b, 0)
		}
	}
	return b
}

// parseXattrs is the inverse of appendXattrs. Shared attributes, which the
// writer does not make, are refused.
func parseXattrs(b []byte) ([]Xattr, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b) < xattrHeaderSize || b[4] != 0 {
		return nil, fmt.Errorf("bad extended attribute header")
	}
	var xattrs []Xattr
	for b = b[xattrHeaderSize:]; len(b) > 0; {
		if len(b) < xattrEntrySize {
			return nil, fmt.Errorf("extended attribute is cut off")
		}
		nameLen, valueLen := int(b[0]), int(binary.LittleEndian.Uint16(b[2:]))
		end := xattrEntrySize + nameLen + valueLen
		if end > len(b) {
			return nil, fmt.Errorf("extended attribute is cut off")
		}
		prefix, ok := xattrPrefix(b[1])
		if !ok {
			return nil, fmt.Errorf("extended attribute has unknown prefix %d", b[1])
		}
		value := b[xattrEntrySize+nameLen : end]
		xattrs = append(xattrs, Xattr{prefix + string(b[xattrEntrySize:xattrEntrySize+nameLen]), string(value)})
		b = b[min(int(alignUp(int64(end), 4)), len(b)):]
	}
	return xattrs, nil
}

func xattrPrefix(index byte) (string, bool) {
	for _, p := range xattrPrefixes {
		if p.index == index {
			return p.prefix, true
		}
	}
	return "", false
}
