package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"skerry.dev/skerry/internal/disk/erofs"
)

const (
	overlayOpaque = "trusted.overlay.opaque"
	// maxLayers are the partitions that Linux gives one disk, less the
	// platform's.
	maxLayers = 254
)

// Tree is the merged view of a stack of layer files. It holds no state of its
// own: what is asked of it is read from the files when BuildLayer needs it.
type Tree struct {
	Layers []string `json:"layers"` // paths of layer files, bottom first
}

// lowerDir is a directory of the merged view: the directories of layers that
// make it up, topmost first.
type lowerDir []lowerFile

// lowerFile is a file of one layer.
type lowerFile struct {
	layer *erofs.Reader
	*erofs.Inode
}

func (f lowerFile) open() io.Reader { return f.layer.Open(f.Inode) }

func (f lowerFile) readlink() (string, error) { return f.layer.Readlink(f.Inode) }

// lowerTree is an open Tree.
type lowerTree struct {
	files []*os.File
	root  lowerDir
}

func openTree(t *Tree) (*lowerTree, error) {
	open := new(lowerTree)
	if t == nil {
		return open, nil
	}
	if len(t.Layers) > maxLayers {
		return nil, tooLarge("layers", maxLayers)
	}
	for i := len(t.Layers) - 1; i >= 0; i-- {
		if err := open.add(t.Layers[i]); err != nil {
			open.close()
			return nil, fmt.Errorf("open layer %s: %w", t.Layers[i], err)
		}
	}
	return open, nil
}

func (t *lowerTree) add(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	t.files = append(t.files, f)
	layer, err := erofs.NewReader(f)
	if err != nil {
		return err
	}
	root, err := layer.Root()
	if err != nil {
		return err
	}
	t.root = append(t.root, lowerFile{layer, root})
	return nil
}

func (t *lowerTree) close() {
	for _, f := range t.files {
		f.Close() // only read from
	}
}

// lookup finds a name in a merged directory as overlayfs does: the topmost
// layer that has the name decides; directories of lower layers join it until a
// whiteout, an opaque directory or another file ends the search. The answer is
// empty if there is no such file, and has one element unless it is a directory.
func (d lowerDir) lookup(name string) (lowerDir, error) {
	var found lowerDir
	for _, dir := range d {
		child, err := dir.layer.Lookup(dir.Inode, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look up %q in lower layers: %w", name, err)
		}
		if !child.IsDir() {
			if len(found) == 0 && !child.IsWhiteout() {
				found = lowerDir{{dir.layer, child}}
			}
			break
		}
		found = append(found, lowerFile{dir.layer, child})
		if opaque, _ := child.Xattr(overlayOpaque); opaque == "y" {
			break
		}
	}
	return found, nil
}
