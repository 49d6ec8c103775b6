package image_test

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/image"
	"skerry.dev/skerry/internal/tarfuzz"
)

// FuzzImport imports anything as an archive.
func FuzzImport(f *testing.F) {
	layer := "a layer"
	for _, path := range []string{
		writeTar(f, tarEntry{"manifest.json", "", `[{"Config":"c.json","RepoTags":["a:1"],"Layers":["l/layer.tar"]}]`, tar.TypeReg},
			tarEntry{"c.json", "", configFor(layer), tar.TypeReg}, tarEntry{"l/layer.tar", "", layer, tar.TypeReg}),
		writeTar(f, layoutEntries(layer)...),
		writeTar(f, tarEntry{"manifest.json", "x", "", tar.TypeSymlink}, tarEntry{"x", "manifest.json", "", tar.TypeLink}),
	} {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "archive")
		if err := os.WriteFile(path, tarfuzz.Fix(data), 0o644); err != nil {
			t.Fatal(err)
		}
		importAnything(t, path)
	})
}

// FuzzImportDocuments imports archives whose documents are anything, but whose
// digests and sizes are right where a document asks for that by a "$" name.
func FuzzImportDocuments(f *testing.F) {
	f.Add(true, `[{"Config":"config","RepoTags":["a:1"],"Layers":["layer"]}]`, "", `{"rootfs":{"type":"layers","diff_ids":["$diff"]},"config":{}}`, "a layer")
	f.Add(true, `[{"Config":"config","Layers":["layer","./layer"]},{"Config":"x"}]`, "", `{"rootfs":{"diff_ids":["$diff","$diff"]},"config":{"Env":["A"],"User":"0:0"}}`, "")
	f.Add(false, `{"schemaVersion":2,"manifests":[$manifest]}`, `{"schemaVersion":2,"config":$config,"layers":[$layer]}`,
		`{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["$diff"]},"config":{"Cmd":["sh"],"WorkingDir":"/x","Volumes":{"/v":{}}}}`, "a layer")
	f.Add(false, `{"manifests":[$manifest,$config]}`, `{"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[$manifest,$layer]}`, `{}`, "")
	f.Fuzz(func(t *testing.T, docker bool, top, manifest, config, layer string) {
		describe := func(mediaType, content string) string {
			return `{"mediaType":"` + mediaType + `","digest":"` + digest(content) + `","size":` + strconv.Itoa(len(content)) + `}`
		}
		config = strings.ReplaceAll(config, "$diff", digest(layer))
		manifest = strings.NewReplacer("$config", describe("application/vnd.oci.image.config.v1+json", config),
			"$layer", describe("application/vnd.oci.image.layer.v1.tar", layer)).Replace(manifest)
		top = strings.ReplaceAll(top, "$manifest", describe(ociManifest, manifest))
		entries := []tarEntry{{"manifest.json", "", top, tar.TypeReg}, {"config", "", config, tar.TypeReg}, {"layer", "", layer, tar.TypeReg}}
		if !docker {
			entries = []tarEntry{{"oci-layout", "", `{"imageLayoutVersion":"1.0.0"}`, tar.TypeReg}, {"index.json", "", top, tar.TypeReg}}
			for _, content := range []string{manifest, config, layer} {
				entries = append(entries, tarEntry{"blobs/sha256/" + strings.TrimPrefix(digest(content), "sha256:"), "", content, tar.TypeReg})
			}
		}
		importAnything(t, writeTar(t, entries...))
	})
}

// importAnything imports an archive into a store of its own, which must end with
// an image whose files are whole, or with an error that blames the archive, and
// leave nothing.
func importAnything(t *testing.T, path string) {
	dir := t.TempDir()
	s, err := image.Open(storeOptions(dir, func(o *image.Options) {
		o.KeepUnused = -1
		o.Limits = image.Limits{ManifestBytes: 64 << 10, ConfigBytes: 64 << 10, BlobBytes: 1 << 20, LayerBytes: 1 << 20, ImageBytes: 4 << 20}
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	info, err := s.Import(t.Context(), skerry.ImportRequest{Path: path}, nil)
	if err == nil {
		checkImage(t, s, info.Digest, info.LayerCount)
		err = s.Delete(info.Digest)
	} else if code := skerry.CodeOf(err); code == skerry.CodeInternal {
		t.Fatalf("internal error: %v", err)
	} else {
		err = nil
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sweep(); err != nil {
		t.Fatal(err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Fatalf("left over: %q", left)
	}
}

// layoutEntries are the files of an OCI layout with one image of one layer.
func layoutEntries(layer string) []tarEntry {
	blob := func(content string) tarEntry {
		return tarEntry{"blobs/sha256/" + strings.TrimPrefix(digest(content), "sha256:"), "", content, tar.TypeReg}
	}
	describe := func(mediaType, content string) string {
		return `{"mediaType":"` + mediaType + `","digest":"` + digest(content) + `","size":` + strconv.Itoa(len(content)) + `}`
	}
	config := configFor(layer)
	manifest := `{"schemaVersion":2,"config":` + describe("application/vnd.oci.image.config.v1+json", config) +
		`,"layers":[` + describe("application/vnd.oci.image.layer.v1.tar", layer) + `]}`
	return []tarEntry{
		{"oci-layout", "", `{"imageLayoutVersion":"1.0.0"}`, tar.TypeReg},
		{"index.json", "", index(ociIndex, describe(ociManifest, manifest)), tar.TypeReg},
		blob(manifest), blob(config), blob(layer),
	}
}

func TestLayoutEntriesAreAnImage(t *testing.T) {
	info, err := newStore(t).Import(t.Context(), skerry.ImportRequest{Path: writeTar(t, layoutEntries("a layer")...)}, nil)
	if err != nil || info.LayerCount != 1 {
		t.Errorf("%+v: %v", info, err)
	}
}
