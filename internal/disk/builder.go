package disk

import (
	"archive/tar"
	"io"
	"strings"

	"skerry.dev/skerry/internal/disk/erofs"
)

// builder is the state of one layer while its tar is read.
type builder struct {
	lim   Limits
	image *erofs.Writer
	stats LayerStats
	nodes int   // entries and implied directories so far
	meta  int64 // bytes of names, targets and attributes so far

	root *dir
	// dirs has the state of every directory node of the layer.
	dirs map[*erofs.Node]*dir
}

// dir is what is known of a directory of the layer besides its node.
type dir struct {
	node   *erofs.Node
	parent *dir // itself for the root
	name   string
	depth  int

	// opaque hides the content of lower layers.
	opaque bool
	// explicit is set once the tar has the directory as an entry.
	explicit bool
	// lower is the same directory below, once lowerKnown is set. Use
	// builder.lowerOf.
	lower      lowerDir
	lowerKnown bool
	// links caches the targets of symbolic links of lower that were followed.
	links map[string]string
}

func newBuilder(lower lowerDir, image *erofs.Writer, lim Limits) *builder {
	root := &dir{node: &erofs.Node{}, lower: lower, lowerKnown: true}
	root.parent = root
	return &builder{lim: lim, image: image, root: root, dirs: map[*erofs.Node]*dir{root.node: root}}
}

// count adds to what Limits bounds.
func (b *builder) count(nodes int, meta int64) error {
	b.nodes += nodes
	b.meta += meta
	switch {
	case b.nodes > b.lim.Entries:
		return tooLarge("entries", b.lim.Entries)
	case b.meta > b.lim.MetaBytes:
		return tooLarge("bytes of names and attributes", b.lim.MetaBytes)
	}
	return nil
}

func (b *builder) countData(size int64) error {
	if size > b.lim.DataBytes-b.stats.DataBytes {
		return tooLarge("bytes of files", b.lim.DataBytes)
	}
	b.stats.DataBytes += size
	return nil
}

// apply does what one entry says.
func (b *builder) apply(hdr *tar.Header, data io.Reader) error {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	parts, err := splitName(hdr.Name, b.lim)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return b.applyRoot(hdr)
	}
	last := len(parts) - 1
	for i, part := range parts {
		if strings.HasPrefix(part, metaPrefix) && part != opaqueMarker {
			return nil
		}
		if i < last && strings.HasPrefix(part, whiteoutPrefix) {
			return invalid("a whiteout is used as a directory")
		}
	}
	name := strings.Clone(parts[last])
	if strings.HasPrefix(name, whiteoutPrefix) {
		return b.applyWhiteout(parts[:last], name)
	}
	parent, err := b.walk(parts[:last], makeMissing)
	if err != nil {
		return err
	}
	if hdr.Typeflag == tar.TypeLink {
		return b.link(parent, name, hdr.Linkname)
	}
	return b.add(parent, name, hdr, data)
}

// applyWhiteout applies an entry of any type whose name makes it a whiteout or
// an opaque marker. It never makes a file to be seen: in a directory that is not
// there it has nothing to hide. (Tools that replace a directory by a file write
// whiteouts of the former content behind the file.)
func (b *builder) applyWhiteout(dirs []string, name string) error {
	parent, err := b.walk(dirs, endAtMissing)
	if err != nil || parent == nil {
		return err
	}
	if name == opaqueMarker {
		parent.opaque = true
		return nil
	}
	return b.hide(parent, strings.TrimPrefix(name, whiteoutPrefix))
}

func (b *builder) applyRoot(hdr *tar.Header) error {
	if hdr.Typeflag != tar.TypeDir {
		return invalid("root is not a directory")
	}
	n, err := b.nodeOf(hdr)
	if err != nil {
		return err
	}
	b.root.node.Attr, b.root.explicit = n.Attr, true
	return nil
}

// add puts the entry's file in place of what has the name now. A directory
// keeps its content.
func (b *builder) add(parent *dir, name string, hdr *tar.Header, data io.Reader) error {
	n, err := b.nodeOf(hdr)
	if err != nil {
		return err
	}
	if n.IsDir() {
		if old := b.dirs[parent.node.Child(name)]; old != nil {
			old.node.Attr, old.explicit = n.Attr, true
			return nil
		}
		d, err := b.addDir(parent, name, n)
		if err == nil {
			d.explicit = true
		}
		return err
	}
	if n.Type() == erofs.TypeRegular {
		if err := b.countData(n.Size); err != nil {
			return err
		}
		if err := b.image.WriteFile(n, data); err != nil {
			return err
		}
	}
	b.put(parent, name, n)
	return nil
}

