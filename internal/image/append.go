package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"

	"skerry.dev/skerry"
)

// AppendOptions describe an image that is made of another one and a layer.
type AppendOptions struct {
	Source    string    // Info.Source of the new image
	Created   time.Time // of the image and its layer, in the configuration
	CreatedBy string    // what made the layer, in the configuration's history
	Comment   string    // likewise
}

// LayerWriter writes the uncompressed tar of a layer.
type LayerWriter func(ctx context.Context, w io.Writer) error

// Append registers a new image: base, which it shares all layers with, and one
// more layer on top. The configuration is the base's with one entry of history
// more. Annotations of the base's manifest are not taken over; they describe the
// base. Equal layers and options give equal images.
//
// progress may be nil. Errors are *skerry.Error: CodeNotFound (base),
// CodeInvalid (the base has as many layers as an image may have, or what layer
// wrote is none), CodeTooLarge, CodeExhausted (disk); those of layer keep their
// code. Nothing is left after an error.
func (s *Store) Append(ctx context.Context, base string, layer LayerWriter, opts AppendOptions, progress func(skerry.PullProgress)) (Info, error) {
	rec, unpin, err := s.pinImage(base)
	if err != nil {
		return Info{}, err
	}
	defer unpin()
	t := newTracker(progress)
	t.enter(phaseBuilding, 0)
	info, err := s.append(ctx, rec, layer, &opts, t)
	return info, s.afterFailure(fault(err, "add a layer to image %s", base))
}

func (s *Store) append(ctx context.Context, rec *record, layer LayerWriter, opts *AppendOptions, t *tracker) (info Info, err error) {
	base, err := s.reload(rec)
	if err != nil {
		return Info{}, err
	}
	if n := len(base.manifest.Layers) + 1; n > s.opt.Limits.Layers {
		return Info{}, skerry.Invalid("image", "max_layers", fmt.Sprint(s.opt.Limits.Layers), "would have %d layers, the limit is %d", n, s.opt.Limits.Layers)
	}
	blob, err := s.writeBlob(ctx, layer, t)
	if err != nil {
		return Info{}, fmt.Errorf("write layer: %w", err)
	}
	defer blob.remove()
	img, err := base.withLayer(blob, opts)
	if err != nil {
		return Info{}, err
	}
	names := img.allFiles()
	unpin := s.pin(names...)
	defer func() {
		unpin()
		if err != nil { // nobody will come back for these
			err = errors.Join(err, s.removeUnused(names))
		}
	}()
	if err := commit(blob.path, s.path(blobName(blob.digest))); err != nil {
		return Info{}, err
	}
	return s.register(ctx, img, noSource{}, opts.Source, t)
}

// newBlob is a compressed layer that is not in the store yet.
type newBlob struct {
	path   string
	digest v1.Hash // of the file
	diffID v1.Hash // of its content
	size   int64   // bytes of the file
}

func (b *newBlob) remove() { os.Remove(b.path) } // fails once it has its final name

// writeBlob has a layer written to a temporary file. The compression is gzip,
// because every tool reads it, at its fastest: what it costs is waited for, and
// most images are never pushed.
func (s *Store) writeBlob(ctx context.Context, layer LayerWriter, t *tracker) (_ *newBlob, err error) {
	f, err := os.CreateTemp(s.path("tmp"), "append-*")
	if err != nil {
		return nil, err
	}
	b := &newBlob{path: f.Name()}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			b.remove()
		}
	}()
	blobSum, diffSum, size := sha256.New(), sha256.New(), new(byteCount)
	zip, err := gzip.NewWriterLevel(io.MultiWriter(f, blobSum, size), gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	out := &layerOutput{ctx: ctx, w: io.MultiWriter(zip, diffSum), left: s.opt.Limits.LayerBytes, limit: s.opt.Limits.LayerBytes, track: t}
	if err := layer(ctx, out); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	if int64(*size) > s.opt.Limits.BlobBytes {
		return nil, tooLarge("layer", s.opt.Limits.BlobBytes)
	}
	b.digest, b.diffID, b.size = sumOf(blobSum), sumOf(diffSum), int64(*size)
	return b, nil
}

