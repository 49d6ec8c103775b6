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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/image"
)

// cutProxy stands before a registry and cuts each transfer of a blob after a
// number of bytes.
type cutProxy struct {
	after   int64 // 0: lets everything through
	ranges  bool  // passes Range on
	mu      sync.Mutex
	sent    map[string]int64 // bytes of each blob
	resumed int              // answers with status 206
}

func (p *cutProxy) start(t *testing.T, reg *testRegistry) string {
	t.Helper()
	p.sent = make(map[string]int64)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: reg.addr})
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) {}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.ranges {
			r.Header.Del("Range")
		}
		if strings.Contains(r.URL.Path, "/blobs/") {
			w = &cutWriter{ResponseWriter: w, proxy: p, blob: r.URL.Path}
		}
		proxy.ServeHTTP(w, r)
	}))
	srv.Config.ErrorLog = nil
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

type cutWriter struct {
	http.ResponseWriter
	proxy *cutProxy
	blob  string
	here  int64
}

func (w *cutWriter) WriteHeader(status int) {
	w.proxy.mu.Lock()
	if status == http.StatusPartialContent {
		w.proxy.resumed++
	}
	w.proxy.mu.Unlock()
	w.ResponseWriter.WriteHeader(status)
}

func (w *cutWriter) Write(b []byte) (int, error) {
	w.proxy.mu.Lock()
	cut := w.proxy.after
	w.proxy.mu.Unlock()
	if left := cut - w.here; cut > 0 && int64(len(b)) >= left {
		w.ResponseWriter.Write(b[:left])
		w.ResponseWriter.(http.Flusher).Flush()
		w.count(left)
		panic(http.ErrAbortHandler)
	}
	w.count(int64(len(b)))
	return w.ResponseWriter.Write(b)
}

func (w *cutWriter) count(n int64) {
	w.here += n
	w.proxy.mu.Lock()
	w.proxy.sent[w.blob] += n
	w.proxy.mu.Unlock()
}

func TestDownloadIsResumed(t *testing.T) {
	reg := startRegistry(t, false)
	const size = 3 << 20
	reg.push(t, makeLayout(t, size)+":app", "app:1")
	proxy := &cutProxy{after: 700_000, ranges: true}
	ref := proxy.start(t, reg) + "/app:1"
	s := newStore(t)
	info, err := s.Pull(t.Context(), skerry.PullRequest{Reference: ref, PlainHTTP: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkImage(t, s, info.Digest, 4)
	if proxy.resumed == 0 {
		t.Error("nothing was resumed")
	}
	for blob, sent := range proxy.sent {
		// What was sent may get lost in the connection that breaks, but not much of it.
		if sent > size+size/2 {
			t.Errorf("%s: %d bytes sent", blob, sent)
		}
	}
}

func TestResumeAcrossPulls(t *testing.T) {
	reg := startRegistry(t, false)
	const size = 3 << 20
	reg.push(t, makeLayout(t, size)+":app", "app:1")
	for _, ranges := range []bool{true, false} {
		t.Run(fmt.Sprintf("ranges %v", ranges), func(t *testing.T) {
			// Cut so early that no attempt counts as getting on.
			proxy := &cutProxy{after: 100_000, ranges: ranges}
			ref := proxy.start(t, reg) + "/app:1"
			dir := t.TempDir()
			s, err := image.Open(storeOptions(dir))
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Pull(t.Context(), skerry.PullRequest{Reference: ref, PlainHTTP: true}, nil)
			if got := skerry.CodeOf(err); got != skerry.CodeUnavailable {
				t.Fatalf("code %q, want %q: %v", got, skerry.CodeUnavailable, err)
			}
			if len(s.List()) != 0 {
				t.Error("a failed pull registered an image")
			}
			s.Close()

			s, err = image.Open(storeOptions(dir))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			proxy.mu.Lock()
			proxy.after = 0
			proxy.mu.Unlock()
			info, err := s.Pull(t.Context(), skerry.PullRequest{Reference: ref, PlainHTTP: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			checkImage(t, s, info.Digest, 4)
			if ranges != (proxy.resumed > 0) {
				t.Errorf("%d transfers resumed", proxy.resumed)
			}
		})
	}
}

func TestTamperedBlob(t *testing.T) {
	reg := startRegistry(t, false)
	layout := makeLayout(t, 1000)
	digest, layers := layoutManifest(t, layout, "app")
	ref := reg.push(t, layout+":app", "app:1")
	for _, c := range []struct{ name, hex, ref string }{
		{"layer", layers[2][7:], ref},
		{"manifest by tag", digest[7:], ref},
		{"manifest by digest", digest[7:], strings.TrimSuffix(ref, ":1") + "@" + digest},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := reg.blobPath(c.hex)
			good, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			defer os.WriteFile(path, good, 0o644)
			bad := append([]byte(nil), good...)
			bad[len(bad)/2] ^= 1
			if err := os.WriteFile(path, bad, 0o644); err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			s, err := image.Open(storeOptions(dir, func(o *image.Options) { o.KeepUnused = -1 }))
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Pull(t.Context(), skerry.PullRequest{Reference: c.ref, PlainHTTP: true}, nil)
			if err == nil || len(s.List()) != 0 {
				t.Fatalf("a tampered %s was accepted", c.name)
			}
			// The registry itself refuses a manifest that it notices to be wrong.
			if got := skerry.CodeOf(err); got != skerry.CodeInvalid && !(c.hex == digest[7:] && got != skerry.CodeInternal) {
				t.Errorf("code %q: %v", got, err)
			}
			if _, err := s.Sweep(); err != nil {
				t.Fatal(err)
			}
			if left := files(t, dir); len(left) != 0 {
				t.Errorf("left over: %q", left)
			}
			s.Close()
		})
	}
	s := newStore(t)
	if _, err := s.Pull(t.Context(), skerry.PullRequest{Reference: ref, PlainHTTP: true}, nil); err != nil {
		t.Errorf("the registry's content is right again, but: %v", err)
	}
}

func TestConcurrentPullsShareTheWork(t *testing.T) {
	reg := startRegistry(t, false)
	layout := makeLayout(t, 500_000)
	reg.push(t, layout+":app", "app:1")
	reg.push(t, layout+":base", "base:1")
	proxy := &cutProxy{ranges: true}
	host := proxy.start(t, reg)
	conv := &copyConverter{}
	s := newStore(t, func(o *image.Options) { o.Converter = conv })
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			ref := host + "/" + []string{"app", "base"}[i%2] + ":1"
			info, err := s.Pull(context.Background(), skerry.PullRequest{Reference: ref, PlainHTTP: true}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			checkImage(t, s, info.Digest, []int{4, 2}[i%2])
		})
	}
	wg.Wait()
	if got := conv.calls.Load(); got != 4 {
		t.Errorf("%d conversions, want 4: each layer once", got)
	}
	for blob, sent := range proxy.sent {
		if sent > 600_000 {
			t.Errorf("%s: %d bytes sent", blob, sent)
		}
	}
}

