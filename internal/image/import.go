package image

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"skerry.dev/skerry"
)

// Annotations that name an image in an OCI layout: the OCI one, often only the
// tag, and the full name that containerd and Docker write.
const (
	annotationRefName    = "org.opencontainers.image.ref.name"
	annotationImageName  = "io.containerd.image.name"
	layoutFile           = "oci-layout"
	indexFile            = "index.json"
	dockerManifestFile   = "manifest.json"
	maxNamesInErrors     = 20
	maxDockerSaveImages  = 1000
	maxImageNameInErrors = 100
)

// Import registers an image from an archive on this host: an OCI layout, as a
// directory or a tar, or what `docker save` writes, old or new; a tar may be
// compressed. progress may be nil. Errors are *skerry.Error: CodeInvalid (not
// such an archive, content that is not what its digest says, several images and
// no tag), CodeNotFound (file or tag), CodeUnsupported, CodeTooLarge,
// CodeExhausted (disk).
func (s *Store) Import(ctx context.Context, req skerry.ImportRequest, progress func(skerry.PullProgress)) (Info, error) {
	t := newTracker(progress)
	t.enter(phaseResolving, 0)
	info, err := s.importArchive(ctx, &req, t)
	return info, s.afterFailure(fault(err, "import %s", filepath.Base(req.Path)))
}

func (s *Store) importArchive(ctx context.Context, req *skerry.ImportRequest, t *tracker) (Info, error) {
	a, err := s.openArchive(ctx, req.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return Info{}, skerry.Errorf(skerry.CodeNotFound, "%w", err)
	}
	if err != nil {
		return Info{}, err
	}
	defer a.Close()
	kind, err := archiveKind(a, req.Kind)
	if err != nil {
		return Info{}, err
	}
	want, err := parsePlatform("")
	if err != nil {
		return Info{}, err
	}
	if kind == skerry.ArchiveDocker {
		return s.importDocker(ctx, a, req.Tag, want, t)
	}
	return s.importLayout(ctx, a, req.Tag, want, t)
}

// archiveKind tells an archive's kind by its content. One that is both (`docker
// save` since Docker 25) is read as an OCI layout.
func archiveKind(a archive, kind string) (string, error) {
	has := func(name string) bool {
		f, _, err := a.file(name)
		if err == nil {
			f.Close()
		}
		return err == nil
	}
	layout, docker := has(indexFile), has(dockerManifestFile)
	switch {
	case kind == skerry.ArchiveAuto && layout:
		return skerry.ArchiveOCI, nil
	case kind == skerry.ArchiveAuto && docker:
		return skerry.ArchiveDocker, nil
	case kind == skerry.ArchiveAuto:
		return "", invalidImage("neither an OCI layout (no %s) nor a docker archive (no %s)", indexFile, dockerManifestFile)
	case kind == skerry.ArchiveOCI && layout, kind == skerry.ArchiveDocker && docker:
		return kind, nil
	case kind != skerry.ArchiveOCI && kind != skerry.ArchiveDocker:
		return "", skerry.Invalid("kind", "enum", skerry.ArchiveOCI+", "+skerry.ArchiveDocker, "%q is no kind of archive", kind)
	}
	return "", invalidImage("not an archive of kind %s", kind)
}

// importLayout registers an image of an OCI layout (OCI image specification,
// "Image Layout").
func (s *Store) importLayout(ctx context.Context, a archive, tag string, want v1.Platform, t *tracker) (Info, error) {
	lim := s.opt.Limits
	if err := checkLayoutVersion(a); err != nil {
		return Info{}, err
	}
	raw, err := readSmall(a, indexFile, lim.ManifestBytes)
	if err != nil {
		return Info{}, err
	}
	doc, err := parseDocument(raw, types.OCIImageIndex)
	if err != nil {
		return Info{}, err
	}
	entry, err := chooseEntry(doc.index.Manifests, tag, want)
	if err != nil {
		return Info{}, err
	}
	fetch := func(id string) ([]byte, types.MediaType, error) {
		raw, err := readSmall(a, "blobs/"+strings.Replace(id, ":", "/", 1), lim.ManifestBytes)
		if errors.Is(err, fs.ErrNotExist) {
			err = invalidImage("archive lacks it")
		}
		if err == nil && digestOf(raw).String() != id {
			err = badDigest("manifest", id, digestOf(raw).String())
		}
		mediaType := types.MediaType("")
		if id == entry.Digest.String() {
			mediaType = entry.MediaType
		}
		return raw, mediaType, err
	}
	rawManifest, doc, err := resolveDocument(entry.Digest.String(), want, fetch)
	if err != nil {
		return Info{}, err
	}
	src := archiveSource{archive: a}
	img, err := s.resolveFrom(ctx, src, rawManifest, doc, want)
	if err != nil {
		return Info{}, err
	}
	return s.register(ctx, img, src, skerry.ArchiveOCI, t)
}

