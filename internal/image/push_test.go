package image_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/image"
)

// pushProxy stands before a registry, counts what is uploaded, and breaks the
// connection within blobs.
type pushProxy struct {
	mu      sync.Mutex
	cut     []int64 // after how many bytes of a blob's data to break the connection, one connection each
	bytes   int64   // of blobs' data that came
	patches int     // requests with data
	mounted int     // blobs taken over from another repository
}

func (p *pushProxy) start(t *testing.T, reg *testRegistry) string {
	t.Helper()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: reg.addr})
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	proxy.ModifyResponse = func(r *http.Response) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if r.Request.Method == http.MethodPost && r.StatusCode == http.StatusCreated {
			p.mounted++
		}
		return nil
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			body := &countBody{ReadCloser: r.Body, proxy: p}
			p.mu.Lock()
			p.patches++
			if len(p.cut) > 0 {
				body.cut, p.cut = p.cut[0], p.cut[1:]
			}
			p.mu.Unlock()
			r.Body = body
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

type countBody struct {
	io.ReadCloser
	proxy *pushProxy
	cut   int64
	here  int64
}

func (b *countBody) Read(p []byte) (int, error) {
	if b.cut > 0 && b.here >= b.cut {
		return 0, errors.New("connection broke")
	}
	if b.cut > 0 {
		p = p[:min(int64(len(p)), b.cut-b.here)]
	}
	n, err := b.ReadCloser.Read(p)
	b.here += int64(n)
	b.proxy.mu.Lock()
	b.proxy.bytes += int64(n)
	b.proxy.mu.Unlock()
	return n, err
}

