package image_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/image"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		crashChild()
		return
	}
	goleak.VerifyTestMain(m)
}

// importBoth imports "base" and "app", which share two layers.
func importBoth(t *testing.T, s *image.Store, layout string) (base, app image.Info) {
	t.Helper()
	infos := make([]image.Info, 2)
	for i, tag := range []string{"base", "app"} {
		info, err := s.Import(t.Context(), skerry.ImportRequest{Path: layout, Tag: tag}, nil)
		if err != nil {
			t.Fatal(err)
		}
		infos[i] = info
	}
	return infos[0], infos[1]
}

func TestSharedLayersAreStoredOnce(t *testing.T) {
	layout := makeLayout(t, 1000)
	dir := t.TempDir()
	conv := &copyConverter{}
	s, err := image.Open(storeOptions(dir, func(o *image.Options) { o.Converter = conv }))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	base, app := importBoth(t, s, layout)
	if got := conv.calls.Load(); got != 4 {
		t.Errorf("%d conversions, want 4", got)
	}
	var imgs, inPlace int
	for _, f := range files(t, dir) {
		if strings.HasSuffix(f, ".img") {
			imgs++
		}
		if strings.HasPrefix(f, "layers/chain-") && strings.HasSuffix(f, ".img") {
			inPlace++
		}
	}
	if imgs != 4 || inPlace != 1 {
		t.Errorf("%d layer files of which %d by chainID, want 4 and 1", imgs, inPlace)
	}
	usage, err := s.Usage()
	if err != nil {
		t.Fatal(err)
	}
	if usage.Images != 2 || usage.Unused != 0 || usage.Layers < app.Bytes || usage.Layers >= app.Bytes+base.Bytes {
		t.Errorf("usage %+v of images with %d and %d bytes", usage, base.Bytes, app.Bytes)
	}

	// Each can go without harm to the other; with the last everything goes.
	if err := s.Delete(base.Digest); err != nil {
		t.Fatal(err)
	}
	checkImage(t, s, app.Digest, 4)
	if _, err := s.Open(t.Context(), base.Digest); skerry.CodeOf(err) != skerry.CodeNotFound {
		t.Errorf("deleted image: %v", err)
	}
	if err := s.Delete(app.Digest); err != nil {
		t.Fatal(err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
	if err := s.Delete(app.Digest); skerry.CodeOf(err) != skerry.CodeNotFound {
		t.Errorf("second delete: %v", err)
	}
}

func TestDeleteOfAnImageInUse(t *testing.T) {
	s := newStore(t)
	_, app := importBoth(t, s, makeLayout(t, 1000))
	img, err := s.Open(t.Context(), app.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(app.Digest); skerry.CodeOf(err) != skerry.CodeConflict {
		t.Errorf("delete of an image in use: %v", err)
	}
	img.Close()
	img.Close()
	if err := s.Delete(app.Digest); err != nil {
		t.Error(err)
	}
}

func TestReopen(t *testing.T) {
	dir := t.TempDir()
	s, err := image.Open(storeOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	base, app := importBoth(t, s, makeLayout(t, 1000))
	if _, err := image.Open(storeOptions(dir)); skerry.CodeOf(err) != skerry.CodeConflict {
		t.Errorf("second store on one directory: %v", err)
	}
	s.Close()
	before := files(t, dir)
	writeFile(t, filepath.Join(dir, "tmp/layer-1/tar"), "left by a crash")
	writeFile(t, filepath.Join(dir, "layers/diff-00.img"), "left by a crash")
	s, err = image.Open(storeOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if after := files(t, dir); !slices.Equal(before, after) {
		t.Errorf("files after reopening: %q, want %q", after, before)
	}
	for _, want := range []image.Info{base, app} {
		if got, err := s.Get(want.Digest); err != nil || got.Bytes != want.Bytes || got.Platform != want.Platform {
			t.Errorf("image %+v after reopening, want %+v: %v", got, want, err)
		}
		checkImage(t, s, want.Digest, want.LayerCount)
	}
}

func TestDamagedLayer(t *testing.T) {
	layout := makeLayout(t, 1000)
	flip := func(data []byte) []byte { data[len(data)/2] ^= 1; return data }
	cases := []struct {
		name   string
		damage func(t *testing.T, dir, img string)
		format string
		repair bool // possible without the source
	}{
		{name: "bit flipped", repair: true, damage: func(t *testing.T, _, img string) { change(t, img, flip) }},
		{name: "truncated", repair: true, damage: func(t *testing.T, _, img string) {
			change(t, img, func(data []byte) []byte { return data[:len(data)-1] })
		}},
		{name: "removed", repair: true, damage: func(t *testing.T, _, img string) { remove(t, img) }},
		{name: "facts removed", repair: true, damage: func(t *testing.T, _, img string) { remove(t, strings.TrimSuffix(img, "img")+"json") }},
		{name: "other format", repair: true, format: "copy-2", damage: func(*testing.T, string, string) {}},
		{name: "blob damaged too", damage: func(t *testing.T, dir, img string) {
			change(t, img, flip)
			_, layers := layoutManifest(t, layout, "app")
			for _, l := range layers {
				change(t, filepath.Join(dir, "blobs/sha256", l[7:]), flip)
			}
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := image.Open(storeOptions(dir))
			if err != nil {
				t.Fatal(err)
			}
			req := skerry.ImportRequest{Path: layout, Tag: "app"}
			info, err := s.Import(t.Context(), req, nil)
			if err != nil {
				t.Fatal(err)
			}
			img, err := s.Open(t.Context(), info.Digest)
			if err != nil {
				t.Fatal(err)
			}
			path := img.Layers[2].Path
			img.Close()
			s.Close()
			c.damage(t, dir, path)

			s, err = image.Open(storeOptions(dir, func(o *image.Options) { o.Converter = &copyConverter{format: c.format} }))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			_, err = s.Open(t.Context(), info.Digest)
			if !errors.Is(err, image.ErrDamaged) || skerry.CodeOf(err) != skerry.CodeUnavailable {
				t.Fatalf("open of a damaged image: %v", err)
			}
			_, err = s.Repair(t.Context(), info.Digest, nil)
			if c.repair != (err == nil) {
				t.Fatalf("repair: %v", err)
			}
			if err != nil {
				if !strings.Contains(err.Error(), "again") {
					t.Errorf("error without a hint: %v", err)
				}
				if _, err := s.Import(t.Context(), req, nil); err != nil {
					t.Fatalf("import again: %v", err)
				}
			}
			checkImage(t, s, info.Digest, 4)
		})
	}
}

// A file that is damaged while the store is open is noticed too.
func TestDamageWhileOpen(t *testing.T) {
	s := newStore(t)
	base, _ := importBoth(t, s, makeLayout(t, 1000))
	img, err := s.Open(t.Context(), base.Digest)
	if err != nil {
		t.Fatal(err)
	}
	path := img.Layers[0].Path
	img.Close()
	change(t, path, func(data []byte) []byte { data[0] ^= 1; return data })
	if _, err := s.Open(t.Context(), base.Digest); !errors.Is(err, image.ErrDamaged) {
		t.Errorf("open: %v", err)
	}
}

func TestUnreadableRecordIsSetAside(t *testing.T) {
	dir := t.TempDir()
	s, err := image.Open(storeOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	base, app := importBoth(t, s, makeLayout(t, 1000))
	s.Close()
	record := filepath.Join(dir, "images", strings.TrimPrefix(base.Digest, "sha256:")+".json")
	change(t, record, func([]byte) []byte { return []byte("{") })
	s, err = image.Open(storeOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	checkImage(t, s, app.Digest, 4)
	if _, err := os.Stat(record + ".bad"); err != nil {
		t.Error(err)
	}
}

func TestConversionFails(t *testing.T) {
	dir := t.TempDir()
	s, err := image.Open(storeOptions(dir, func(o *image.Options) {
		o.KeepUnused = -1
		o.Converter = &copyConverter{before: func(image.Conversion) error {
			return skerry.Errorf(skerry.CodeTooLarge, "entry usr/bin/x: too much")
		}}
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = s.Import(context.Background(), skerry.ImportRequest{Path: makeLayout(t, 1000), Tag: "base"}, nil)
	if skerry.CodeOf(err) != skerry.CodeTooLarge || !strings.Contains(err.Error(), "convert layer 1 of 2") {
		t.Errorf("code %q: %v", skerry.CodeOf(err), err)
	}
	if _, err := s.Sweep(); err != nil {
		t.Fatal(err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
}

// change rewrites a file, read-only ones too, in its place.
func change(t *testing.T, path string, edit func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, edit(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
