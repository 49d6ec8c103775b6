package image

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"skerry.dev/skerry"
)

// silentBody gives one byte at a time, after a pause, until its context ends.
type silentBody struct {
	ctx    context.Context
	pauses []time.Duration
}

func (b *silentBody) Read(p []byte) (int, error) {
	if len(b.pauses) == 0 {
		return 0, io.EOF
	}
	select {
	case <-time.After(b.pauses[0]):
		b.pauses = b.pauses[1:]
		return copy(p, "x"), nil
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func (b *silentBody) Close() error { return nil }

// A transfer may be slow for ever, but not silent.
func TestStall(t *testing.T) {
	slow := []time.Duration{50 * time.Second, 59 * time.Second, 59 * time.Second}
	for name, c := range map[string]struct {
		pauses []time.Duration
		bytes  int
		want   error
	}{
		"slow":   {slow, 3, nil},
		"silent": {append(slow[:2:2], time.Hour), 2, errStalled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				body := newStallBody(ctx, cancel, &silentBody{ctx, c.pauses}, stallTimeout)
				defer body.Close()
				data, err := io.ReadAll(body)
				var again *transient
				if len(data) != c.bytes || !errors.Is(err, c.want) || err != nil && !errors.As(err, &again) {
					t.Errorf("read %d bytes, %v, want %d, %v", len(data), err, c.bytes, c.want)
				}
			})
		})
	}
}

func TestRetryAfter(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer srv.Close()
	ref, err := parseReference(srv.Listener.Addr().String()+"/x:1", true)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	reg, err := s.connect(t.Context(), ref.Context(), &skerry.RegistryAuth{}, true, ref.Scope(transport.PullScope))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = reg.manifest(t.Context(), "1", 1<<20)
	var again *transient
	if !errors.As(err, &again) || again.after != 7*time.Second {
		t.Errorf("error %#v, want one to retry after 7 s", err)
	}
}