// What is pushed is what was pulled: same digest, same blobs. What the registry
// has is not uploaded.
func TestPush(t *testing.T) {
	reg := startRegistry(t, false)
	layout := makeLayout(t, 100_000)
	for _, format := range []string{"oci", "v2s2"} {
		t.Run(format, func(t *testing.T) {
			proxy := new(pushProxy)
			addr := proxy.start(t, reg)
			from := strings.Replace(reg.push(t, layout+":app", "from-"+format+":1", "--format", format), reg.addr, addr, 1)
			s := newStore(t)
			info, err := s.Pull(t.Context(), skerry.PullRequest{Reference: from, PlainHTTP: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			to := addr + "/team/" + format + ":v1"
			pushAndCheck(t, s, info, to)
			if proxy.mounted != 4 || proxy.patches != 1 {
				t.Errorf("%d blobs mounted, want the 4 layers; %d uploaded, want the configuration", proxy.mounted, proxy.patches)
			}
			pushAndCheck(t, s, info, addr+"/team/"+format+":v2")
			if proxy.patches != 1 {
				t.Errorf("%d blobs uploaded that the registry has", proxy.patches-1)
			}
			if got := strings.TrimSpace(run(t, "skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", "docker://"+to)); got != info.Digest {
				t.Errorf("skopeo sees %s, want %s", got, info.Digest)
			}
			other := newStore(t)
			pulled, err := other.Pull(t.Context(), skerry.PullRequest{Reference: to, PlainHTTP: true}, nil)
			if err != nil || pulled.Digest != info.Digest {
				t.Errorf("pulled %s, %v; want %s", pulled.Digest, err, info.Digest)
			}
		})
	}
}

// pushAndCheck pushes and checks the digest and the progress reports.
func pushAndCheck(t *testing.T, s *image.Store, info image.Info, to string) {
	t.Helper()
	var last skerry.PushProgress
	digest, err := s.Push(t.Context(), info.Digest, skerry.PushRequest{Reference: to, PlainHTTP: true}, func(p skerry.PushProgress) { last = p })
	if err != nil || digest != info.Digest {
		t.Fatalf("pushed as %q, %v; want %s", digest, err, info.Digest)
	}
	manifestBytes := last.TotalBytes - info.BlobBytes // the manifest is not counted
	if last.DoneBytes != last.TotalBytes || last.TotalBytes == 0 || manifestBytes >= 0 || last.Status != skerry.ImageBuilding || last.Reference != to {
		t.Errorf("last progress %+v of an image of %d bytes", last, info.BlobBytes)
	}
}

// A captured image, pushed, is an image for others: of its blobs only the new
// ones are uploaded, skopeo copies it, umoci unpacks it, buildah runs it.
func TestPushOfAnAppendedImage(t *testing.T) {
	proxy := new(pushProxy)
	reg := startRegistry(t, false)
	addr := proxy.start(t, reg)
	layout := makeLayout(t, 1<<20)
	reg.push(t, layout+":app", "base:1")
	s := newStore(t)
	base, err := s.Pull(t.Context(), skerry.PullRequest{Reference: addr + "/base:1", PlainHTTP: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	program := buildProgram(t)
	info, err := s.Append(t.Context(), base.Digest, tarOf("new/file", "captured", "etc/.wh.os-release", "", "bin/show", program), appendOptions, nil)
	if err != nil {
		t.Fatal(err)
	}
	to := addr + "/captured:1"
	pushAndCheck(t, s, info, to)
	if proxy.mounted != 4 || proxy.patches != 2 {
		t.Errorf("%d blobs mounted, want 4; %d uploaded, want 2", proxy.mounted, proxy.patches)
	}
	out := filepath.Join(t.TempDir(), "out")
	run(t, "skopeo", "copy", "-q", "--insecure-policy", "--src-tls-verify=false", "docker://"+to, "oci:"+out+":x")
	want := unpack(t, layout, "app")
	want["new/file"], want["bin/show"] = "captured", program
	delete(want, "etc/os-release")
	if diff := cmp.Diff(want, unpack(t, out, "x")); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	t.Run("buildah", func(t *testing.T) {
		if got := runWithBuildah(t, to, "/bin/show"); got != "captured" {
			t.Errorf("the program in the image says %q", got)
		}
	})
}

// buildProgram makes a program that needs nothing else in an image.
func buildProgram(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "main.go"), `package main

import "os"

func main() {
	data, err := os.ReadFile("/new/file")
	if _, gone := os.Stat("/etc/os-release"); err == nil && os.IsNotExist(gone) {
		os.Stdout.Write(data)
	}
}
`)
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", filepath.Join(dir, "show"), filepath.Join(dir, "main.go"))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	program, err := os.ReadFile(filepath.Join(dir, "show"))
	if err != nil {
		t.Fatal(err)
	}
	return string(program)
}

// runWithBuildah has buildah pull an image and run a program in it.
func runWithBuildah(t *testing.T, ref string, program ...string) string {
	t.Helper()
	needTool(t, "buildah")
	if os.Geteuid() != 0 {
		t.Skip("buildah needs root or a user namespace on this machine")
	}
	dir := t.TempDir()
	storage := []string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}
	out := strings.Fields(run(t, "buildah", append(storage, "from", "--tls-verify=false", "docker://"+ref)...))
	container := out[len(out)-1]
	defer run(t, "buildah", append(storage, "rm", container)...)
	return run(t, "buildah", append(append(storage, "run", "--isolation", "chroot", "--user", "0:0", container, "--"), program...)...)
}

// A connection that breaks costs no image. The registry here forgets uploads
// whose connection broke, so they start again.
func TestPushOverABadConnection(t *testing.T) {
	proxy := &pushProxy{cut: []int64{700_000, 5, 100_000, 2_000_000}}
	reg := startRegistry(t, false)
	addr := proxy.start(t, reg)
	s := newStore(t)
	base, err := s.Import(t.Context(), skerry.ImportRequest{Path: makeLayout(t, 1000), Tag: "app"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Append(t.Context(), base.Digest, tarOf("big", randomText(3<<20)), appendOptions, nil)
	if err != nil {
		t.Fatal(err)
	}
	pushAndCheck(t, s, info, addr+"/x/y:1")
	if len(proxy.cut) != 0 {
		t.Errorf("%d connections left to break", len(proxy.cut))
	}
	other := newStore(t)
	if _, err := other.Pull(t.Context(), skerry.PullRequest{Reference: addr + "/x/y:1", PlainHTTP: true}, nil); err != nil {
		t.Error(err)
	}
}

// resumingRegistry is a registry that remembers what of an upload came, as the
// distribution specification allows ("Pushing a blob in chunks"). It holds one
// upload at a time.
type resumingRegistry struct {
	mu       sync.Mutex
	data     []byte // of the upload
	cut      int64  // after how many bytes each connection breaks
	received int64
	ranges   []string
	blobs    map[string]int
}

func (g *resumingRegistry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	location := fmt.Sprintf("/v2/x/blobs/uploads/1?have=%d", len(g.data))
	switch {
	case r.URL.Path == "/v2/":
	case r.Method == http.MethodHead:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodPost:
		g.data = nil
		w.Header().Set("Location", "/v2/x/blobs/uploads/1?have=0")
		w.WriteHeader(http.StatusAccepted)
	case r.Method == http.MethodGet:
		w.Header().Set("Location", location)
		w.Header().Set("Range", fmt.Sprintf("0-%d", max(0, len(g.data)-1)))
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodPatch:
		g.ranges = append(g.ranges, r.Header.Get("Content-Range"))
		if r.URL.Query().Get("have") != fmt.Sprint(len(g.data)) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		part, err := io.ReadAll(io.LimitReader(r.Body, g.cut))
		g.data = append(g.data, part...)
		g.received += int64(len(part))
		if err != nil || int64(len(part)) == g.cut {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Location", fmt.Sprintf("/v2/x/blobs/uploads/1?have=%d", len(g.data)))
		w.WriteHeader(http.StatusAccepted)
	case r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/uploads/"):
		if want := r.URL.Query().Get("digest"); digestOf(g.data) != want {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		g.blobs[digestOf(g.data)] = len(g.data)
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodPut:
		w.WriteHeader(http.StatusCreated)
	}
}

func TestPushIsResumed(t *testing.T) {
	registry := &resumingRegistry{cut: 1 << 20, blobs: make(map[string]int)}
	srv := httptest.NewServer(registry)
	defer srv.Close()
	s := newStore(t, func(o *image.Options) { o.Downloads = 1 })
	base, err := s.Import(t.Context(), skerry.ImportRequest{Path: oddLayout(t, "[]")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const size = 5 << 20
	info, err := s.Append(t.Context(), base.Digest, tarOf("big", randomText(size)), appendOptions, nil)
	if err != nil {
		t.Fatal(err)
	}
	pushAndCheck(t, s, info, strings.TrimPrefix(srv.URL, "http://")+"/x:1")
	if registry.received > size+size/10 || len(registry.blobs) != 4 {
		t.Errorf("%d bytes were sent of %d, %d blobs", registry.received, size, len(registry.blobs))
	}
	if last := registry.ranges[len(registry.ranges)-2]; !strings.HasPrefix(last, "5242880-") {
		t.Errorf("ranges %q", registry.ranges)
	}
}

func TestPushNeedsALogin(t *testing.T) {
	reg := startRegistry(t, true)
	s := newStore(t, func(o *image.Options) { o.Transport = transportFor(reg.pool) })
	info, err := s.Import(t.Context(), skerry.ImportRequest{Path: makeLayout(t, 1000), Tag: "app"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ref := reg.addr + "/private:1"
	for _, c := range []struct {
		auth *skerry.RegistryAuth
		want skerry.Code
	}{
		{nil, skerry.CodeUnauthorized},
		{&skerry.RegistryAuth{Username: registryUser, Password: "wrong"}, skerry.CodeUnauthorized},
		{&skerry.RegistryAuth{Username: registryUser, Password: registryPassword}, ""},
	} {
		_, err := s.Push(t.Context(), info.Digest, skerry.PushRequest{Reference: ref, Auth: c.auth}, nil)
		if got := skerry.CodeOf(err); got != c.want {
			t.Errorf("code %q, want %q: %v", got, c.want, err)
		}
		if err != nil && strings.Contains(err.Error(), "wrong") {
			t.Errorf("error shows the password: %v", err)
		}
	}
}

func TestPushRefuses(t *testing.T) {
	s := newStore(t)
	info, err := s.Import(t.Context(), skerry.ImportRequest{Path: makeLayout(t, 1000), Tag: "app"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx               context.Context
		digest, reference string
		plain             bool
		want              skerry.Code
	}{
		{t.Context(), "sha256:" + strings.Repeat("0", 64), "127.0.0.1:1/x:1", true, skerry.CodeNotFound},
		{t.Context(), info.Digest, "UPPER", true, skerry.CodeInvalid},
		{t.Context(), info.Digest, "127.0.0.1:1/x@sha256:" + strings.Repeat("0", 64), true, skerry.CodeInvalid},
		{t.Context(), info.Digest, "127.0.0.1:1/x:1", true, skerry.CodeUnavailable},
		{t.Context(), info.Digest, "127.0.0.1:1/x:1", false, skerry.CodeUnavailable},
		{cancelled, info.Digest, "127.0.0.1:1/x:1", true, skerry.CodeUnavailable},
	} {
		if _, err := s.Push(c.ctx, c.digest, skerry.PushRequest{Reference: c.reference, PlainHTTP: c.plain}, nil); skerry.CodeOf(err) != c.want {
			t.Errorf("%s: code %q, want %q: %v", c.reference, skerry.CodeOf(err), c.want, err)
		}
	}
}

// A blob that was changed on disk is not pushed as something else.
func TestPushOfADamagedBlob(t *testing.T) {
	reg := startRegistry(t, false)
	layout := makeLayout(t, 1000)
	dir := t.TempDir()
	s, err := image.Open(storeOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	info, err := s.Import(t.Context(), skerry.ImportRequest{Path: layout, Tag: "app"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, layers := layoutManifest(t, layout, "app")
	change(t, filepath.Join(dir, "blobs/sha256", layers[2][7:]), func(data []byte) []byte { data[9] ^= 1; return data })
	_, err = s.Push(t.Context(), info.Digest, skerry.PushRequest{Reference: reg.addr + "/x:1", PlainHTTP: true}, nil)
	if !errors.Is(err, image.ErrDamaged) {
		t.Errorf("push of a damaged blob: %v", err)
	}
}

// A push that is cancelled while it sends ends, and leaves the store usable.
func TestCancelledPush(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	registry := &resumingRegistry{cut: 1 << 30, blobs: make(map[string]int)}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			cancel()
			io.Copy(io.Discard, r.Body) // a server sees that the client hung up only when it has read all
			<-r.Context().Done()
			return
		}
		registry.ServeHTTP(w, r)
	}))
	defer srv.Close()
	s := newStore(t)
	info, err := s.Import(t.Context(), skerry.ImportRequest{Path: makeLayout(t, 1<<20), Tag: "app"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Push(ctx, info.Digest, skerry.PushRequest{Reference: strings.TrimPrefix(srv.URL, "http://") + "/x:1", PlainHTTP: true}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled push: %v", err)
	}
	if err := s.Delete(info.Digest); err != nil {
		t.Error(err)
	}
}
