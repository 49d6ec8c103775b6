package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"skerry.dev/skerry"
)

// dockerEntry is one image of a `docker save` archive's manifest.json (Docker
// Image Specification v1.2, "Combined Image JSON + Filesystem Changeset Format").
type dockerEntry struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

// importDocker registers an image of a `docker save` archive. Such an archive
// has no manifest, so one is made: an OCI manifest over the layers as they lie
// there. It has the same digest every time.
func (s *Store) importDocker(ctx context.Context, a archive, tag string, want v1.Platform, t *tracker) (Info, error) {
	entry, err := s.chooseDockerEntry(a, tag)
	if err != nil {
		return Info{}, err
	}
	rawConfig, err := readSmall(a, entry.Config, s.opt.Limits.ConfigBytes)
	if err != nil {
		return Info{}, missingMember(err, entry.Config)
	}
	if len(entry.Layers) > s.opt.Limits.Layers {
		return Info{}, skerry.Invalid("path", "max_layers", fmt.Sprint(s.opt.Limits.Layers), "image has %d layers", len(entry.Layers))
	}
	src := archiveSource{archive: a, names: make(map[v1.Hash]string)}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Layers: []v1.Descriptor{},
		Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: digestOf(rawConfig), Size: int64(len(rawConfig))}}
	for i, name := range entry.Layers {
		d, err := describeLayer(ctx, a, name)
		if err != nil {
			return Info{}, fmt.Errorf("layer %d: %w", i+1, missingMember(err, name))
		}
		src.names[d.Digest] = name
		m.Layers = append(m.Layers, d)
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return Info{}, err
	}
	if err := checkManifest(&m, s.opt.Limits); err != nil {
		return Info{}, err
	}
	img, err := newResolved(raw, document{mediaType: m.MediaType, manifest: &m}, rawConfig, want)
	if err != nil {
		return Info{}, err
	}
	return s.register(ctx, img, src, skerry.ArchiveDocker, t)
}

func (s *Store) chooseDockerEntry(a archive, tag string) (dockerEntry, error) {
	raw, err := readSmall(a, dockerManifestFile, s.opt.Limits.ManifestBytes)
	if err != nil {
		return dockerEntry{}, err
	}
	var entries []dockerEntry
	if err := json.Unmarshal(raw, &entries); err != nil {
		return dockerEntry{}, invalidImage("%s: %v", dockerManifestFile, err)
	}
	if len(entries) == 0 || len(entries) > maxDockerSaveImages {
		return dockerEntry{}, invalidImage("archive holds %d images", len(entries))
	}
	var names []string
	for _, e := range entries {
		for _, t := range e.RepoTags {
			if tag != "" && sameName(t, tag) {
				return e, nil
			}
			names = append(names, t)
		}
	}
	switch {
	case tag != "":
		return dockerEntry{}, noSuchTag(tag, names)
	case len(entries) > 1:
		return dockerEntry{}, severalImages(names)
	}
	return entries[0], nil
}

// describeLayer reads a layer to know its digest.
func describeLayer(ctx context.Context, a archive, name string) (v1.Descriptor, error) {
	f, _, err := a.file(name)
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer f.Close()
	head := make([]byte, 4)
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return v1.Descriptor{}, err
	}
	mediaType := types.OCIUncompressedLayer
	switch compression(head[:n]) {
	case "gzip":
		mediaType = types.OCILayer
	case "zstd":
		mediaType = types.OCILayerZStd
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return v1.Descriptor{}, err
	}
	digest, size, err := hashReader(ctx, f)
	return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: size}, err
}

func missingMember(err error, name string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return invalidImage("archive lacks %s", quoteShort(name))
	}
	return err
}

// quoteShort quotes text of an archive for a message.
func quoteShort(s string) string {
	if len(s) > maxImageNameInErrors {
		s = s[:maxImageNameInErrors] + "…"
	}
	return strconv.Quote(s)
}
