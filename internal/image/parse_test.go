package image

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"skerry.dev/skerry"
)

func TestParseReference(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	cases := []struct {
		ref, want string // want: full name, or "" for an error
	}{
		{"alpine", "index.docker.io/library/alpine:latest"},
		{"alpine:3.20", "index.docker.io/library/alpine:3.20"},
		{"docker.io/library/alpine", "index.docker.io/library/alpine:latest"},
		{"registry.example/a/b/c:v1", "registry.example/a/b/c:v1"},
		{"localhost:5000/x", "localhost:5000/x:latest"},
		{"[::1]:5000/x:1", "[::1]:5000/x:1"},
		{"x@" + digest, "index.docker.io/library/x@" + digest},
		{"x:1@" + digest, "index.docker.io/library/x@" + digest},
		{"", ""},
		{"https://registry.example/x", ""},
		{"UPPER/case", ""},
		{"x:", ""},
		{"x:ta g", ""},
		{"x@sha256:abc", ""},
		{"x;touch /tmp/pwn", ""},
		{"../../etc/passwd", ""},
		{strings.Repeat("a", 600), ""},
	}
	for _, c := range cases {
		ref, err := parseReference(c.ref, false)
		switch {
		case c.want == "" && skerry.CodeOf(err) != skerry.CodeInvalid:
			t.Errorf("%.40q: %v, %v, want an error", c.ref, ref, err)
		case c.want != "" && (err != nil || ref.Name() != c.want):
			t.Errorf("%q: %v, %v, want %s", c.ref, ref, err, c.want)
		}
	}
}

func TestImageConfig(t *testing.T) {
	long := "F=" + strings.Repeat("x", 100<<10)
	cfg, warnings := imageConfig(&v1.Config{
		Env: []string{"A=line1\nline2\n", "B=x y  z", "C=a=b=c", "D=$(touch /tmp/pwn)`…`", "E=", long, "my.var=1", "A=again",
			"novalue", "=noname", "N=a\x00b", "G=" + strings.Repeat("x", 200<<10)},
		User: "1000:1000", WorkingDir: "srv/../app", Entrypoint: []string{"/a b", ""}, Cmd: nil,
		Volumes: map[string]struct{}{"/data": {}}, ExposedPorts: map[string]struct{}{"80/tcp": {}}, Healthcheck: &v1.HealthConfig{},
	})
	want := skerry.ImageConfig{
		Env:  []string{"A=again", "B=x y  z", "C=a=b=c", "D=$(touch /tmp/pwn)`…`", "E=", long, "my.var=1"},
		User: "1000:1000", WorkingDir: "/app", Entrypoint: []string{"/a b", ""},
	}
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	for _, word := range []string{"novalue", "noname", `"N"`, `"G"`, "VOLUME", "EXPOSE", "HEALTHCHECK"} {
		if !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, word) }) {
			t.Errorf("no warning about %s in %q", word, warnings)
		}
	}
	cfg, warnings = imageConfig(&v1.Config{User: "a\nb", WorkingDir: "/\x00", Cmd: []string{"\x00"}})
	if diff := cmp.Diff(skerry.ImageConfig{}, cfg); diff != "" || len(warnings) != 3 {
		t.Errorf("config (-want +got):\n%s\nwarnings %q", diff, warnings)
	}
}

// The chainIDs of the OCI image specification's definition, computed by hand.
func TestChainIDs(t *testing.T) {
	a, b := digestOf([]byte("a")), digestOf([]byte("b"))
	got := chainIDs([]v1.Hash{a, b, a})
	ab := digestOf([]byte(a.String() + " " + b.String()))
	want := []v1.Hash{a, ab, digestOf([]byte(ab.String() + " " + a.String()))}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCompareVariant(t *testing.T) {
	order := []string{"v5", "v6", "v7", "v8", "v8.1", "v8.2", "v9", "v10"}
	for i, a := range order {
		for j, b := range order {
			if got := compareVariant(a, b); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("compareVariant(%s, %s) = %d", a, b, got)
			}
		}
	}
}

// FuzzManifest reads anything as a manifest and its configuration, as they come
// from a registry.
func FuzzManifest(f *testing.F) {
	config := `{"os":"linux","rootfs":{"type":"layers","diff_ids":["` + digestOf(nil).String() + `"]},"config":{"Env":["A=b"]}}`
	f.Add([]byte(`{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"`+digestOf([]byte(config)).String()+`","size":1},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"`+digestOf(nil).String()+`","size":0}]}`), []byte(config), "")
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"platform":{"os":"linux","architecture":"arm","variant":"7"}}]}`), []byte("{}"), string(types.OCIImageIndex))
	f.Fuzz(func(t *testing.T, raw, config []byte, mediaType string) {
		want, err := parsePlatform("linux/arm/v7")
		if err != nil {
			t.Fatal(err)
		}
		doc, err := parseDocument(raw, types.MediaType(mediaType))
		if err != nil {
			checkCode(t, err)
			return
		}
		if doc.index != nil {
			_, err := choosePlatform(doc.index.Manifests, want)
			checkCode(t, err)
			_, err = chooseEntry(doc.index.Manifests, "x", want)
			checkCode(t, err)
			return
		}
		if err := checkManifest(doc.manifest, Limits{}.withDefaults()); err != nil {
			checkCode(t, err)
			return
		}
		doc.manifest.Config.Digest = digestOf(config) // else no input would get further
		img, err := newResolved(raw, doc, config, want)
		if err != nil {
			checkCode(t, err)
			return
		}
		cfg, _ := imageConfig(&img.config.Config)
		for _, e := range cfg.Env {
			if i := strings.IndexByte(e, '='); i < 1 || strings.ContainsRune(e, 0) || len(e) >= maxEnvEntry {
				t.Errorf("environment entry %q", e)
			}
		}
		if rec := img.record("x"); !strings.HasPrefix(rec.Platform, "linux/arm") {
			t.Errorf("platform %q", rec.Platform)
		}
	})
}

func checkCode(t *testing.T, err error) {
	t.Helper()
	if err != nil && skerry.CodeOf(err) == skerry.CodeInternal {
		t.Errorf("internal error: %v", err)
	}
}
