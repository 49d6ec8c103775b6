package image

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"skerry.dev/skerry"
)

// maxIndexDepth bounds indexes that name indexes.
const maxIndexDepth = 3

// Pull brings an image from a registry and registers it. What is already in the
// store, of this image or another, is not transferred again; what an interrupted
// pull left is taken up. A pull of a registered image repairs it. progress may be
// nil. Errors are *skerry.Error: CodeNotFound (host, repository or tag),
// CodeUnauthorized, CodeForbidden, CodeUnavailable (network), CodeUnsupported
// (platform or format), CodeTooLarge, CodeInvalid (reference, or content that is
// not what its digest says), CodeExhausted (disk).
func (s *Store) Pull(ctx context.Context, req skerry.PullRequest, progress func(skerry.PullProgress)) (Info, error) {
	ref, err := parseReference(req.Reference, req.PlainHTTP)
	if err != nil {
		return Info{}, err
	}
	want, err := parsePlatform(req.Platform)
	if err != nil {
		return Info{}, err
	}
	t := newTracker(progress)
	t.enter(phaseResolving, 0)
	info, err := s.pull(ctx, ref, want, &req, t)
	return info, s.afterFailure(fault(err, "pull %s", req.Reference))
}

func (s *Store) pull(ctx context.Context, ref name.Reference, want v1.Platform, req *skerry.PullRequest, t *tracker) (Info, error) {
	reg, err := s.connect(ctx, ref.Context(), req.Auth, req.PlainHTTP, ref.Scope(transport.PullScope))
	if err != nil {
		return Info{}, err
	}
	fetch := func(id string) (raw []byte, mediaType types.MediaType, err error) {
		err = s.retry(ctx, func() (bool, error) {
			raw, mediaType, err = reg.manifest(ctx, id, s.opt.Limits.ManifestBytes)
			return false, err
		})
		return raw, mediaType, err
	}
	raw, doc, err := resolveDocument(ref.Identifier(), want, fetch)
	if err != nil {
		return Info{}, err
	}
	if err := checkManifest(doc.manifest, s.opt.Limits); err != nil {
		return Info{}, err
	}
	rawConfig, err := s.fetchConfig(ctx, reg, doc.manifest.Config)
	if err != nil {
		return Info{}, fmt.Errorf("image configuration: %w", err)
	}
	img, err := newResolved(raw, doc, rawConfig, want)
	if err != nil {
		return Info{}, err
	}
	return s.register(ctx, img, reg, ref.Name(), t)
}

// resolveDocument follows an identifier through indexes to the manifest for a
// platform. fetch reads by tag or digest and has checked the digest.
func resolveDocument(id string, want v1.Platform, fetch func(id string) ([]byte, types.MediaType, error)) ([]byte, document, error) {
	var told types.MediaType // by the index that led here
	for range maxIndexDepth + 1 {
		raw, mediaType, err := fetch(id)
		if err != nil {
			return nil, document{}, fmt.Errorf("manifest %s: %w", id, err)
		}
		if told != "" {
			mediaType = told
		}
		doc, err := parseDocument(raw, mediaType)
		if err != nil {
			return nil, document{}, fmt.Errorf("manifest %s: %w", id, err)
		}
		if doc.manifest != nil {
			return raw, doc, nil
		}
		next, err := choosePlatform(doc.index.Manifests, want)
		if err != nil {
			return nil, document{}, err
		}
		id, told = next.Digest.String(), next.MediaType
	}
	return nil, document{}, invalidImage("more than %d indexes within each other", maxIndexDepth)
}