// put gives a node a name and forgets what had it before.
func (b *builder) put(parent *dir, name string, n *erofs.Node) {
	b.forget(parent.node.Child(name))
	parent.node.SetChild(name, n)
}

// forget drops the state of a directory that was replaced, and of all below it.
func (b *builder) forget(n *erofs.Node) {
	if b.dirs[n] == nil {
		return
	}
	delete(b.dirs, n)
	for _, child := range n.Children() {
		b.forget(child)
	}
}

// addDir puts a new directory under a name that no directory of this layer has.
// If another file of the layer had it, that file had hidden what is below, and
// so does the directory.
func (b *builder) addDir(parent *dir, name string, n *erofs.Node) (*dir, error) {
	if parent.depth >= b.lim.Depth {
		return nil, tooLarge("directories inside one another", b.lim.Depth)
	}
	d := &dir{node: n, parent: parent, name: name, depth: parent.depth + 1,
		opaque: parent.node.Child(name) != nil}
	b.put(parent, name, n)
	b.dirs[n] = d
	return d, nil
}

// hide applies a whiteout. It acts on lower layers only: what this layer has
// under the name stays.
func (b *builder) hide(parent *dir, name string) error {
	if err := erofs.CheckName(name); err != nil {
		return invalid("whiteout of nothing")
	}
	if old := parent.node.Child(name); old != nil {
		if d := b.dirs[old]; d != nil {
			d.opaque = true
		}
		return nil
	}
	// A whiteout of nothing is left out: in a directory that only one layer
	// has, overlayfs would list it as a device.
	below, err := b.lookupLower(parent, name)
	if err != nil || len(below) == 0 {
		return err
	}
	parent.node.SetChild(name, &erofs.Node{Attr: erofs.Attr{Mode: erofs.TypeChar}})
	return nil
}

// link gives a file another name. A file of a lower layer is copied up under
// its own name first, as overlayfs would, so that both names stay one file.
func (b *builder) link(parent *dir, name, target string) error {
	parts, err := splitPath(target, b.lim)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return invalid("hard link to the root")
	}
	last := len(parts) - 1
	dir, err := b.walk(parts[:last], endAtMissing)
	if err != nil {
		return err
	}
	if dir == nil {
		return invalid("hard link to %q, which does not exist", target)
	}
	n := dir.node.Child(parts[last])
	if n == nil {
		if n, err = b.copyUp(dir, strings.Clone(parts[last])); err != nil {
			return err
		}
	}
	switch {
	case n == nil || n.IsWhiteout():
		return invalid("hard link to %q, which does not exist", target)
	case n.IsDir():
		return invalid("hard link to directory %q", target)
	case parent.node.Child(name) != n:
		b.put(parent, name, n)
	}
	return nil
}

// copyUp makes a file of the lower layers one of this layer. It returns nil if
// there is none, and a node without a name for a directory.
func (b *builder) copyUp(parent *dir, name string) (*erofs.Node, error) {
	found, err := b.lookupLower(parent, name)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	file := found[0]
	n := &erofs.Node{Attr: file.Attr}
	switch file.Type() {
	case erofs.TypeDir:
		return n, nil
	case erofs.TypeSymlink:
		if n.Target, err = file.readlink(); err != nil {
			return nil, err
		}
	case erofs.TypeRegular:
		n.Size = file.Size
		if err := b.countData(n.Size); err != nil {
			return nil, err
		}
		if err := b.image.WriteFile(n, file.open()); err != nil {
			return nil, err
		}
	}
	b.put(parent, name, n)
	return n, b.count(1, int64(len(name)+len(n.Target)))
}

// finishTree settles what is only known when all entries are read.
func (b *builder) finishTree() error {
	if !b.root.explicit {
		attr, err := b.lowerAttr(b.root)
		if err != nil {
			return err
		}
		b.root.node.Attr = attr
	}
	b.finishDir(b.root.node, false)
	return nil
}

// finishDir marks opaque directories and drops whiteouts inside them, which
// hide nothing but would be listed.
func (b *builder) finishDir(n *erofs.Node, hidden bool) {
	d := b.dirs[n]
	if d.opaque && !hidden {
		n.SetXattr(overlayOpaque, "y")
	}
	hidden = hidden || d.opaque
	for name, child := range n.Children() {
		switch {
		case child.IsDir():
			b.finishDir(child, hidden)
		case child.IsWhiteout() && hidden:
			n.RemoveChild(name)
		case child.IsWhiteout():
			b.stats.Whiteouts++
		}
	}
}