func (s *Store) resolveFrom(ctx context.Context, src source, raw []byte, doc document, want v1.Platform) (*resolved, error) {
	if err := checkManifest(doc.manifest, s.opt.Limits); err != nil {
		return nil, err
	}
	rawConfig, err := s.fetchConfig(ctx, src, doc.manifest.Config)
	if err != nil {
		return nil, err
	}
	return newResolved(raw, doc, rawConfig, want)
}

func checkLayoutVersion(a archive) error {
	raw, err := readSmall(a, layoutFile, 4<<10)
	if errors.Is(err, fs.ErrNotExist) { // some tools leave it out
		return nil
	}
	if err != nil {
		return err
	}
	var l struct {
		Version string `json:"imageLayoutVersion"`
	}
	if err := json.Unmarshal(raw, &l); err != nil {
		return invalidImage("%s: %v", layoutFile, err)
	}
	if !strings.HasPrefix(l.Version, "1.") {
		return skerry.Unsupported("path", "OCI layout of version %.20q", l.Version)
	}
	return nil
}

// chooseEntry picks the image of a layout's index: by tag, by digest, or the one
// that is there. Entries that share a name are one image for several platforms.
func chooseEntry(entries []v1.Descriptor, tag string, want v1.Platform) (v1.Descriptor, error) {
	byName := make(map[string][]v1.Descriptor)
	for _, e := range entries {
		if e.Digest.Algorithm != "sha256" || !e.MediaType.IsImage() && !e.MediaType.IsIndex() {
			continue
		}
		if tag != "" && e.Digest.String() == tag {
			return e, nil
		}
		name := entryName(e)
		if tag != "" && !entryHasName(e, tag) {
			continue
		}
		byName[name] = append(byName[name], e)
	}
	switch {
	case len(byName) == 0 && tag != "":
		return v1.Descriptor{}, noSuchTag(tag, entryNames(entries))
	case len(byName) == 0:
		return v1.Descriptor{}, invalidImage("archive holds no image")
	case len(byName) > 1:
		return v1.Descriptor{}, severalImages(entryNames(entries))
	}
	for _, same := range byName {
		if len(same) == 1 {
			return same[0], nil
		}
		return choosePlatform(same, want)
	}
	panic("unreachable: byName is not empty")
}

func entryName(e v1.Descriptor) string {
	if full := e.Annotations[annotationImageName]; full != "" {
		return full
	}
	return e.Annotations[annotationRefName]
}

func entryHasName(e v1.Descriptor, tag string) bool {
	full, ref := e.Annotations[annotationImageName], e.Annotations[annotationRefName]
	return ref == tag || full != "" && sameName(full, tag) || ref != "" && sameName(ref, tag)
}

func entryNames(entries []v1.Descriptor) []string {
	names := make(map[string]bool)
	for _, e := range entries {
		if n := entryName(e); n != "" {
			names[n] = true
		} else {
			names[e.Digest.String()] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func noSuchTag(tag string, have []string) error {
	return &skerry.Error{Code: skerry.CodeNotFound, Field: "tag", Message: "tag: the archive has no image " + quoteShort(tag) + " (it has: " + shortList(have) + ")"}
}

func severalImages(have []string) error {
	return skerry.Invalid("tag", "required", "", "the archive holds several images, say which: %s", shortList(have))
}

func shortList(names []string) string {
	more := ""
	if len(names) > maxNamesInErrors {
		names, more = names[:maxNamesInErrors], ", …"
	}
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = quoteShort(n)
	}
	return strings.Join(quoted, ", ") + more
}
