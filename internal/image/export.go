package image

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"skerry.dev/skerry"
)

// ociTypes are the OCI names of Docker's media types. The contents are the same.
var ociTypes = map[types.MediaType]types.MediaType{
	types.DockerManifestSchema2:   types.OCIManifestSchema1,
	types.DockerConfigJSON:        types.OCIConfigJSON,
	types.DockerLayer:             types.OCILayer,
	types.DockerForeignLayer:      types.OCILayer,
	types.DockerUncompressedLayer: types.OCIUncompressedLayer,
}

// WriteLayout writes a registered image as an OCI layout to dir, which must be
// empty or not exist. Blobs are the ones that were pulled, checked again on the
// way. The manifest too, unless it is Docker's: most tools accept only OCI types
// in a layout, so its types are renamed, and its digest is another one. It
// returns the digest of the manifest in the layout.
func (s *Store) WriteLayout(ctx context.Context, digest, dir string) (string, error) {
	rec, unpin, err := s.pinImage(digest)
	if err != nil {
		return "", err
	}
	defer unpin()
	out, err := s.writeLayout(ctx, rec, dir)
	return out, fault(err, "export image %s", digest)
}

func (s *Store) writeLayout(ctx context.Context, rec *record, dir string) (string, error) {
	raw, err := s.manifestBytes(rec)
	if err != nil {
		return "", err
	}
	m, mediaType, err := rec.parse(raw)
	if err != nil {
		return "", err
	}
	if oci := ociTypes[mediaType]; oci != "" {
		if raw, err = asOCIManifest(m); err != nil {
			return "", err
		}
		mediaType = oci
	}
	if old, err := os.ReadDir(dir); err == nil && len(old) > 0 {
		return "", skerry.Errorf(skerry.CodeConflict, "%s is not empty", dir)
	}
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return "", err
	}
	for _, d := range append([]v1.Descriptor{rec.Config}, m.Layers...) {
		if err := s.exportBlob(ctx, d.Digest, filepath.Join(blobs, d.Digest.Hex)); err != nil {
			return "", fmt.Errorf("blob %s: %w", d.Digest, err)
		}
	}
	top := v1.Descriptor{MediaType: mediaType, Digest: digestOf(raw), Size: int64(len(raw)),
		Annotations: map[string]string{annotationRefName: layoutTag(rec.Source)}}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{top}})
	if err != nil {
		return "", err
	}
	for path, data := range map[string][]byte{
		filepath.Join(blobs, top.Digest.Hex): raw,
		filepath.Join(dir, layoutFile):       []byte(`{"imageLayoutVersion":"1.0.0"}`),
		filepath.Join(dir, indexFile):        index,
	} {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return "", err
		}
	}
	return top.Digest.String(), nil
}

func asOCIManifest(m *v1.Manifest) ([]byte, error) {
	rename := func(d *v1.Descriptor) {
		if oci := ociTypes[d.MediaType]; oci != "" {
			d.MediaType = oci
		}
	}
	m.MediaType = types.OCIManifestSchema1
	rename(&m.Config)
	for i := range m.Layers {
		rename(&m.Layers[i])
	}
	return json.Marshal(m)
}

// layoutTag is the tag of a reference, as tools expect it in a layout.
func layoutTag(source string) string {
	if tag, err := name.NewTag(source, name.WeakValidation); err == nil && source != skerry.ArchiveOCI && source != skerry.ArchiveDocker {
		return tag.TagStr()
	}
	return "latest"
}

// exportBlob copies a blob, and not as a hard link: who gets the layout may
// change it.
func (s *Store) exportBlob(ctx context.Context, digest v1.Hash, dst string) error {
	in, err := os.Open(s.path(blobName(digest)))
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	got, _, err := hashReader(ctx, io.TeeReader(in, out))
	if err == nil && got != digest {
		err = damaged("stored blob has digest %s", got)
	}
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	return err
}