func sumOf(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

type byteCount int64

func (c *byteCount) Write(p []byte) (int, error) {
	*c += byteCount(len(p))
	return len(p), nil
}

// layerOutput bounds a layer, reports its progress, and ends with its context.
type layerOutput struct {
	ctx         context.Context
	w           io.Writer
	left, limit int64 // bytes
	track       *tracker
}

func (o *layerOutput) Write(p []byte) (int, error) {
	if err := o.ctx.Err(); err != nil {
		return 0, err
	}
	if o.left -= int64(len(p)); o.left < 0 {
		return 0, tooLarge("uncompressed layer", o.limit)
	}
	n, err := o.w.Write(p)
	o.track.transferred(int64(n))
	return n, err
}

// withLayer is the image with one more layer.
func (img *resolved) withLayer(blob *newBlob, opts *AppendOptions) (*resolved, error) {
	rawConfig, err := appendToConfig(img.rawConfig, len(img.manifest.Layers), blob.diffID, opts)
	if err != nil {
		return nil, invalidImage("configuration: %v", err)
	}
	layerType := types.OCILayer
	if img.mediaType == types.DockerManifestSchema2 {
		layerType = types.DockerLayer
	}
	m := v1.Manifest{
		SchemaVersion: 2,
		MediaType:     img.mediaType,
		Config:        v1.Descriptor{MediaType: img.manifest.Config.MediaType, Digest: digestOf(rawConfig), Size: int64(len(rawConfig))},
		Layers:        append(img.manifest.Layers[:len(img.manifest.Layers):len(img.manifest.Layers)], v1.Descriptor{MediaType: layerType, Digest: blob.digest, Size: blob.size}),
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return newResolved(raw, document{mediaType: img.mediaType, manifest: &m}, rawConfig, img.platform)
}

// appendToConfig adds a layer to an image configuration. What it does not know
// of the configuration stays as it is.
func appendToConfig(raw []byte, layers int, diffID v1.Hash, opts *AppendOptions) ([]byte, error) {
	var config struct {
		RootFS  map[string]json.RawMessage `json:"rootfs"`
		History []json.RawMessage          `json:"history"`
	}
	var all map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(raw, &config), json.Unmarshal(raw, &all)); err != nil {
		return nil, err
	}
	var diffIDs []v1.Hash
	if err := json.Unmarshal(config.RootFS["diff_ids"], &diffIDs); err != nil {
		return nil, err
	}
	history, err := appendHistory(config.History, layers, opts)
	if err != nil {
		return nil, err
	}
	for _, set := range []struct {
		in    map[string]json.RawMessage
		key   string
		value any
	}{
		{config.RootFS, "diff_ids", append(diffIDs, diffID)},
		{all, "rootfs", config.RootFS},
		{all, "history", history},
		{all, "created", opts.Created.UTC()},
	} {
		if set.in[set.key], err = marshal(set.value); err != nil {
			return nil, err
		}
	}
	return marshal(all)
}

// appendHistory adds an entry. Each layer has one that is not "empty_layer":
// where the base's history, which is optional, lacks some, they are filled in, as
// tools take the n-th such entry for the n-th layer's.
func appendHistory(history []json.RawMessage, layers int, opts *AppendOptions) ([]json.RawMessage, error) {
	have := 0
	for _, raw := range history {
		var h v1.History
		if err := json.Unmarshal(raw, &h); err != nil {
			return nil, err
		}
		if !h.EmptyLayer {
			have++
		}
	}
	for ; have < layers; have++ {
		history = append(history, json.RawMessage(`{"comment":"layer of the base image"}`))
	}
	entry, err := marshal(v1.History{Created: v1.Time{Time: opts.Created.UTC()}, CreatedBy: opts.CreatedBy, Comment: opts.Comment})
	return append(history, entry), err
}

// marshal is json.Marshal without escapes for HTML, which would change strings
// that are taken over.
func marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
