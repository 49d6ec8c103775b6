package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/image"
)

func TestImport(t *testing.T) {
	layout := makeLayout(t, 200_000)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	copyTo := func(dst string, tag string, args ...string) {
		t.Helper()
		run(t, "skopeo", append(append([]string{"copy", "-q", "--insecure-policy"}, args...), "oci:"+layout+":"+tag, dst)...)
	}
	copyTo("oci-archive:"+in("oci.tar")+":app", "app")
	copyTo("docker-archive:"+in("docker.tar")+":example.com/team/app:1", "app")
	copyTo("docker-archive:"+in("several.tar")+":alpine:3", "base")
	copyTo("docker-archive:"+in("several.tar.1")+":example.com/app:2", "app")
	run(t, "tar", "-C", layout, "-cf", in("layout.tar"), ".")
	run(t, "skopeo", "copy", "-q", "--insecure-policy", "--dest-decompress", "oci:"+layout+":app", "dir:"+in("plain"))
	run(t, "skopeo", "copy", "-q", "--insecure-policy", "--dest-oci-accept-uncompressed-layers", "dir:"+in("plain"), "oci:"+in("uncompressed")+":app")
	mergeDockerArchives(t, in("several.tar"), in("several.tar.1"), in("two.tar"))
	gz := gzipped(t, in("docker.tar"), in("docker.tar.gz"))

	cases := []struct {
		name   string
		req    skerry.ImportRequest
		layers int
		code   skerry.Code
		text   string
	}{
		{name: "oci-archive", req: skerry.ImportRequest{Path: in("oci.tar")}, layers: 4},
		{name: "docker-archive", req: skerry.ImportRequest{Path: in("docker.tar")}, layers: 4},
		{name: "kind given", req: skerry.ImportRequest{Path: in("docker.tar"), Kind: skerry.ArchiveDocker}, layers: 4},
		{name: "compressed", req: skerry.ImportRequest{Path: gz}, layers: 4},
		{name: "directory", req: skerry.ImportRequest{Path: layout, Tag: "app"}, layers: 4},
		{name: "layers not compressed", req: skerry.ImportRequest{Path: in("uncompressed")}, layers: 4},
		{name: "directory, other tag", req: skerry.ImportRequest{Path: layout, Tag: "base"}, layers: 2},
		{name: "tar of a directory", req: skerry.ImportRequest{Path: in("layout.tar"), Tag: "base", Kind: skerry.ArchiveOCI}, layers: 2},
		{name: "docker, short name", req: skerry.ImportRequest{Path: in("two.tar"), Tag: "docker.io/library/alpine:3"}, layers: 2},
		{name: "docker, tag", req: skerry.ImportRequest{Path: in("two.tar"), Tag: "example.com/app:2"}, layers: 4},

		{name: "no tag", req: skerry.ImportRequest{Path: layout}, code: skerry.CodeInvalid, text: `"app", "base"`},
		{name: "wrong tag", req: skerry.ImportRequest{Path: layout, Tag: "x"}, code: skerry.CodeNotFound, text: `"app", "base"`},
		{name: "docker, no tag", req: skerry.ImportRequest{Path: in("two.tar")}, code: skerry.CodeInvalid, text: "alpine:3"},
		{name: "docker, wrong tag", req: skerry.ImportRequest{Path: in("two.tar"), Tag: "alpine:4"}, code: skerry.CodeNotFound},
		{name: "wrong kind", req: skerry.ImportRequest{Path: in("docker.tar"), Kind: skerry.ArchiveOCI}, code: skerry.CodeInvalid},
		{name: "unknown kind", req: skerry.ImportRequest{Path: in("docker.tar"), Kind: "zip"}, code: skerry.CodeInvalid},
		{name: "no file", req: skerry.ImportRequest{Path: in("none")}, code: skerry.CodeNotFound},
		{name: "no archive", req: skerry.ImportRequest{Path: os.Args[0]}, code: skerry.CodeInvalid},
		{name: "device", req: skerry.ImportRequest{Path: "/dev/zero"}, code: skerry.CodeInvalid},
		{name: "empty directory", req: skerry.ImportRequest{Path: t.TempDir()}, code: skerry.CodeInvalid},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t)
			info, err := s.Import(t.Context(), c.req, nil)
			if got := skerry.CodeOf(err); got != c.code || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Fatalf("code %q, want %q and %q: %v", got, c.code, c.text, err)
			}
			if err == nil {
				checkImage(t, s, info.Digest, c.layers)
			}
		})
	}
}

