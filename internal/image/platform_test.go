package image_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"skerry.dev/skerry"
)

const (
	ociIndex    = "application/vnd.oci.image.index.v1+json"
	ociManifest = "application/vnd.oci.image.manifest.v1+json"
	dockerList  = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// indexEntry is a platform and the manifest that stands for it.
func indexEntry(t *testing.T, layout, tag, os_, arch, variant string) string {
	t.Helper()
	digest, _ := layoutManifest(t, layout, tag)
	fi, err := os.Stat(filepath.Join(layout, "blobs/sha256", digest[7:]))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d,"platform":{"os":%q,"architecture":%q,"variant":%q}}`,
		ociManifest, digest, fi.Size(), os_, arch, variant)
}

func index(mediaType string, entries ...string) string {
	return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[%s]}`, mediaType, strings.Join(entries, ","))
}

// makePlatforms adds to a layout an image per platform, tagged by it.
func makePlatforms(t *testing.T) string {
	t.Helper()
	layout := makeLayout(t, 1000)
	for tag, platform := range map[string][2]string{"amd64": {"amd64", ""}, "arm64": {"arm64", ""}, "armv6": {"arm", "v6"}, "armv7": {"arm", "v7"}} {
		run(t, "umoci", "config", "--image", layout+":base", "--tag", tag, "--architecture", platform[0], "--os", "linux", "--config.label", "platform="+tag)
	}
	return layout
}

func TestIndex(t *testing.T) {
	reg := startRegistry(t, false)
	layout := makePlatforms(t)
	for _, tag := range []string{"amd64", "arm64", "armv6", "armv7"} {
		reg.push(t, layout+":"+tag, "multi:"+tag)
	}
	attestation := indexEntry(t, layout, "armv6", "unknown", "unknown", "")
	amd64 := indexEntry(t, layout, "amd64", "linux", "amd64", "")
	arm64 := indexEntry(t, layout, "arm64", "linux", "arm64", "v8")
	v6 := indexEntry(t, layout, "armv6", "linux", "arm", "v6")
	v7 := indexEntry(t, layout, "armv7", "linux", "arm", "v7")
	windows := indexEntry(t, layout, "amd64", "windows", "amd64", "")
	reg.put(t, "multi", "oci", ociIndex, index(ociIndex, attestation, windows, v6, v7, arm64, amd64))
	reg.put(t, "multi", "no-amd64", ociIndex, index(ociIndex, arm64))
	reg.put(t, "multi", "lying", ociIndex, index(ociIndex, strings.Replace(arm64, `"arm64"`, `"amd64"`, 1)))
	reg.put(t, "multi", "docker", dockerList, strings.ReplaceAll(index(dockerList, arm64, amd64), `"variant":""`, `"variant":"v1"`))

	cases := []struct {
		tag, platform, want string // tag of the manifest
		code                skerry.Code
	}{
		{"oci", "linux/amd64", "amd64", ""},
		{"oci", "linux/amd64/v3", "amd64", ""},
		{"oci", "linux/arm64", "arm64", ""},
		{"oci", "linux/aarch64", "arm64", ""},
		{"oci", "linux/arm", "armv7", ""},
		{"oci", "linux/arm/v6", "armv6", ""},
		{"oci", "linux/arm/v8", "armv7", ""},
		{"oci", "linux/arm/v5", "", skerry.CodeUnsupported},
		{"oci", "linux/s390x", "", skerry.CodeUnsupported},
		{"oci", "windows/amd64", "", skerry.CodeUnsupported},
		{"oci", "linux", "", skerry.CodeInvalid},
		{"oci", "", runtime.GOARCH, ""},
		{"no-amd64", "linux/amd64", "", skerry.CodeUnsupported},
		{"lying", "linux/amd64", "", skerry.CodeUnsupported},
		{"arm64", "linux/amd64", "", skerry.CodeUnsupported}, // a single image, of another platform
		{"docker", "linux/arm64", "arm64", ""},
	}
	s := newStore(t)
	for _, c := range cases {
		t.Run(c.tag+" "+c.platform, func(t *testing.T) {
			info, err := s.Pull(t.Context(), skerry.PullRequest{Reference: reg.addr + "/multi:" + c.tag, PlainHTTP: true, Platform: c.platform}, nil)
			if got := skerry.CodeOf(err); got != c.code {
				t.Fatalf("code %q, want %q: %v", got, c.code, err)
			}
			if err != nil {
				return
			}
			if want, _ := layoutManifest(t, layout, c.want); info.Digest != want {
				t.Errorf("digest %s, want %s (%s)", info.Digest, want, c.want)
			}
			checkImage(t, s, info.Digest, 2)
		})
	}
}

// The same index as an archive: its entries are one image for several platforms.
func TestImportLayoutWithPlatforms(t *testing.T) {
	layout := makePlatforms(t)
	body := index(ociIndex, indexEntry(t, layout, "arm64", "linux", "arm64", ""), indexEntry(t, layout, "amd64", "linux", "amd64", ""))
	if !json.Valid([]byte(body)) {
		t.Fatal("the test's index is no JSON")
	}
	want, _ := layoutManifest(t, layout, runtime.GOARCH)
	writeFile(t, filepath.Join(layout, "index.json"), body)
	s := newStore(t)
	info, err := s.Import(t.Context(), skerry.ImportRequest{Path: layout}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if info.Digest != want {
		t.Errorf("digest %s, want %s", info.Digest, want)
	}
}
