package erofs

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// Xattr is an extended attribute with its full name ("user.mime").
type Xattr struct {
	Name  string
	Value string
}

// Attr is what an inode says of a file besides its content.
type Attr struct {
	Mode         uint32 // permissions and one of the Type… bits
	UID, GID     uint32
	Major, Minor uint32 // of a device: at most 12 and 20 bits
	Mtime        int64  // seconds since 1970, may be negative
	MtimeNsec    uint32
	Xattrs       []Xattr
}

// Type returns the file type bits of the mode.
func (a *Attr) Type() uint32 { return a.Mode & TypeMask }

// IsDir reports whether a is of a directory.
func (a *Attr) IsDir() bool { return a.Type() == TypeDir }

// IsWhiteout reports whether a is the character device 0/0, with which
// overlayfs hides a name of lower layers.
func (a *Attr) IsWhiteout() bool {
	return a.Type() == TypeChar && a.Major == 0 && a.Minor == 0
}

// Xattr returns the value of an extended attribute.
func (a *Attr) Xattr(name string) (string, bool) {
	for _, x := range a.Xattrs {
		if x.Name == name {
			return x.Value, true
		}
	}
	return "", false
}

// SetXattr sets an extended attribute. The attributes stay sorted by name.
func (a *Attr) SetXattr(name, value string) {
	i, found := slices.BinarySearchFunc(a.Xattrs, name, func(x Xattr, name string) int {
		return strings.Compare(x.Name, name)
	})
	if found {
		a.Xattrs[i].Value = value
		return
	}
	a.Xattrs = slices.Insert(a.Xattrs, i, Xattr{name, value})
}

// Node is a file of an image to be written. The same node under several names
// is one file with several links. A directory may have one name only.
type Node struct {
	Attr
	Target string // of a symbolic link
	Size   int64  // of a regular file, in bytes

	dir  *dirData // or nil for a directory without content
	data data     // of a regular file

	// Set by the layout.
	placed bool
	layout uint16
	xattrs int32 // bytes stored, 0 for none
	links  uint32
	addr   uint32 // first data block, directories: relative to their area
	nid    uint64
}

// dirData is apart because most nodes, of which there may be millions in memory,
// are not directories.
type dirData struct {
	children map[string]*Node

	// Set by the layout.
	parent *Node
	names  []string // sorted, "." and ".." are among them
	splits []int    // index of each block's first name
}

// data says where a regular file's content is. runs is empty for a file
// without data blocks.
type data struct {
	written   bool
	chunkBits uint8 // log2 of blocks per chunk
	runs      []run
	tail      []byte
}

// run is a piece of a file that starts at a chunk and goes on to the next run:
// blocks in a row from addr, or a hole if addr is nullAddr.
type run struct {
	chunk uint32
	addr  uint32
}

// Child returns the child with a name, or nil.
func (n *Node) Child(name string) *Node {
	if n.dir == nil {
		return nil
	}
	return n.dir.children[name]
}

// SetChild puts a child under a name, in place of any that has it.
func (n *Node) SetChild(name string, child *Node) {
	if n.dir == nil {
		n.dir = &dirData{children: make(map[string]*Node)}
	}
	n.dir.children[name] = child
}

// RemoveChild removes the child with a name.
func (n *Node) RemoveChild(name string) {
	if n.dir != nil {
		delete(n.dir.children, name)
	}
}

// Children ranges over names and children, in no order.
func (n *Node) Children() iter.Seq2[string, *Node] {
	if n.dir == nil {
		return maps.All(map[string]*Node(nil))
	}
	return maps.All(n.dir.children)
}

// CheckName tells whether a name can stand in a directory.
func CheckName(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("%q is not a file name", name)
	case len(name) > MaxName:
		return fmt.Errorf("name of %d bytes, at most %d are possible", len(name), MaxName)
	case strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("name %q has a slash or a zero byte", name)
	}
	return nil
}

// check refuses what the format or Linux cannot hold.
func (n *Node) check() error {
	if fileTypes[n.Type()] == 0 || n.Mode > 0o177777 {
		return fmt.Errorf("file type of mode %#o is not supported", n.Mode)
	}
	if n.MtimeNsec >= 1e9 {
		return fmt.Errorf("%d nanoseconds in a second", n.MtimeNsec)
	}
	switch n.Type() {
	case TypeChar, TypeBlock: // as the kernel's dev_t
		if n.Major >= 1<<12 || n.Minor >= 1<<20 {
			return fmt.Errorf("device number %d:%d is over 4095:1048575", n.Major, n.Minor)
		}
	case TypeSymlink:
		if n.Target == "" || len(n.Target) > MaxTarget || strings.Contains(n.Target, "\x00") {
			return fmt.Errorf("link target of %d bytes", len(n.Target))
		}
	case TypeRegular:
		if n.Size > 0 && !n.data.written {
			return fmt.Errorf("data was not written")
		}
	}
	return nil
}
