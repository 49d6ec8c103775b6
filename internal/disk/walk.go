package disk

import (
	"fmt"
	"slices"
	"strings"

	"skerry.dev/skerry/internal/disk/erofs"
)

// Bounds of following symbolic links on the way to one entry: as many as Linux
// follows, and as many steps as its longest path has, a few times over.
const (
	maxLinks = 40
	maxSteps = 8192
)

// missing says what walk does at a directory that is not there.
type missing bool

const (
	makeMissing  missing = true
	endAtMissing missing = false
)

// walk goes to the directory of a path, following symbolic links of this layer
// and of those below. A directory on the way that only lower layers have becomes
// one of this layer, with the same attributes. One that is missing, or is
// another file, is made if missing is makeMissing; else walk returns nil.
//
// Links cannot lead out: ".." stops at the root, absolute targets start there.
func (b *builder) walk(parts []string, missing missing) (*dir, error) {
	cur := b.root
	// todo are the components still to go, the next one last.
	todo := slices.Clone(parts)
	slices.Reverse(todo)
	for steps, links := 0, 0; len(todo) > 0; steps++ {
		if steps > maxSteps {
			return nil, invalid("path over %d steps", maxSteps)
		}
		name := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		switch name {
		case "", ".":
			continue
		case "..":
			cur = cur.parent
			continue
		}
		next, target, err := b.step(cur, name, missing)
		if err != nil {
			return nil, err
		}
		if target == "" {
			if cur = next; cur == nil {
				return nil, nil
			}
			continue
		}
		if links++; links > maxLinks {
			return nil, invalid("over %d symbolic links on the way", maxLinks)
		}
		if strings.HasPrefix(target, "/") {
			cur = b.root
		}
		parts := strings.Split(target, "/")
		slices.Reverse(parts)
		todo = append(todo, parts...)
	}
	return cur, nil
}

// step goes one name down: to a directory, or to the target of a symbolic link,
// which is never empty. Neither means that there is no such directory.
func (b *builder) step(cur *dir, name string, missing missing) (next *dir, target string, err error) {
	if child := cur.node.Child(name); child != nil {
		switch {
		case child.IsDir():
			return b.dirs[child], "", nil
		case child.Type() == erofs.TypeSymlink:
			return nil, child.Target, nil
		case missing == endAtMissing:
			return nil, "", nil
		}
		next, err = b.imply(cur, name, nil)
		return next, "", err
	}
	if target, ok := cur.links[name]; ok {
		return nil, target, nil
	}
	below, err := b.lookupLower(cur, name)
	if err != nil {
		return nil, "", err
	}
	if len(below) > 0 && below[0].Type() == erofs.TypeSymlink {
		if target, err = below[0].readlink(); err != nil {
			return nil, "", err
		}
		if target == "" {
			return nil, "", fmt.Errorf("%w: symbolic link to nothing", erofs.ErrCorrupt)
		}
		if cur.links == nil {
			cur.links = make(map[string]string)
		}
		cur.links[strings.Clone(name)] = target
		return nil, target, b.count(0, int64(len(name)+len(target)))
	}
	if len(below) > 0 && !below[0].IsDir() {
		below = nil
	}
	if len(below) == 0 && missing == endAtMissing {
		return nil, "", nil
	}
	next, err = b.imply(cur, name, below)
	return next, "", err
}

// imply makes a directory that the tar has no entry for, or not yet.
func (b *builder) imply(parent *dir, name string, below lowerDir) (*dir, error) {
	if err := erofs.CheckName(name); err != nil { // from a link's target
		return nil, invalid("%v", err)
	}
	if err := b.count(1, int64(len(name))); err != nil {
		return nil, err
	}
	d, err := b.addDir(parent, strings.Clone(name), &erofs.Node{Attr: impliedAttr(below)})
	if err != nil {
		return nil, err
	}
	d.lower, d.lowerKnown = below, true
	return d, nil
}

// impliedAttr is what a directory is like that no entry describes: as below, or
// like one that root made in 1970.
func impliedAttr(below lowerDir) erofs.Attr {
	if len(below) == 0 {
		return erofs.Attr{Mode: erofs.TypeDir | 0o755}
	}
	attr := below[0].Attr
	attr.Xattrs = slices.DeleteFunc(slices.Clone(attr.Xattrs), func(x erofs.Xattr) bool {
		return x.Name == overlayOpaque
	})
	return attr
}

func (b *builder) lowerAttr(d *dir) (erofs.Attr, error) {
	below, err := b.lowerOf(d)
	return impliedAttr(below), err
}

// lowerOf returns what lies below a directory of this layer. It is empty if the
// directory hides it.
func (b *builder) lowerOf(d *dir) (lowerDir, error) {
	if d.opaque {
		return nil, nil
	}
	b.stats.DependsOnLower = true
	if d.lowerKnown {
		return d.lower, nil
	}
	parent, err := b.lowerOf(d.parent)
	if err != nil {
		return nil, err
	}
	below, err := parent.lookup(d.name)
	if err != nil {
		return nil, err
	}
	if len(below) > 0 && !below[0].IsDir() {
		below = nil
	}
	d.lower, d.lowerKnown = below, true
	return below, nil
}

// lookupLower finds a name in what lies below a directory of this layer.
func (b *builder) lookupLower(d *dir, name string) (lowerDir, error) {
	below, err := b.lowerOf(d)
	if err != nil {
		return nil, err
	}
	return below.lookup(name)
}
