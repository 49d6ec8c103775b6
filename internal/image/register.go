package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"skerry.dev/skerry"
)

// register brings a resolved image's layers into the store and registers it.
// Layers are fetched side by side and converted in their order, each as soon as
// it and those below are there.
func (s *Store) register(ctx context.Context, img *resolved, src source, origin string, t *tracker) (Info, error) {
	if err := checkManifest(&img.manifest, s.opt.Limits); err != nil {
		return Info{}, err
	}
	rec := img.record(origin)
	defer s.pin(img.allFiles()...)()
	if err := s.checkSpace(&img.manifest); err != nil {
		return Info{}, err
	}
	for _, small := range [][]byte{img.raw, img.rawConfig} {
		if err := s.putBlob(small); err != nil {
			return Info{}, err
		}
	}
	t.enter(phaseDownloading, layerBytes(img.manifest.Layers))
	if err := s.bringLayers(ctx, img, src, rec, t); err != nil {
		return Info{}, err
	}
	if err := s.put(rec); err != nil {
		return Info{}, err
	}
	return rec.info(), nil
}

// bringLayers fetches and converts all layers and completes the record's list.
func (s *Store) bringLayers(ctx context.Context, img *resolved, src source, rec *record, t *tracker) error {
	layers := img.manifest.Layers
	group, ctx := errgroup.WithContext(ctx)
	fetched := make([]chan struct{}, len(layers))
	var missing atomic.Int64
	missing.Store(int64(len(layers)))
	for i, l := range layers {
		fetched[i] = make(chan struct{})
		group.Go(func() error {
			if err := s.ensureBlob(ctx, src, l, t); err != nil {
				return fault(err, "layer %d of %d (%s)", i+1, len(layers), l.Digest)
			}
			if missing.Add(-1) == 0 {
				t.enter(phaseConverting, layerBytes(layers))
			}
			close(fetched[i])
			return nil
		})
	}
	group.Go(func() error {
		chain := chainIDs(img.config.RootFS.DiffIDs)
		var lower []LayerFile
		for i, l := range layers {
			select {
			case <-fetched[i]:
			case <-ctx.Done():
				return ctx.Err()
			}
			diffID := img.config.RootFS.DiffIDs[i]
			file, key, err := s.layerFromBlob(ctx, src, l, diffID, chain[i], lower, t)
			if err != nil {
				return fault(err, "convert layer %d of %d (%s)", i+1, len(layers), diffID)
			}
			lower = append(lower, file)
			rec.Layers = append(rec.Layers, layerRecord{Blob: plain(l), DiffID: diffID, Key: key, Bytes: file.Bytes})
			t.layerConverted(l.Size)
		}
		return nil
	})
	return group.Wait()
}

// layerFromBlob converts a layer. If the stored blob turns out to be damaged it
// is fetched once more.
func (s *Store) layerFromBlob(ctx context.Context, src source, blob v1.Descriptor, diffID, chainID v1.Hash, lower []LayerFile, t *tracker) (LayerFile, string, error) {
	file, key, err := s.ensureLayer(ctx, blob, diffID, chainID, lower)
	if err == nil || ctx.Err() != nil || skerry.CodeOf(err) != skerry.CodeInvalid {
		return file, key, err
	}
	dropped, dropErr := s.dropDamagedBlob(ctx, blob.Digest)
	if dropErr != nil || !dropped {
		return file, key, errors.Join(err, dropErr)
	}
	s.opt.Log.Warn("stored blob was damaged, fetching it again", "digest", blob.Digest.String())
	t.transferred(-blob.Size)
	if err := s.ensureBlob(ctx, src, blob, t); err != nil {
		return file, key, err
	}
	return s.ensureLayer(ctx, blob, diffID, chainID, lower)
}

// record is the image's record, its layers still missing.
func (img *resolved) record(origin string) *record {
	cfg, warnings := imageConfig(&img.config.Config)
	return &record{
		Manifest:  v1.Descriptor{MediaType: img.mediaType, Digest: img.digest, Size: int64(len(img.raw))},
		Config:    plain(img.manifest.Config),
		Platform:  platformName(img.platform),
		Source:    origin,
		Image:     cfg,
		Warnings:  warnings,
		CreatedAt: time.Now().UTC(),
	}
}

// plain is a descriptor without what is of no use later and of any size.
func plain(d v1.Descriptor) v1.Descriptor {
	return v1.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
}

// allFiles are all names that the image needs or may need while it is made.
func (img *resolved) allFiles() []string {
	names := []string{blobName(img.digest), blobName(img.manifest.Config.Digest)}
	chain := chainIDs(img.config.RootFS.DiffIDs)
	for i, l := range img.manifest.Layers {
		own, inPlace := layerKeys(img.config.RootFS.DiffIDs[i], chain[i])
		names = append(names, blobName(l.Digest), partialName(l.Digest), "layers/"+own, "layers/"+inPlace)
	}
	return names
}

func layerBytes(layers []v1.Descriptor) int64 {
	var sum int64
	for _, l := range layers {
		sum += l.Size
	}
	return sum
}

// checkSpace refuses at once what cannot fit: blobs that are still missing and
// as much again for what they are converted to.
func (s *Store) checkSpace(m *v1.Manifest) error {
	var need int64
	for _, l := range m.Layers {
		if _, err := os.Stat(s.path(blobName(l.Digest))); err != nil {
			need += 2 * l.Size
		}
	}
	var fsys syscall.Statfs_t
	if err := syscall.Statfs(s.opt.Dir, &fsys); err != nil {
		return fmt.Errorf("measure free space: %w", err)
	}
	if free := int64(fsys.Bavail) * fsys.Bsize; need > free {
		return skerry.Errorf(skerry.CodeExhausted, "the disk is full: the image needs at least %d MiB in %s, %d MiB are free",
			need>>20, s.opt.Dir, free>>20)
	}
	return nil
}

// Repair converts anew whatever of a registered image is damaged or of an old
// format, from the layers as they were pulled. If those are damaged too the
// error says so, and only a new pull or import helps.
func (s *Store) Repair(ctx context.Context, digest string, progress func(skerry.PullProgress)) (Info, error) {
	old, err := s.record(digest)
	if err != nil {
		return Info{}, err
	}
	img, err := s.reload(old)
	if err != nil {
		return Info{}, fault(err, "repair image %s", digest)
	}
	info, err := s.register(ctx, img, noSource{}, old.Source, newTracker(progress))
	return info, s.afterFailure(fault(err, "repair image %s", digest))
}

// reload reads a registered image's manifest and configuration from the store.
func (s *Store) reload(rec *record) (*resolved, error) {
	raw, err := s.manifestBytes(rec)
	if err != nil {
		return nil, err
	}
	manifest, mediaType, err := rec.parse(raw)
	if err != nil {
		return nil, err
	}
	rawConfig, err := os.ReadFile(s.path(blobName(rec.Config.Digest)))
	if err != nil {
		return nil, err
	}
	platform, err := parsePlatform(rec.Platform)
	if err != nil {
		return nil, err
	}
	return newResolved(raw, document{mediaType: mediaType, manifest: manifest}, rawConfig, platform)
}

// afterFailure makes room if an operation ended because the disk was full: what
// an interrupted pull left is worth less than the sandboxes that run.
func (s *Store) afterFailure(err error) error {
	if skerry.CodeOf(err) != skerry.CodeExhausted {
		return err
	}
	freed, sweepErr := s.sweep(0)
	s.opt.Log.Warn("disk full, removed what no image needs", "freed_bytes", freed)
	return errors.Join(err, sweepErr)
}
