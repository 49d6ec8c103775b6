package ext4

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

const (
	xattrMagic      = 0xEA020000
	xattrEntry      = 16 // bytes before the name
	xattrBlockStart = 32 // bytes of header in a block
)

// xattrPrefixes are the beginnings of names by their number on disk.
var xattrPrefixes = map[byte]string{
	1: "user.", 2: xattrACLAccess, 3: xattrACLDefault, 4: "trusted.", 6: "security.", 7: "system.",
}

const (
	xattrACLAccess  = "system.posix_acl_access"
	xattrACLDefault = "system.posix_acl_default"
)

// Xattr is an extended attribute with its full name and the value that
// getxattr(2) gives.
type Xattr struct {
	Name, Value string
}

// Xattrs returns the extended attributes of a file, sorted by name. They take at
// most two blocks.
func (r *Reader) Xattrs(n *Inode) ([]Xattr, error) {
	list, err := inodeXattrs(n.attrs)
	if err == nil && n.attrsBlock != 0 {
		var more []Xattr
		more, err = r.blockXattrs(n.attrsBlock)
		list = append(list, more...)
	}
	if err != nil {
		return nil, fmt.Errorf("inode %d: extended attributes: %w", n.Number, err)
	}
	slices.SortFunc(list, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(list); i++ {
		if list[i].Name == list[i-1].Name {
			return nil, fmt.Errorf("inode %d: %w", n.Number, corrupt("extended attribute %q twice", list[i].Name))
		}
	}
	return list, nil
}

func inodeXattrs(b []byte) ([]Xattr, error) {
	if len(b) < 4 || binary.LittleEndian.Uint32(b) != xattrMagic {
		return nil, nil
	}
	return parseXattrs(b[4:], 0)
}

func (r *Reader) blockXattrs(nr uint64) ([]Xattr, error) {
	b, err := r.block(nr)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	if le.Uint32(b) != xattrMagic || le.Uint32(b[8:]) != 1 {
		return nil, corrupt("no attributes in block %d", nr)
	}
	want := le.Uint32(b[16:])
	clear(b[16:20])
	if err := r.check(checksum(checksum(r.seed, le.AppendUint64(nil, nr)), b), want); err != nil {
		return nil, err
	}
	return parseXattrs(b, xattrBlockStart)
}

// parseXattrs reads the entries that start at an offset of b, to whose start
// the places of values refer.
func parseXattrs(b []byte, at int) ([]Xattr, error) {
	le := binary.LittleEndian
	var list []Xattr
	for {
		e := b[at:]
		if len(e) < 4 {
			return nil, corrupt("no end")
		}
		if le.Uint32(e) == 0 {
			return list, nil
		}
		if len(e) < xattrEntry || len(e)-xattrEntry < int(e[0]) {
			return nil, corrupt("entry beyond the end")
		}
		nameLen, index := int(e[0]), e[1]
		from, inode, size := uint64(le.Uint16(e[2:])), le.Uint32(e[4:]), uint64(le.Uint32(e[8:]))
		prefix, ok := xattrPrefixes[index]
		if !ok || inode != 0 {
			return nil, fmt.Errorf("%w: extended attribute of kind %d", ErrUnsupported, index)
		}
		if size > 0 && (from+size > uint64(len(b)) || from < uint64(at)) {
			return nil, corrupt("value of %d bytes at %d", size, from)
		}
		x := Xattr{Name: prefix + string(e[xattrEntry:][:nameLen])}
		if size > 0 {
			x.Value = string(b[from:][:size])
		}
		if err := x.finish(); err != nil {
			return nil, err
		}
		list = append(list, x)
		at += (xattrEntry + nameLen + 3) &^ 3
		if at > len(b) {
			return nil, corrupt("no end")
		}
	}
}

// finish checks the name and brings access control lists into the form in which
// programs see them.
func (x *Xattr) finish() (err error) {
	switch {
	case strings.Contains(x.Name, "\x00"):
		return corrupt("zero byte in the name %q", x.Name)
	case x.Name == xattrACLAccess, x.Name == xattrACLDefault:
		x.Value, err = decodeACL(x.Value)
	case strings.HasSuffix(x.Name, ".") && strings.Count(x.Name, ".") == 1:
		return corrupt("empty name")
	}
	return err
}

// decodeACL turns an access control list from version 1, where entries that name
// nobody are short, into version 2 (include/uapi/linux/posix_acl_xattr.h).
func decodeACL(v string) (string, error) {
	le := binary.LittleEndian
	b := []byte(v)
	if len(b) < 4 || le.Uint32(b) != 1 {
		return "", corrupt("access control list of %d bytes", len(b))
	}
	out := le.AppendUint32(nil, 2)
	for b = b[4:]; len(b) > 0; {
		if len(b) < 4 {
			return "", corrupt("access control list ends early")
		}
		const user, group = 0x2, 0x8
		tag, id, size := le.Uint16(b), ^uint32(0), 4
		if tag == user || tag == group {
			if size = 8; len(b) < size {
				return "", corrupt("access control list ends early")
			}
			id = le.Uint32(b[4:])
		}
		out = append(out, b[:4]...)
		out = le.AppendUint32(out, id)
		b = b[size:]
	}
	return string(out), nil
}
