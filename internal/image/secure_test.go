package image_test

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/image"
)

func TestLogin(t *testing.T) {
	reg := startRegistry(t, true)
	layout := makeLayout(t, 1000)
	ref := reg.push(t, layout+":base", "base:1", "--dest-creds", registryUser+":"+registryPassword)
	login := base64.StdEncoding.EncodeToString([]byte(registryUser + ":" + registryPassword))
	good := &skerry.RegistryAuth{Username: registryUser, Password: registryPassword}
	cases := []struct {
		name   string
		ref    string
		auth   *skerry.RegistryAuth
		config string // of docker, or ""
		helper string // a credential helper's script, or ""
		want   skerry.Code
	}{
		{name: "given", ref: ref, auth: good},
		{name: "docker config", ref: ref, config: `{"auths": {"` + reg.addr + `": {"auth": "` + login + `"}}}`},
		{name: "credential helper", ref: ref, config: `{"credHelpers": {"` + reg.addr + `": "skerrytest"}}`,
			helper: "#!/bin/sh\necho '{\"Username\":\"" + registryUser + "\",\"Secret\":\"" + registryPassword + "\"}'\n"},
		{name: "none", ref: ref, config: `{}`, want: skerry.CodeUnauthorized},
		{name: "wrong", ref: ref, auth: &skerry.RegistryAuth{Username: registryUser, Password: "no"}, want: skerry.CodeUnauthorized},
		{name: "no such tag", ref: reg.addr + "/base:2", auth: good, want: skerry.CodeNotFound},
		{name: "no such repository", ref: reg.addr + "/other:1", auth: good, want: skerry.CodeNotFound},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("DOCKER_CONFIG", dir)
			if c.config != "" {
				writeFile(t, filepath.Join(dir, "config.json"), c.config)
			}
			if c.helper != "" {
				helper := filepath.Join(dir, "docker-credential-skerrytest")
				writeFile(t, helper, c.helper)
				if err := os.Chmod(helper, 0o755); err != nil {
					t.Fatal(err)
				}
				t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			}
			s := newStore(t, func(o *image.Options) {
				o.Keychain = authn.DefaultKeychain
				o.Transport = transportFor(reg.pool)
			})
			info, err := s.Pull(t.Context(), skerry.PullRequest{Reference: c.ref, Auth: c.auth}, nil)
			if got := skerry.CodeOf(err); got != c.want {
				t.Fatalf("code %q, want %q: %v", got, c.want, err)
			}
			if err == nil {
				checkImage(t, s, info.Digest, 2)
			} else if strings.Contains(err.Error(), registryPassword) {
				t.Errorf("error tells the password: %v", err)
			}
		})
	}
}

// Plain HTTP is spoken only when told, also to loopback, where libraries like to
// make an exception.
func TestPlainHTTPOnlyWhenTold(t *testing.T) {
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { asked++ }))
	defer srv.Close()
	s := newStore(t)
	_, err := s.Pull(t.Context(), skerry.PullRequest{Reference: strings.TrimPrefix(srv.URL, "http://") + "/x:1"}, nil)
	if got := skerry.CodeOf(err); got != skerry.CodeUnavailable || !strings.Contains(err.Error(), "plain_http") {
		t.Errorf("code %q, want %q with a hint: %v", got, skerry.CodeUnavailable, err)
	}
	if asked != 0 {
		t.Errorf("%d requests without TLS", asked)
	}
}

// A registry with TLS must not lead to one without.
func TestRedirectToPlainHTTP(t *testing.T) {
	asked := 0
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer plain.Close()
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			http.Redirect(w, r, plain.URL+r.URL.Path, http.StatusTemporaryRedirect)
		}
	}))
	defer srv.Close()
	s := newStore(t, func(o *image.Options) { o.Transport = srv.Client().Transport })
	_, err := s.Pull(t.Context(), skerry.PullRequest{Reference: strings.TrimPrefix(srv.URL, "https://") + "/x:1"}, nil)
	if got := skerry.CodeOf(err); got != skerry.CodeUnavailable || asked != 0 {
		t.Errorf("code %q, %d requests without TLS, want %q and none: %v", got, asked, skerry.CodeUnavailable, err)
	}
}

// What registries may answer to the request for a manifest.
func TestManifestAnswers(t *testing.T) {
	const oci = "application/vnd.oci.image.manifest.v1+json"
	cases := []struct {
		name, mediaType, body string
		status                int
		loop                  bool
		want                  skerry.Code
		text                  string
	}{
		{name: "forbidden", status: 403, want: skerry.CodeForbidden},
		{name: "rate limit", status: 429, want: skerry.CodeUnavailable, text: "rate limit"},
		{name: "down", status: 503, want: skerry.CodeUnavailable, text: "given up"},
		{name: "schema 1", mediaType: "application/vnd.docker.distribution.manifest.v1+prettyjws", body: `{"schemaVersion":1,"fsLayers":[]}`, want: skerry.CodeUnsupported, text: "schema 1"},
		{name: "huge", mediaType: oci, body: strings.Repeat(" ", 5<<20), want: skerry.CodeTooLarge},
		{name: "html", mediaType: "text/html", body: "<html>", want: skerry.CodeInvalid},
		{name: "both", mediaType: oci, body: `{"schemaVersion":2,"layers":[],"manifests":[]}`, want: skerry.CodeInvalid},
		{name: "type confusion", mediaType: oci, body: `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json"}`, want: skerry.CodeInvalid},
		{name: "chart", mediaType: oci, body: `{"schemaVersion":2,"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","size":2,"digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},"layers":[]}`, want: skerry.CodeUnsupported},
		{name: "no layers", mediaType: oci, body: `{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":2,"digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},"layers":[]}`, want: skerry.CodeInvalid},
		{name: "redirect loop", loop: true, want: skerry.CodeUnavailable},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/v2/":
				case c.loop:
					http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
				default:
					w.Header().Set("Content-Type", c.mediaType)
					if c.status != 0 {
						w.WriteHeader(c.status)
					}
					w.Write([]byte(c.body))
				}
			}))
			defer srv.Close()
			s := newStore(t)
			_, err := s.Pull(t.Context(), skerry.PullRequest{Reference: strings.TrimPrefix(srv.URL, "http://") + "/x:1", PlainHTTP: true}, nil)
			if got := skerry.CodeOf(err); got != c.want || !strings.Contains(err.Error(), c.text) {
				t.Errorf("code %q, want %q and %q: %v", got, c.want, c.text, err)
			}
		})
	}
}

func TestUnknownHost(t *testing.T) {
	s := newStore(t)
	_, err := s.Pull(t.Context(), skerry.PullRequest{Reference: "registry.invalid/x:1"}, nil)
	// A resolver that does not answer at all makes it CodeUnavailable.
	if got := skerry.CodeOf(err); got != skerry.CodeNotFound && got != skerry.CodeUnavailable {
		t.Errorf("code %q: %v", got, err)
	}
}
