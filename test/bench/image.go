package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/image"
)

// imageTimeout bounds an import, or the build of the default image.
const imageTimeout = 20 * time.Minute

// prepareImage makes sure that the image of the run is in the run's image store,
// where the next run finds it: the archive that was named, or else the default
// image, built from Debian packages.
func (b *bench) prepareImage(ctx context.Context, s *server) (skerry.Image, error) {
	images, err := s.Images(ctx)
	if err != nil {
		return skerry.Image{}, err
	}
	name := image.DefaultImageName
	if b.opt.archive != "" {
		if name, err = archiveName(b.opt.archive); err != nil {
			return skerry.Image{}, err
		}
	}
	for _, img := range images {
		if img.Name == name && img.Status == skerry.ImageReady {
			return img, nil
		}
	}
	if b.opt.archive != "" {
		return importImage(ctx, s, b.opt.archive, name)
	}
	b.progress("building the default image from Debian packages, once; this takes a minute or two")
	if _, err := s.BuildDefaultImage(ctx); err != nil {
		return skerry.Image{}, err
	}
	return s.WaitImage(ctx, name, imageTimeout, nil)
}

// archiveName names an image after its archive's content.
func archiveName(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "bench-" + hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// importImage uploads an archive and returns when the image is ready.
func importImage(ctx context.Context, s *server, path, name string) (skerry.Image, error) {
	f, err := os.Open(path)
	if err != nil {
		return skerry.Image{}, err
	}
	defer f.Close()
	if _, err := s.ImportImage(ctx, skerry.ImportRequest{Name: name}, f); err != nil {
		return skerry.Image{}, err
	}
	return s.WaitImage(ctx, name, imageTimeout, nil)
}

// exportArchive writes an image of a store that no server has open as a tar of
// an OCI layout.
func exportArchive(ctx context.Context, storeDir, digest, path string) (err error) {
	store, err := image.Open(image.Options{Dir: storeDir})
	if err != nil {
		return err
	}
	defer store.Close()
	layout, err := os.MkdirTemp(filepath.Dir(path), "layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(layout)
	if _, err := store.WriteLayout(ctx, digest, layout); err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	w := tar.NewWriter(out)
	if err := w.AddFS(os.DirFS(layout)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return out.Close()
}

// measureImport imports the image's archive into stores that are empty: upload,
// digest checks, decompression, conversion to EROFS, registration.
func (b *bench) measureImport(ctx context.Context) error {
	archive := b.opt.archive
	if archive == "" {
		archive = filepath.Join(b.opt.dir, "image.tar")
		if err := exportArchive(ctx, filepath.Join(b.dataDir(), "images"), b.image.Digest, archive); err != nil {
			return fmt.Errorf("export the image: %w", err)
		}
		defer os.Remove(archive)
	}
	info, err := os.Stat(archive)
	if err != nil {
		return err
	}
	took := b.newSeries("import", "image import, %d MiB archive to %d MiB of EROFS", info.Size()>>20, b.image.Bytes>>20)
	rate := b.newSeries("import", "image import throughput, of the archive")
	rate.unit = "MiB/s"
	for range min(b.opt.n, 3) {
		d, err := b.importOnce(ctx, archive)
		if err != nil {
			return err
		}
		took.add(d)
		rate.addValue(float64(info.Size()) / (1 << 20) / d.Seconds())
	}
	b.finish(took, rate)
	return nil
}

func (b *bench) importOnce(ctx context.Context, archive string) (time.Duration, error) {
	dir := filepath.Join(b.opt.dir, "import")
	if err := os.RemoveAll(dir); err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	var took time.Duration
	err := b.withServer(ctx, serverConfig{name: "import", dataDir: dir}, func(s *server) error {
		start := time.Now()
		_, err := importImage(ctx, s, archive, "bench")
		took = time.Since(start)
		return err
	})
	return took, err
}
