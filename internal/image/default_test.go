package image_test

import (
	"archive/tar"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
)

// TestBuildDefault builds the default image twice and compares. It takes minutes
// and reads the Debian archive, so it runs only when asked.
func TestBuildDefault(t *testing.T) {
	if os.Getenv("SKERRY_TEST_DEBIAN") == "" {
		t.Skip("reads packages from the Debian archive: set SKERRY_TEST_DEBIAN=1 to run it")
	}
	var digests []string
	for range 2 {
		s := newStore(t)
		var phases []string
		info, err := s.BuildDefault(t.Context(), func(p skerry.PullProgress) {
			if len(phases) == 0 || phases[len(phases)-1] != p.Phase {
				phases = append(phases, p.Phase)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("digest %s, layer %d MB, blob %d MB", info.Digest, info.Bytes/1e6, info.BlobBytes/1e6)
		digests = append(digests, info.Digest)
		want := skerry.ImageConfig{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"bash"}}
		if diff := cmp.Diff(want, info.Config); diff != "" {
			t.Errorf("config (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"resolving", "building", "downloading", "converting"}, phases); diff != "" {
			t.Errorf("phases (-want +got):\n%s", diff)
		}
		img, err := s.Open(t.Context(), info.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkDebian(t, img.Layers[0].Path)
		img.Close()
		// The store is emptied so that two images need not fit the disk.
		if err := s.Delete(info.Digest); err != nil {
			t.Fatal(err)
		}
	}
	if digests[0] != digests[1] {
		t.Errorf("two builds differ: %s, %s", digests[0], digests[1])
	}
}

func checkDebian(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := map[string]bool{"usr/bin/node": true, "usr/bin/git": true, "usr/bin/curl": true, "usr/bin/python3.11": true,
		"etc/ssl/certs/ca-certificates.crt": true, "var/lib/dpkg/status": true, "etc/apt/trusted.gpg.d": true}
	small := map[string]string{"etc/hostname": "", "etc/resolv.conf": "", "etc/apt/sources.list": ""}
	for tr := tar.NewReader(f); ; {
		hdr, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := strings.Trim(strings.TrimPrefix(hdr.Name, "./"), "/")
		delete(want, name)
		switch {
		case strings.HasPrefix(name, "var/lib/apt/lists/") && hdr.Typeflag == tar.TypeReg && hdr.Size > 0,
			strings.HasPrefix(name, "etc/apt/sources.list.d/"), strings.HasSuffix(name, ".deb"), strings.Contains(name, "mmdebstrap"):
			t.Errorf("left over from the build: %s", name)
		}
		if _, ok := small[name]; ok {
			data, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			small[name] = string(data)
		}
	}
	for name := range want {
		t.Errorf("image lacks %s", name)
	}
	if got := small["etc/hostname"] + small["etc/resolv.conf"]; got != "localhost\n" {
		t.Errorf("host name and resolv.conf %q", got)
	}
	for _, suite := range []string{"bookworm main", "bookworm-updates main", "bookworm-security main"} {
		if !strings.Contains(small["etc/apt/sources.list"], suite+"\n") {
			t.Errorf("sources.list lacks %s:\n%s", suite, small["etc/apt/sources.list"])
		}
	}
}
