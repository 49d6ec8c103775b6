package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDebianSources(t *testing.T) {
	const official = "http://default.example/debian"
	defaults := []aptSource{{official, "bookworm"}, {official, "bookworm-updates"}, {official + "-security", "bookworm-security"}}
	cases := []struct {
		name        string
		files       map[string]string
		want, guest []aptSource
	}{
		{"nothing configured", nil, defaults, defaults},
		{"another distribution", map[string]string{"sources.list": "deb http://ubuntu.example/ubuntu noble main\n"}, defaults, defaults},
		{"one-line, with a login", map[string]string{"sources.list": "# deb http://no.example/debian bookworm main\n" +
			"deb [ arch=amd64 signed-by=/x ] https://me:secret@mirror.example/debian bookworm contrib main # x\n" +
			"deb-src http://src.example/debian bookworm-updates main\ndeb cdrom:[x]/ bookworm-updates main\n"},
			[]aptSource{{"https://me:secret@mirror.example/debian", "bookworm"}, defaults[1], defaults[2]},
			[]aptSource{{"https://mirror.example/debian", "bookworm"}, defaults[1], defaults[2]}},
		{"deb822", map[string]string{"sources.list.d/debian.sources": "Types: deb deb-src\n# x\nURIs: http://a.example/debian\nSuites: bookworm\n bookworm-updates\nComponents: main\n" +
			"Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ: x\n\nTypes: deb\nURIs: http://b.example/s\nSuites: bookworm-security\nComponents: main\nEnabled: no\n",
			"sources.list.d/node.list": "deb https://node.example/node_20.x nodistro main\n"},
			[]aptSource{{"http://a.example/debian", "bookworm"}, {"http://a.example/debian", "bookworm-updates"}, defaults[2]},
			[]aptSource{{"http://a.example/debian", "bookworm"}, {"http://a.example/debian", "bookworm-updates"}, defaults[2]}},
		{"mirror of the host only", map[string]string{"sources.list": "deb http://localhost:3142/debian bookworm main\ndeb http://10.0.0.1/debian bookworm-updates main\ndeb http://apt/debian-security bookworm-security main\n"},
			[]aptSource{{"http://localhost:3142/debian", "bookworm"}, {"http://10.0.0.1/debian", "bookworm-updates"}, {"http://apt/debian-security", "bookworm-security"}}, defaults},
		{"no shell", map[string]string{"sources.list": "deb http://x.example/';touch${IFS}/tmp/pwn;' bookworm main\n"}, defaults, defaults},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			for name, content := range c.files {
				path := filepath.Join(root, "etc/apt", name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			configured, err := hostSources(root)
			if err != nil {
				t.Fatal(err)
			}
			chosen, err := chooseSources(configured, defaults)
			if err != nil {
				t.Fatal(err)
			}
			var got, guest []aptSource
			for _, s := range chosen {
				got, guest = append(got, s.build), append(guest, s.guest)
			}
			opt := cmp.AllowUnexported(aptSource{})
			if diff := cmp.Diff(c.want, got, opt); diff != "" {
				t.Errorf("build (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.guest, guest, opt); diff != "" {
				t.Errorf("guest (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDefaultSources asks the installed mmdebstrap. Nothing is fetched.
func TestDefaultSources(t *testing.T) {
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip("mmdebstrap is not installed")
	}
	dir := t.TempDir()
	got, err := defaultSources(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := chooseSources(nil, got); err != nil {
		t.Errorf("%v in %+v", err, got)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// TestChooseSourcesWithout: a suite without a mirror is an error, not left out.
func TestChooseSourcesWithout(t *testing.T) {
	if got, err := chooseSources(nil, []aptSource{{"http://default.example/debian", "bookworm"}}); err == nil {
		t.Errorf("got %+v, want an error", got)
	}
}

// TestBuildEnv: what the server was started with does not get into the image.
func TestBuildEnv(t *testing.T) {
	got := buildEnv([]string{"HOME=/root", "PATH=/opt", "PYTHONDONTWRITEBYTECODE=1", "http_proxy=http://p.example:1", "SECRET=x", "no_proxy=a,b"}, "/t")
	want := []string{"PATH=" + guestPath, "HOME=/", "TMPDIR=/t", "LC_ALL=C.UTF-8", "TZ=UTC", "http_proxy=http://p.example:1", "no_proxy=a,b"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
