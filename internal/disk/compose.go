package disk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"skerry.dev/skerry/internal/disk/erofs"
)

// Extent is one piece of an image disk: a file from its start.
type Extent struct {
	Path    string `json:"path"`    // absolute if those given to ComposeImage were
	Sectors int64  `json:"sectors"` // of 512 bytes
}

// Composed is an image disk: one after another, the extents are a GPT disk.
type Composed struct {
	Extents  []Extent `json:"extents"`
	Layers   []int    `json:"layers"`   // 1-based partition numbers, bottom first
	Platform int      `json:"platform"` // partition number of the platform's file
}

// ComposeImage describes a disk of layer files, bottom first, and the platform's
// file, each a partition. It writes only the two ends of the disk, into dir:
// "head.gpt" and "tail.gpt". They are named by content in the partition table,
// the same files in the same order give the same bytes.
//
// At most 254 layers are possible, as Linux numbers 255 partitions of a disk.
// Overlayfs takes 500. So nothing is ever flattened; more layers are refused
// with CodeTooLarge. (Docker makes at most 127.)
func ComposeImage(dir string, layers []string, platform string) (Composed, error) {
	if len(layers) == 0 {
		return Composed{}, invalid("image has no layers")
	}
	if len(layers) > maxLayers {
		return Composed{}, tooLarge("layers of an image", maxLayers)
	}
	var c Composed
	var parts []partition
	next := int64(headSectors)
	for i, path := range append(append([]string(nil), layers...), platform) {
		info, err := os.Stat(path)
		if err != nil {
			return Composed{}, fmt.Errorf("compose image: %w", err)
		}
		if !info.Mode().IsRegular() || info.Size() == 0 || info.Size()%erofs.BlockSize != 0 {
			return Composed{}, fmt.Errorf("compose image: %s is no file of whole blocks of %d bytes", path, erofs.BlockSize)
		}
		sectors := info.Size() / sectorSize
		parts = append(parts, partition{first: next, last: next + sectors - 1, name: partitionName(path)})
		c.Extents = append(c.Extents, Extent{path, sectors})
		c.Layers = append(c.Layers, i+1)
		next += sectors
	}
	c.Platform = len(parts)
	c.Layers = c.Layers[:len(layers)]

	head, tail := encodeGPT(parts, next)
	ends := [2]Extent{{filepath.Join(dir, "head.gpt"), headSectors}, {filepath.Join(dir, "tail.gpt"), tailSectors}}
	for i, b := range [][]byte{head, tail} {
		if err := writeFile(ends[i].Path, b); err != nil {
			return Composed{}, fmt.Errorf("compose image: %w", exhausted(err))
		}
	}
	c.Extents = append(append(ends[:1:1], c.Extents...), ends[1])
	return c, nil
}

// partitionName is what of a layer's file name fits the 36 characters of a
// partition name: the start of its digest.
func partitionName(path string) string {
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	name = strings.TrimPrefix(strings.TrimPrefix(name, "sha256:"), "sha256-")
	ascii := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '_'
		}
		return r
	}, name)
	return ascii[:min(len(ascii), gptNameChars)]
}

// writeFile puts a complete file in place of any other.
func writeFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// guid derives a stable GUID (RFC 9562 version 8) from what it names.
func guid(parts ...any) [16]byte {
	var b bytes.Buffer
	for _, p := range parts {
		fmt.Fprintf(&b, "%v\x00", p)
	}
	sum := sha256.Sum256(b.Bytes())
	g := [16]byte(sum[:16])
	binary.LittleEndian.PutUint16(g[6:], binary.LittleEndian.Uint16(g[6:])&0x0fff|0x8000)
	g[8] = g[8]&0x3f | 0x80
	return g
}
