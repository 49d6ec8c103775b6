package image_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/image"
)

// An exported image is what was pulled, to other tools too.
func TestWriteLayout(t *testing.T) {
	reg := startRegistry(t, false)
	layout := makeLayout(t, 100_000)
	want := unpack(t, layout, "app")
	for _, format := range []string{"oci", "v2s2"} {
		t.Run(format, func(t *testing.T) {
			ref := reg.push(t, layout+":app", "app:"+format, "--format", format)
			s := newStore(t)
			info, err := s.Pull(t.Context(), skerry.PullRequest{Reference: ref, PlainHTTP: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(t.TempDir(), "out")
			digest, err := s.WriteLayout(t.Context(), info.Digest, dir)
			if err != nil {
				t.Fatal(err)
			}
			if same := digest == info.Digest; same != (format == "oci") {
				t.Errorf("exported digest %s, pulled %s", digest, info.Digest)
			}
			if diff := cmp.Diff(want, unpack(t, dir, format)); diff != "" {
				t.Errorf("tree (-want +got):\n%s", diff)
			}
			var seen struct{ Layers []string }
			out := run(t, "skopeo", "inspect", "oci:"+dir+":"+format)
			if err := json.Unmarshal([]byte(out), &seen); err != nil || len(seen.Layers) != 4 {
				t.Errorf("skopeo sees %d layers: %v", len(seen.Layers), err)
			}
			if _, err := s.WriteLayout(t.Context(), info.Digest, dir); skerry.CodeOf(err) != skerry.CodeConflict {
				t.Errorf("export into a directory that is not empty: %v", err)
			}
		})
	}
}

// What is exported must be what was pulled, also if the store was tampered with.
func TestWriteLayoutOfADamagedBlob(t *testing.T) {
	layout := makeLayout(t, 1000)
	dir := t.TempDir()
	s, err := image.Open(storeOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, app := importBoth(t, s, layout)
	_, layers := layoutManifest(t, layout, "app")
	change(t, filepath.Join(dir, "blobs/sha256", layers[2][7:]), func(data []byte) []byte { data[9] ^= 1; return data })
	if _, err := s.WriteLayout(t.Context(), app.Digest, t.TempDir()); skerry.CodeOf(err) != skerry.CodeUnavailable {
		t.Errorf("export of a damaged blob: %v", err)
	}
}

// An image on a tour: built by buildah, saved as a docker archive, imported,
// exported, unpacked by umoci.
func TestBuildahImage(t *testing.T) {
	needTool(t, "buildah")
	if os.Geteuid() != 0 {
		t.Skip("buildah needs root or a user namespace on this machine")
	}
	dir := t.TempDir()
	storage := []string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}
	buildah := func(args ...string) string { t.Helper(); return run(t, "buildah", append(storage, args...)...) }
	writeFile(t, filepath.Join(dir, "tree/etc/motd"), "from buildah\n")
	container := strings.TrimSpace(buildah("from", "scratch"))
	buildah("copy", container, filepath.Join(dir, "tree"), "/")
	buildah("config", "--env", "LANG=C", "--cmd", "/bin/true", "--port", "80", container)
	archive := filepath.Join(dir, "image.tar")
	buildah("commit", "-q", container, "docker-archive:"+archive+":example.com/built:1")
	buildah("rm", container)

	s := newStore(t)
	info, err := s.Import(t.Context(), skerry.ImportRequest{Path: archive, Tag: "example.com/built:1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := "linux/" + runtime.GOARCH; info.Platform != want || info.Config.Env[len(info.Config.Env)-1] != "LANG=C" {
		t.Errorf("%+v", info)
	}
	out := filepath.Join(dir, "out")
	if _, err := s.WriteLayout(t.Context(), info.Digest, out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"etc/motd": "from buildah\n"}, unpack(t, out, "latest")); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
}

// unpack is what umoci makes of an image: the content of each file.
func unpack(t *testing.T, layout, tag string) map[string]string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "rootfs")
	run(t, "umoci", "raw", "unpack", "--rootless", "--image", layout+":"+tag, root)
	tree := make(map[string]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		rel, _ := filepath.Rel(root, path)
		tree[rel] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(tree) == 0 {
		t.Fatal("umoci unpacked nothing")
	}
	return tree
}