// An archive and a pull of the same image share everything.
func TestImportAfterPullCostsNothing(t *testing.T) {
	reg := startRegistry(t, false)
	layout := makeLayout(t, 1000)
	ref := reg.push(t, layout+":app", "app:1")
	s := newStore(t)
	pulled, err := s.Pull(t.Context(), skerry.PullRequest{Reference: ref, PlainHTTP: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	before, err := s.Usage()
	if err != nil {
		t.Fatal(err)
	}
	imported, err := s.Import(t.Context(), skerry.ImportRequest{Path: layout, Tag: "app"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	after, err := s.Usage()
	if err != nil {
		t.Fatal(err)
	}
	if pulled.Digest != imported.Digest {
		t.Errorf("digests differ: %s, %s", pulled.Digest, imported.Digest)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("usage (-before +after):\n%s", diff)
	}
}

// tarEntry is one entry of a hand-made archive.
type tarEntry struct {
	name, link, content string
	kind                byte
}

func writeTar(t testing.TB, entries ...tarEntry) string {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		hdr := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Size: int64(len(e.content)), Mode: 0o644}
		if err := w.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "archive.tar")
	if err := os.WriteFile(path, buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func digest(s string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(s))) }

func configFor(layers ...string) string {
	ids := make([]string, len(layers))
	for i, l := range layers {
		ids[i] = `"` + digest(l) + `"`
	}
	return `{"rootfs":{"type":"layers","diff_ids":[` + strings.Join(ids, ",") + `]},"config":{}}`
}

// Archives that try to reach what is not theirs, or to cost too much.
func TestHostileArchives(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	writeFile(t, secret, "the host's secret")
	reg, sym, hard := byte(tar.TypeReg), byte(tar.TypeSymlink), byte(tar.TypeLink)
	docker := func(layer string) tarEntry {
		return tarEntry{"manifest.json", "", `[{"Config":"c.json","Layers":["` + layer + `"]}]`, reg}
	}
	config := tarEntry{"c.json", "", configFor("the host's secret"), reg}
	bomb := gzipString(t, strings.Repeat("\x00", 2<<20))
	cases := []struct {
		name    string
		entries []tarEntry
		code    skerry.Code
	}{
		{"layer by absolute name", []tarEntry{docker(secret), config}, skerry.CodeInvalid},
		{"layer by traversal", []tarEntry{docker("../../../../../../" + secret), config}, skerry.CodeInvalid},
		{"symlink to the host", []tarEntry{docker("l"), config, {"l", secret, "", sym}}, skerry.CodeInvalid},
		{"relative symlink out", []tarEntry{docker("a/l"), config, {"a/l", "../../../../../.." + secret, "", sym}}, skerry.CodeInvalid},
		{"hard link to the host", []tarEntry{docker("l"), config, {"l", secret, "", hard}}, skerry.CodeInvalid},
		{"below a symlink", []tarEntry{docker("d/secret"), config, {"d", filepath.Dir(secret), "", sym}}, skerry.CodeInvalid},
		{"symlink loop", []tarEntry{docker("l"), config, {"l", "m", "", sym}, {"m", "l", "", sym}}, skerry.CodeInvalid},
		{"symlink to itself as manifest", []tarEntry{{"manifest.json", "manifest.json", "", sym}}, skerry.CodeInvalid},
		{"name out of the archive", []tarEntry{{"../../escape", "", "x", reg}}, skerry.CodeInvalid},
		{"config is no JSON", []tarEntry{docker("l"), {"c.json", "", "{", reg}, {"l", "", "x", reg}}, skerry.CodeInvalid},
		{"wrong diffID", []tarEntry{docker("l"), config, {"l", "", "something else", reg}}, skerry.CodeInvalid},
		{"bomb", []tarEntry{docker("l"), {"c.json", "", configFor(strings.Repeat("\x00", 2<<20)), reg}, {"l", "", bomb, reg}}, skerry.CodeTooLarge},
		{"huge manifest", []tarEntry{{"manifest.json", "", "[" + strings.Repeat(" ", 5<<20) + "]", reg}}, skerry.CodeTooLarge},
		{"layer is a directory", []tarEntry{docker("l"), config, {"l/", "", "", tar.TypeDir}}, skerry.CodeInvalid},
		{"no entries", nil, skerry.CodeInvalid},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := image.Open(storeOptions(dir, func(o *image.Options) {
				o.KeepUnused = -1
				o.Limits = image.Limits{LayerBytes: 1 << 20}
			}))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			_, err = s.Import(t.Context(), skerry.ImportRequest{Path: writeTar(t, c.entries...)}, nil)
			if got := skerry.CodeOf(err); got != c.code {
				t.Errorf("code %q, want %q: %v", got, c.code, err)
			}
			if _, err := s.Sweep(); err != nil {
				t.Fatal(err)
			}
			if left := files(t, dir); len(left) != 0 {
				t.Errorf("left over: %q", left)
			}
		})
	}
}