func TestCancelledPull(t *testing.T) {
	reg := startRegistry(t, false)
	ref := reg.push(t, makeLayout(t, 1000)+":app", "app:1")
	ctx, cancel := context.WithCancel(t.Context())
	s := newStore(t, func(o *image.Options) {
		o.Converter = &copyConverter{before: func(image.Conversion) error { cancel(); return nil }}
	})
	_, err := s.Pull(ctx, skerry.PullRequest{Reference: ref, PlainHTTP: true}, nil)
	if !errors.Is(err, context.Canceled) || skerry.CodeOf(err) != skerry.CodeUnavailable {
		t.Errorf("code %q, want cancelled: %v", skerry.CodeOf(err), err)
	}
}

func TestFullDisk(t *testing.T) {
	reg := startRegistry(t, false)
	ref := reg.push(t, makeLayout(t, 1000)+":app", "app:1")
	full := true
	dir := t.TempDir()
	s, err := image.Open(storeOptions(dir, func(o *image.Options) {
		o.Converter = &copyConverter{before: func(l image.Conversion) error {
			if full && len(l.Lower) == 2 {
				return fmt.Errorf("write: %w", syscall.ENOSPC)
			}
			return nil
		}}
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = s.Pull(t.Context(), skerry.PullRequest{Reference: ref, PlainHTTP: true}, nil)
	if got := skerry.CodeOf(err); got != skerry.CodeExhausted {
		t.Errorf("code %q, want %q: %v", got, skerry.CodeExhausted, err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("a full disk is left with %q", left)
	}
	full = false
	if _, err := s.Pull(t.Context(), skerry.PullRequest{Reference: ref, PlainHTTP: true}, nil); err != nil {
		t.Error(err)
	}
}

// A registry that stops sending must not hold a pull for ever; the caller's
// deadline ends it in any case.
func TestSilentRegistry(t *testing.T) {
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "{")
			w.(http.Flusher).Flush()
			<-release
		}
	}))
	defer srv.Close()
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	s := newStore(t)
	_, err := s.Pull(ctx, skerry.PullRequest{Reference: strings.TrimPrefix(srv.URL, "http://") + "/x:1", PlainHTTP: true}, nil)
	if got := skerry.CodeOf(err); got != skerry.CodeTimeout {
		t.Errorf("code %q, want %q: %v", got, skerry.CodeTimeout, err)
	}
}
