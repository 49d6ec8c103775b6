package image_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/image"
)

func TestPull(t *testing.T) {
	reg := startRegistry(t, false)
	layout := makeLayout(t, 300_000)
	cases := []struct {
		name  string
		args  []string
		magic string // of the layers as stored
	}{
		{"oci", nil, "\x1f\x8b"},
		{"docker", []string{"--format", "v2s2"}, "\x1f\x8b"},
		{"zstd", []string{"--preserve-digests"}, "\x28\xb5\x2f\xfd"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			from := "oci:" + layout + ":app"
			if c.name == "zstd" { // skopeo compresses only what is not compressed, and in a layout
				plain := "dir:" + filepath.Join(t.TempDir(), "plain")
				run(t, "skopeo", "copy", "-q", "--insecure-policy", "--dest-decompress", from, plain)
				from = "oci:" + filepath.Join(t.TempDir(), "zstd") + ":app"
				run(t, "skopeo", "copy", "-q", "--insecure-policy", "--dest-compress-format", "zstd", plain, from)
			}
			ref := reg.pushFrom(t, from, c.name+":1", c.args...)
			dir := t.TempDir()
			s, err := image.Open(storeOptions(dir))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			var seen []skerry.PullProgress
			info, err := s.Pull(t.Context(), skerry.PullRequest{Reference: ref, PlainHTTP: true},
				func(p skerry.PullProgress) { seen = append(seen, p) })
			if err != nil {
				t.Fatal(err)
			}
			checkImage(t, s, info.Digest, 4)
			if got := layersWithMagic(t, dir, c.magic); got != 4 {
				t.Errorf("%d layers begin with %q, want 4", got, c.magic)
			}
			want := skerry.ImageConfig{Env: []string{"PATH=/usr/bin:/bin", "my.var=a=b=c"}, User: "app:staff",
				WorkingDir: "/srv", Entrypoint: []string{"/usr/bin/tool"}, Cmd: []string{"run"}}
			if diff := cmp.Diff(want, info.Config); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
			if len(info.Warnings) != 2 { // VOLUME, EXPOSE
				t.Errorf("warnings %q, want 2", info.Warnings)
			}
			checkProgress(t, seen)
			if diff := cmp.Diff([]image.Info{info}, s.List()); diff != "" {
				t.Errorf("list (-want +got):\n%s", diff)
			}
		})
	}
}

// checkProgress checks that phases come in order and the last two end complete.
func checkProgress(t *testing.T, seen []skerry.PullProgress) {
	t.Helper()
	var phases []string
	for i, p := range seen {
		if len(phases) == 0 || phases[len(phases)-1] != p.Phase {
			phases = append(phases, p.Phase)
		}
		last := i == len(seen)-1 || seen[i+1].Phase != p.Phase
		if last && p.Phase != "resolving" && (p.DoneBytes != p.TotalBytes || p.TotalBytes == 0) {
			t.Errorf("phase %s ended at %d of %d bytes", p.Phase, p.DoneBytes, p.TotalBytes)
		}
	}
	if want := []string{"resolving", "downloading", "converting"}; !slices.Equal(phases, want) {
		t.Errorf("phases %q, want %q", phases, want)
	}
}

// layersWithMagic counts the stored blobs that begin with magic.
func layersWithMagic(t *testing.T, dir, magic string) int {
	t.Helper()
	n := 0
	for _, f := range files(t, filepath.Join(dir, "blobs/sha256")) {
		data, err := os.ReadFile(filepath.Join(dir, "blobs/sha256", f))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(data), magic) {
			n++
		}
	}
	return n
}