// Old `docker save` archives name a layer that an image holds twice by a link.
func TestDockerArchiveWithLink(t *testing.T) {
	layer := "a layer"
	path := writeTar(t,
		tarEntry{"manifest.json", "", `[{"Config":"c.json","RepoTags":null,"Layers":["one/layer.tar","two/layer.tar"]}]`, tar.TypeReg},
		tarEntry{"c.json", "", configFor(layer, layer), tar.TypeReg},
		tarEntry{"one/layer.tar", "", layer, tar.TypeReg},
		tarEntry{"two/layer.tar", "../one/layer.tar", "", tar.TypeSymlink})
	s := newStore(t)
	info, err := s.Import(t.Context(), skerry.ImportRequest{Path: path}, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkImage(t, s, info.Digest, 2)
}

// A layout directory whose blobs are links out of it, or a FIFO that never ends.
func TestHostileLayoutDirectory(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "index.json")
	writeFile(t, outside, `{"schemaVersion":2,"manifests":[]}`)
	for name, make := range map[string]func(path string) error{
		"link": func(path string) error { return os.Symlink(outside, path) },
		"fifo": func(path string) error { return syscall.Mkfifo(path, 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := make(filepath.Join(dir, "index.json")); err != nil {
				t.Fatal(err)
			}
			_, err := newStore(t).Import(t.Context(), skerry.ImportRequest{Path: dir}, nil)
			if got := skerry.CodeOf(err); got != skerry.CodeInvalid {
				t.Errorf("code %q, want %q: %v", got, skerry.CodeInvalid, err)
			}
		})
	}
}

// mergeDockerArchives joins two docker archives of one image each, as `docker
// save a b` does.
func mergeDockerArchives(t *testing.T, a, b, dst string) {
	t.Helper()
	dir := t.TempDir()
	var manifests []string
	for _, path := range []string{a, b} {
		run(t, "tar", "-C", dir, "-xf", path)
		data, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
		if err != nil {
			t.Fatal(err)
		}
		manifests = append(manifests, strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(string(data)), "["), "]"))
	}
	if err := os.Chmod(filepath.Join(dir, "manifest.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "manifest.json"), "["+strings.Join(manifests, ",")+"]")
	run(t, "tar", "-C", dir, "-cf", dst, ".")
}

func gzipString(t *testing.T, s string) string {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

func gzipped(t *testing.T, src, dst string) string {
	t.Helper()
	data, err := os.ReadFile(src)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, dst, gzipString(t, string(data)))
	return dst
}
