package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"skerry.dev/skerry"
)

// maxZstdWindow bounds the memory of one decompression: `zstd --long` uses
// 128 MiB, more needs a special option of every decompressor (RFC 8878, 3.1.1.1.2).
const maxZstdWindow = 128 << 20

var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// compression is told by the first bytes, not by the media type: registries hold
// layers of all kinds under one type, and the diffID decides in the end.
func compression(head []byte) string {
	switch {
	case bytes.HasPrefix(head, gzipMagic):
		return "gzip"
	case bytes.HasPrefix(head, zstdMagic):
		return "zstd"
	}
	return ""
}

// decompressor reads r's content, whatever it is compressed with.
func decompressor(r io.Reader) (io.ReadCloser, error) {
	buf := bufio.NewReaderSize(r, 256<<10)
	head, err := buf.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch compression(head) {
	case "gzip":
		return gzip.NewReader(buf)
	case "zstd":
		dec, err := zstd.NewReader(buf, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxZstdWindow))
		if err != nil {
			return nil, err
		}
		return dec.IOReadCloser(), nil
	}
	return io.NopCloser(buf), nil
}

// decompressTo writes at most limit bytes of r's content to w and returns their
// digest. A source that is broken or larger gives CodeInvalid or CodeTooLarge.
func decompressTo(ctx context.Context, w io.Writer, r io.Reader, limit int64) (v1.Hash, error) {
	dec, err := decompressor(r)
	if err != nil {
		return v1.Hash{}, skerry.Errorf(skerry.CodeInvalid, "decompress: %w", err)
	}
	defer dec.Close()
	in := &decodeReader{r: dec}
	got, n, err := hashReader(ctx, io.TeeReader(io.LimitReader(in, limit+1), w))
	switch {
	case in.err != nil:
		return v1.Hash{}, skerry.Errorf(skerry.CodeInvalid, "decompress: %w", in.err)
	case err != nil:
		return v1.Hash{}, err
	case n > limit:
		return v1.Hash{}, tooLarge("decompressed content", limit)
	}
	return got, nil
}

// decodeReader remembers the decompressor's error, to tell it from the writer's.
type decodeReader struct {
	r   io.Reader
	err error
}

func (d *decodeReader) Read(p []byte) (int, error) {
	n, err := d.r.Read(p)
	if err != nil && err != io.EOF {
		d.err = err
	}
	return n, err
}
