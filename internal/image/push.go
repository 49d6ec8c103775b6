package image

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"

	"skerry.dev/skerry"
)

// maxMountSources bounds the repositories whose blobs a push offers to mount:
// each makes the request for a token longer.
const maxMountSources = 8

// Push uploads a registered image and returns the digest of its manifest, which
// is the image's. What is uploaded are the blobs and the manifest as they were
// pulled or made, byte for byte. Blobs that the repository has are not uploaded
// again, and those of images pulled from the same registry are taken over from
// their repositories if the registry can do that. A connection that breaks is
// taken up where it broke, if the registry can do that.
//
// progress may be nil; it is never called by two goroutines at once. Errors are
// *skerry.Error: CodeNotFound (image, or host), CodeUnauthorized, CodeForbidden,
// CodeUnavailable (network; with ErrDamaged: a blob of the image), CodeInvalid
// (reference).
func (s *Store) Push(ctx context.Context, digest string, req skerry.PushRequest, progress func(skerry.PushProgress)) (string, error) {
	ref, err := parseReference(req.Reference, req.PlainHTTP)
	if err != nil {
		return "", err
	}
	if _, byDigest := ref.(name.Digest); byDigest && ref.Identifier() != digest {
		return "", skerry.Invalid("reference", "digest", digest, "%s is another image's digest: name a tag", ref.Identifier())
	}
	rec, unpin, err := s.pinImage(digest)
	if err != nil {
		return "", err
	}
	defer unpin()
	now := skerry.PushProgress{Reference: ref.Name(), Status: skerry.ImageBuilding}
	t := newTracker(func(p skerry.PullProgress) {
		now.DoneBytes, now.TotalBytes = p.DoneBytes, p.TotalBytes
		if progress != nil {
			progress(now)
		}
	})
	if err := s.push(ctx, rec, ref, &req, t); err != nil {
		return "", fault(err, "push %s", req.Reference)
	}
	return digest, nil
}

func (s *Store) push(ctx context.Context, rec *record, ref name.Reference, req *skerry.PushRequest, t *tracker) error {
	raw, err := s.manifestBytes(rec)
	if err != nil {
		return err
	}
	m, mediaType, err := rec.parse(raw)
	if err != nil {
		return err
	}
	blobs := distinct(append(slices.Clone(m.Layers), m.Config))
	t.enter(phaseUploading, layerBytes(blobs))
	reg, mounts, err := s.connectToPush(ctx, ref.Context(), blobs, req)
	if err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(s.opt.Downloads)
	for i, blob := range blobs {
		group.Go(func() error {
			if err := s.pushBlob(groupCtx, reg, blob, mounts[blob.Digest], t); err != nil {
				return fault(err, "blob %d of %d (%s)", i+1, len(blobs), blob.Digest)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return s.retry(ctx, func() (bool, error) { return false, reg.putManifest(ctx, ref.Identifier(), mediaType, raw) })
}

// distinct leaves out descriptors of a blob that came before: an image may have
// a layer twice.
func distinct(blobs []v1.Descriptor) []v1.Descriptor {
	seen := make(map[v1.Hash]bool)
	return slices.DeleteFunc(blobs, func(d v1.Descriptor) bool {
		again := seen[d.Digest]
		seen[d.Digest] = true
		return again
	})
}

// connectToPush logs in to push, and to read the repositories that blobs may be
// mounted from. A login that may not read them pushes without.
func (s *Store) connectToPush(ctx context.Context, repo name.Repository, blobs []v1.Descriptor, req *skerry.PushRequest) (*registry, map[v1.Hash]string, error) {
	push := repo.Scope(transport.PushScope)
	mounts := s.mountSources(repo, blobs)
	scopes := []string{push}
	for _, from := range slices.Compact(slices.Sorted(maps.Values(mounts))) {
		scopes = append(scopes, repo.Registry.Repo(from).Scope(transport.PullScope))
	}
	reg, err := s.connect(ctx, repo, req.Auth, req.PlainHTTP, scopes...)
	var status *transport.Error
	if len(mounts) > 0 && errors.As(err, &status) {
		reg, err = s.connect(ctx, repo, req.Auth, req.PlainHTTP, push)
		return reg, nil, err
	}
	return reg, mounts, err
}

// mountSources finds other repositories of a registry from which images were
// pulled that have some of the blobs.
func (s *Store) mountSources(to name.Repository, blobs []v1.Descriptor) map[v1.Hash]string {
	wanted := make(map[v1.Hash]bool)
	for _, b := range blobs {
		wanted[b.Digest] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	mounts, repos := make(map[v1.Hash]string), make(map[string]bool)
	for _, digest := range slices.Sorted(maps.Keys(s.images)) {
		rec := s.images[digest]
		from, err := name.ParseReference(rec.Source, name.StrictValidation)
		if err != nil || from.Context().RegistryStr() != to.RegistryStr() || from.Context().RepositoryStr() == to.RepositoryStr() {
			continue
		}
		repo := from.Context().RepositoryStr()
		for _, l := range rec.Layers {
			if !wanted[l.Blob.Digest] || mounts[l.Blob.Digest] != "" || len(repos) == maxMountSources && !repos[repo] {
				continue
			}
			mounts[l.Blob.Digest] = repo
			repos[repo] = true
		}
	}
	return mounts
}

// pushBlob makes the registry have a blob.
func (s *Store) pushBlob(ctx context.Context, reg *registry, blob v1.Descriptor, mount string, t *tracker) error {
	u := &upload{reg: reg, blob: blob, path: s.path(blobName(blob.Digest)), mount: mount, track: t}
	err := s.retry(ctx, func() (bool, error) {
		before := u.sent
		err := u.run(ctx)
		return u.sent >= before+progressBytes, err
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	if got, _, hashErr := hashFile(ctx, u.path); hashErr == nil && got != blob.Digest {
		return damaged("stored blob %s has digest %s", blob.Digest, got)
	}
	return err
}
