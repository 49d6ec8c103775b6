package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"skerry.dev/skerry"
)

// resolved is an image before its layers are there: a manifest for one platform
// and its configuration, both checked against their digests and each other.
type resolved struct {
	raw       []byte // the manifest as it was found
	rawConfig []byte
	mediaType types.MediaType
	digest    v1.Hash // of raw
	manifest  v1.Manifest
	config    v1.ConfigFile
	platform  v1.Platform
}

func digestOf(data []byte) v1.Hash {
	sum := sha256.Sum256(data)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

// document is a manifest or an index, told apart by what it holds.
type document struct {
	mediaType types.MediaType
	index     *v1.IndexManifest // or nil
	manifest  *v1.Manifest      // or nil
}

// parseDocument reads a manifest or an index. The media type that came with it
// and the one inside must agree (a document that can be read both ways is an
// attack: OCI image specification 1.0.1, CVE-2021-41190).
func parseDocument(raw []byte, mediaType types.MediaType) (document, error) {
	var probe struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     types.MediaType `json:"mediaType"`
		Manifests     json.RawMessage `json:"manifests"`
		Layers        json.RawMessage `json:"layers"`
		FSLayers      json.RawMessage `json:"fsLayers"`
	}
	if err := json.Unmarshal(raw, &probe); err != nil {
		return document{}, invalidImage("manifest is not JSON: %v", err)
	}
	if mediaType.IsSchema1() || probe.SchemaVersion == 1 || probe.FSLayers != nil {
		return document{}, skerry.Unsupported("reference", "the image has the old manifest format (Docker schema 1); push it again with a current tool")
	}
	if probe.SchemaVersion != 2 {
		return document{}, invalidImage("manifest has schema version %d, want 2", probe.SchemaVersion)
	}
	if probe.Manifests != nil && probe.Layers != nil {
		return document{}, invalidImage("manifest is both an index and an image")
	}
	switch {
	case mediaType == "" || mediaType == "application/json" || mediaType == "text/plain":
		mediaType = probe.MediaType
	case probe.MediaType != "" && probe.MediaType != mediaType:
		return document{}, invalidImage("manifest says it is %q but came as %q", probe.MediaType, mediaType)
	}
	if mediaType == "" { // optional in OCI documents
		mediaType = types.OCIManifestSchema1
		if probe.Manifests != nil {
			mediaType = types.OCIImageIndex
		}
	}
	doc := document{mediaType: mediaType}
	var err error
	switch {
	case mediaType.IsIndex():
		doc.index, err = v1.ParseIndexManifest(bytes.NewReader(raw))
	case mediaType.IsImage():
		doc.manifest, err = v1.ParseManifest(bytes.NewReader(raw))
	default:
		return document{}, skerry.Unsupported("reference", "manifests of type %q are not container images", mediaType)
	}
	if err != nil {
		return document{}, invalidImage("manifest: %v", err)
	}
	return doc, nil
}

// checkManifest checks what a manifest promises against the limits, before
// anything it names is fetched.
func checkManifest(m *v1.Manifest, lim Limits) error {
	switch {
	case !m.Config.MediaType.IsConfig():
		return skerry.Unsupported("reference", "this is no container image: its configuration is of type %q", m.Config.MediaType)
	case m.Config.Size > lim.ConfigBytes:
		return tooLarge("image configuration", lim.ConfigBytes)
	case m.Config.Size <= 0 || m.Config.Digest.Algorithm != "sha256":
		return invalidImage("manifest names no usable configuration")
	case len(m.Layers) == 0:
		return invalidImage("image has no layers")
	case len(m.Layers) > lim.Layers:
		return skerry.Invalid("reference", "max_layers", fmt.Sprint(lim.Layers), "image has %d layers, the limit is %d", len(m.Layers), lim.Layers)
	}
	var total int64
	for i, l := range m.Layers {
		switch {
		case !l.MediaType.IsLayer() && l.MediaType != mediaTypeDockerZstd:
			return skerry.Unsupported("reference", "layer %d is of type %q", i+1, l.MediaType)
		case l.Digest.Algorithm != "sha256" || l.Size < 0:
			return invalidImage("layer %d has no usable descriptor", i+1)
		case l.Size > lim.BlobBytes:
			return tooLarge(fmt.Sprintf("layer %d (%s)", i+1, l.Digest), lim.BlobBytes)
		}
		if total += l.Size; total > lim.ImageBytes {
			return tooLarge("image", lim.ImageBytes)
		}
	}
	return nil
}

// mediaTypeDockerZstd is what BuildKit writes for zstd layers of Docker manifests.
const mediaTypeDockerZstd types.MediaType = "application/vnd.docker.image.rootfs.diff.tar.zstd"

// newResolved joins a manifest with its configuration and checks that they fit
// each other and the platform that was asked for.
func newResolved(raw []byte, doc document, rawConfig []byte, want v1.Platform) (*resolved, error) {
	if got := digestOf(rawConfig); got != doc.manifest.Config.Digest {
		return nil, badDigest("image configuration", doc.manifest.Config.Digest.String(), got.String())
	}
	cfg, err := v1.ParseConfigFile(bytes.NewReader(rawConfig))
	if err != nil {
		return nil, invalidImage("configuration: %v", err)
	}
	if cfg.RootFS.Type != "layers" && cfg.RootFS.Type != "" {
		return nil, invalidImage("configuration has a root file system of type %q", cfg.RootFS.Type)
	}
	if len(cfg.RootFS.DiffIDs) != len(doc.manifest.Layers) {
		return nil, invalidImage("configuration has %d layers, manifest has %d", len(cfg.RootFS.DiffIDs), len(doc.manifest.Layers))
	}
	for i, d := range cfg.RootFS.DiffIDs {
		if d.Algorithm != "sha256" || len(d.Hex) != 64 {
			return nil, invalidImage("configuration has no usable diff ID of layer %d", i+1)
		}
	}
	have := v1.Platform{OS: cfg.OS, Architecture: cfg.Architecture, Variant: cfg.Variant}
	if have.OS == "" && have.Architecture == "" { // hand-made images; trust who asked
		have = want
	}
	named := have
	if named.Variant == "" { // many builders leave it out; the index has decided
		named.Variant = want.Variant
	}
	if !suits(named, want) {
		return nil, skerry.Unsupported("platform", "the image is for %s, not for %s", platformName(have), platformName(want))
	}
	return &resolved{raw: raw, rawConfig: rawConfig, mediaType: doc.mediaType, digest: digestOf(raw),
		manifest: *doc.manifest, config: *cfg, platform: have}, nil
}

// chainIDs returns the chainID of each layer (OCI image specification, "Layer
// ChainID"): the digest of all layers up to it.
func chainIDs(diffIDs []v1.Hash) []v1.Hash {
	chain := make([]v1.Hash, len(diffIDs))
	for i, d := range diffIDs {
		chain[i] = d
		if i > 0 {
			chain[i] = digestOf([]byte(chain[i-1].String() + " " + d.String()))
		}
	}
	return chain
}

func invalidImage(format string, args ...any) *skerry.Error {
	return &skerry.Error{Code: skerry.CodeInvalid, Rule: "image", Message: fmt.Sprintf(format, args...)}
}
