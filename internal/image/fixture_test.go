package image_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"skerry.dev/skerry/internal/image"
)

// copyConverter keeps the tar as it is. Layers that hold the bytes "DEPENDS" are
// treated as if they had to be seen with the layers below.
type copyConverter struct {
	calls  atomic.Int64
	format string
	before func(image.Conversion) error // or nil
}

func (c *copyConverter) Format() string {
	if c.format == "" {
		return "copy-1"
	}
	return c.format
}

func (c *copyConverter) ConvertLayer(_ context.Context, l image.Conversion) (bool, error) {
	c.calls.Add(1)
	if c.before != nil {
		if err := c.before(l); err != nil {
			return false, err
		}
	}
	data, err := io.ReadAll(io.NewSectionReader(l.Tar, 0, l.Size+1))
	if err != nil {
		return false, err
	}
	if int64(len(data)) != l.Size {
		return false, errors.New("size does not match")
	}
	return bytes.Contains(data, []byte("DEPENDS")), os.WriteFile(l.Dst, data, 0o644)
}

// newStore opens a store that leaves nothing unused behind and retries at once.
func newStore(t *testing.T, change ...func(*image.Options)) *image.Store {
	t.Helper()
	s, err := image.Open(storeOptions(t.TempDir(), change...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func storeOptions(dir string, change ...func(*image.Options)) image.Options {
	opt := image.Options{Dir: dir, Converter: &copyConverter{}, RetryDelay: time.Millisecond,
		Keychain: authn.NewMultiKeychain()}
	for _, c := range change {
		c(&opt)
	}
	return opt
}

func transportFor(pool *x509.CertPool) *http.Transport {
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}
}

// makeLayout makes an OCI layout with umoci: "base" has two layers, "app" has
// these and a third, which deletes a file and holds n bytes that do not compress.
func makeLayout(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	layout := filepath.Join(dir, "layout")
	tree := func(name string, files map[string]string) string {
		for path, content := range files {
			writeFile(t, filepath.Join(dir, name, path), content)
		}
		return filepath.Join(dir, name)
	}
	umoci := func(args ...string) { t.Helper(); run(t, "umoci", args...) }
	umoci("init", "--layout", layout)
	umoci("new", "--image", layout+":base")
	a := tree("a", map[string]string{"etc/os-release": "ID=test\n", "usr/bin/tool": "#!/bin/sh\n", "gone": "x"})
	umoci("insert", "--rootless", "--image", layout+":base", a, "/")
	b := tree("b", map[string]string{"usr/lib/module.py": "print('DEPENDS')\n"})
	umoci("insert", "--rootless", "--image", layout+":base", b, "/")
	umoci("config", "--image", layout+":base", "--config.env", "PATH=/usr/bin:/bin", "--config.env", "my.var=a=b=c",
		"--config.user", "app:staff", "--config.workingdir", "/srv", "--config.entrypoint", "/usr/bin/tool", "--config.cmd", "run",
		"--config.volume", "/data", "--config.exposedports", "80/tcp")
	c := tree("c", map[string]string{"big": randomText(n)})
	umoci("insert", "--rootless", "--image", layout+":base", "--tag", "app", c, "/opt")
	umoci("insert", "--rootless", "--whiteout", "--image", layout+":app", "/gone")
	return layout
}

func randomText(n int) string {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return string(b)
}

// layoutManifest reads the manifest that a layout has under a tag.
func layoutManifest(t *testing.T, layout, tag string) (digest string, layers []string) {
	t.Helper()
	var index struct {
		Manifests []struct {
			Digest      string
			Annotations map[string]string
		}
	}
	readJSON(t, filepath.Join(layout, "index.json"), &index)
	for _, m := range index.Manifests {
		if m.Annotations["org.opencontainers.image.ref.name"] != tag {
			continue
		}
		var manifest struct {
			Layers []struct{ Digest string }
		}
		readJSON(t, filepath.Join(layout, "blobs/sha256", m.Digest[7:]), &manifest)
		for _, l := range manifest.Layers {
			layers = append(layers, l.Digest)
		}
		return m.Digest, layers
	}
	t.Fatalf("layout has no %s", tag)
	return "", nil
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// checkImage opens an image and checks that each layer file is what its diffID
// says (copyConverter keeps the tar).
func checkImage(t *testing.T, s *image.Store, digest string, layers int) {
	t.Helper()
	img, err := s.Open(t.Context(), digest)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	if len(img.Layers) != layers {
		t.Errorf("image has %d layers, want %d", len(img.Layers), layers)
	}
	for _, l := range img.Layers {
		data, err := os.ReadFile(l.Path)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		if got := "sha256:" + hex.EncodeToString(sum[:]); got != l.DiffID || int64(len(data)) != l.Bytes {
			t.Errorf("layer has content %s (%d bytes), want %s (%d)", got, len(data), l.DiffID, l.Bytes)
		}
	}
}

// files lists a store's files, without the lock.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if rel != "lock" {
			list = append(list, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return list
}
