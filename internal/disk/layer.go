package disk

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/disk/erofs"
)

// LayerStats is what was made of a layer.
type LayerStats struct {
	Entries       int   `json:"entries"`        // of the tar
	DataBytes     int64 `json:"data_bytes"`     // sum of file sizes
	ImageBytes    int64 `json:"image_bytes"`    // length of the layer file
	Whiteouts     int   `json:"whiteouts"`      // names of lower layers that are hidden
	DroppedXattrs int   `json:"dropped_xattrs"` // overlayfs' own and those Linux has no name space for
	// DependsOnLower is set if the lower layers were consulted: for the
	// attributes of parents that the tar omits, a symbolic link on the way
	// to an entry, the target of a hard link, or the use of a whiteout. The
	// layer file then serves only above the same layers, so the caller must
	// key it by chain ID, not by diff ID. It is also set for a bottom layer
	// where there was nothing to consult.
	DependsOnLower bool `json:"depends_on_lower"`
}

// tarBuffer is the size of the buffer between the tar and its parser, in bytes.
const tarBuffer = 256 << 10

// BuildLayer writes the layer in archive, an uncompressed tar of size bytes, as
// an EROFS file at dst, which must not exist. lower is the merged view below
// it, nil for none. It returns the merged view with this layer.
//
// Errors are CodeInvalid for an archive that is no layer, CodeTooLarge for one
// over a limit, CodeExhausted for a full disk. dst is then gone. A file at dst
// that BuildLayer made is complete and on stable storage.
//
// The tar is read once, in order. archive/tar parses it; it is exact but for two
// things, both harmless here: it shows holes only as zeros, in which we find them
// again, and it returns global PAX headers as entries, which container runtimes
// ignore.
func BuildLayer(ctx context.Context, archive io.ReaderAt, size int64, lower *Tree, dst string, lim Limits) (*Tree, LayerStats, error) {
	lim = lim.withDefaults()
	if size > lim.TarBytes {
		return nil, LayerStats{}, tooLarge("tar bytes", lim.TarBytes)
	}
	below, err := openTree(lower)
	if err != nil {
		return nil, LayerStats{}, err
	}
	defer below.close()
	f, err := os.OpenFile(dst, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, LayerStats{}, fmt.Errorf("create layer: %w", exhausted(err))
	}
	stats, err := buildLayer(ctx, io.NewSectionReader(archive, 0, size), below.root, f, lim)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, LayerStats{}, errors.Join(exhausted(err), os.Remove(dst))
	}
	merged := new(Tree)
	if lower != nil {
		merged.Layers = append(merged.Layers, lower.Layers...)
	}
	merged.Layers = append(merged.Layers, dst)
	return merged, stats, nil
}

// exhausted gives errors of a full disk or quota their code.
func exhausted(err error) error {
	if skerry.DiskFull(err) {
		return skerry.Errorf(skerry.CodeExhausted, "disk full: %w", err)
	}
	return err
}

func buildLayer(ctx context.Context, r io.Reader, lower lowerDir, f *os.File, lim Limits) (LayerStats, error) {
	b := newBuilder(lower, erofs.NewWriter(f), lim)
	if err := b.readTar(tar.NewReader(bufio.NewReaderSize(&contextReader{ctx, r}, tarBuffer))); err != nil {
		return LayerStats{}, err
	}
	if err := b.finishTree(); err != nil {
		return LayerStats{}, err
	}
	if err := ctx.Err(); err != nil {
		return LayerStats{}, err
	}
	length, err := b.image.Finish(b.root.node)
	if err != nil {
		return LayerStats{}, err
	}
	b.stats.ImageBytes = length
	return b.stats, f.Truncate(length)
}

// readTar applies every entry in order.
func (b *builder) readTar(tr *tar.Reader) error {
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // names are checked below
			return tarError(err, "after %d entries", b.stats.Entries)
		}
		b.stats.Entries++
		if err := b.count(1, int64(len(hdr.Name)+len(hdr.Linkname))); err != nil {
			return err
		}
		if err := b.apply(hdr, tr); err != nil {
			return tarError(err, "entry %q", hdr.Name)
		}
	}
}

// tarError adds where in the archive an error came up. What is wrong with the
// archive's own form is CodeInvalid.
func tarError(err error, format string, args ...any) error {
	where := fmt.Sprintf(format, args...)
	code := skerry.CodeOf(err)
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		code = skerry.CodeInvalid
	}
	if code == skerry.CodeInternal {
		return fmt.Errorf("%s: %w", where, err)
	}
	return skerry.Errorf(code, "%s: %w", where, err)
}

// contextReader ends a long read when ctx is done.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
