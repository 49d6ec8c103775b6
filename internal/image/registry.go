package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"skerry.dev/skerry"
)

const (
	// stallTimeout ends a transfer on which nothing arrives.
	stallTimeout = 60 * time.Second
	// maxRedirects: registries send blobs to storage in one step, some in two.
	maxRedirects = 5
)

var (
	errStalled   = errors.New("nothing arrived for " + stallTimeout.String())
	errPlainHTTP = errors.New("refused to use a connection without TLS")
)

// acceptManifests are the manifest types asked for. Schema 1 is among them only
// so that its refusal can be clear.
var acceptManifests = strings.Join([]string{
	string(types.OCIImageIndex), string(types.OCIManifestSchema1),
	string(types.DockerManifestList), string(types.DockerManifestSchema2),
	string(types.DockerManifestSchema1Signed) + ";q=0.1",
}, ", ")

func newTransport() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = stallTimeout
	t.DialContext = (&net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	t.DisableCompression = true // blobs are what they are
	return t
}

// registry is a session with one repository of one registry.
type registry struct {
	client *http.Client
	repo   name.Repository
	stall  time.Duration
}

// connect logs in, for what the scopes name. The login is the given one, else the
// keychain's, else none.
func (s *Store) connect(ctx context.Context, repo name.Repository, given *skerry.RegistryAuth, plainHTTP bool, scopes ...string) (*registry, error) {
	auth, err := s.login(ctx, repo, given)
	if err != nil {
		return nil, err
	}
	base := &schemeGuard{inner: s.opt.Transport, plainHTTP: plainHTTP}
	var rt http.RoundTripper
	err = s.retry(ctx, func() (bool, error) {
		rt, err = transport.NewWithContext(ctx, repo.Registry, auth, base, scopes)
		return false, asTransient(ctx, err)
	})
	if err != nil {
		return nil, err
	}
	return &registry{
		repo:  repo,
		stall: stallTimeout,
		client: &http.Client{Transport: rt, CheckRedirect: func(_ *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return fmt.Errorf("stopped after %d redirects", maxRedirects)
			}
			return nil
		}},
	}, nil
}

func (s *Store) login(ctx context.Context, repo name.Repository, given *skerry.RegistryAuth) (authn.Authenticator, error) {
	if given != nil {
		return authn.FromConfig(authn.AuthConfig{Username: given.Username, Password: given.Password,
			IdentityToken: given.IdentityToken, RegistryToken: given.RegistryToken}), nil
	}
	auth, err := authn.Resolve(ctx, s.opt.Keychain, repo)
	if err != nil {
		return nil, skerry.Errorf(skerry.CodeUnauthorized, "read the docker config's login for %s: %w", repo.RegistryStr(), err)
	}
	return auth, nil
}

// schemeGuard refuses to speak HTTP without TLS unless that was asked for, also
// after a redirect, and also where go-containerregistry would do it unasked
// (loopback and private addresses).
type schemeGuard struct {
	inner     http.RoundTripper
	plainHTTP bool
}

func (g *schemeGuard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !(g.plainHTTP && req.URL.Scheme == "http") {
		return nil, errPlainHTTP
	}
	return g.inner.RoundTrip(req)
}

func (r *registry) get(ctx context.Context, kind, id string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url(kind, id), nil)
	if err != nil {
		return nil, err
	}
	req.Header = header
	return r.do(req, http.StatusOK, http.StatusPartialContent)
}

func (r *registry) url(kind, id string) string {
	return fmt.Sprintf("%s://%s/v2/%s/%s/%s", r.repo.Scheme(), r.repo.RegistryStr(), r.repo.RepositoryStr(), kind, id)
}

// do sends a request. An answer with another status than those is an error.
func (r *registry) do(req *http.Request, statuses ...int) (*http.Response, error) {
	ctx := req.Context()
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, asTransient(ctx, err)
	}
	if err := transport.CheckError(resp, statuses...); err != nil {
		resp.Body.Close()
		err = asTransient(ctx, err)
		var again *transient
		if seconds, numErr := strconv.Atoi(resp.Header.Get("Retry-After")); numErr == nil && errors.As(err, &again) {
			again.after = time.Duration(min(max(seconds, 0), 3600)) * time.Second
		}
		return nil, err
	}
	return resp, nil
}

// manifest reads a manifest by tag or digest and checks what can be checked: its
// size, the digest that was asked for, and the one the registry promises.
func (r *registry) manifest(ctx context.Context, id string, limit int64) ([]byte, types.MediaType, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stallTimeout, errStalled)
	defer cancel()
	resp, err := r.get(ctx, "manifests", id, http.Header{"Accept": {acceptManifests}})
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, "", asTransient(ctx, err)
	}
	if int64(len(raw)) > limit {
		return nil, "", tooLarge("manifest", limit)
	}
	mediaType, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	want := id
	if !strings.HasPrefix(id, "sha256:") {
		want = resp.Header.Get("Docker-Content-Digest")
	}
	schema1 := types.MediaType(mediaType).IsSchema1() // signed inside: its digest is another
	if got := digestOf(raw).String(); !schema1 && strings.HasPrefix(want, "sha256:") && got != want {
		return nil, "", badDigest("manifest", want, got)
	}
	return raw, types.MediaType(mediaType), nil
}

// open implements source with a Range request.
func (r *registry) open(ctx context.Context, blob v1.Descriptor, offset int64) (io.ReadCloser, int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	header := http.Header{"Accept-Encoding": {"identity"}}
	if offset > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	resp, err := r.get(ctx, "blobs", blob.Digest.String(), header)
	var status *transport.Error
	if offset > 0 && errors.As(err, &status) && status.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		header.Del("Range")
		offset = 0
		resp, err = r.get(ctx, "blobs", blob.Digest.String(), header)
	}
	if err != nil {
		cancel(nil)
		return nil, 0, err
	}
	at, err := rangeStart(resp)
	if err == nil && at != 0 && at != offset {
		err = fmt.Errorf("registry sent bytes from %d on, asked for %d", at, offset)
	}
	if err != nil {
		resp.Body.Close()
		cancel(nil)
		return nil, 0, skerry.Errorf(skerry.CodeUnavailable, "%w", err)
	}
	return newStallBody(ctx, cancel, resp.Body, r.stall), at, nil
}

// rangeStart is where the body of a response begins (RFC 9110, 14.4).
func rangeStart(resp *http.Response) (int64, error) {
	if resp.StatusCode != http.StatusPartialContent {
		return 0, nil
	}
	value, ok := strings.CutPrefix(resp.Header.Get("Content-Range"), "bytes ")
	first, _, dash := strings.Cut(value, "-")
	at, err := strconv.ParseInt(first, 10, 64)
	if !ok || !dash || err != nil || at < 0 {
		return 0, fmt.Errorf("partial content with range %q", resp.Header.Get("Content-Range"))
	}
	return at, nil
}

// stallBody cancels its request when no bytes arrive for a while.
type stallBody struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	body   io.ReadCloser
	stall  time.Duration
	timer  *time.Timer
}

func newStallBody(ctx context.Context, cancel context.CancelCauseFunc, body io.ReadCloser, stall time.Duration) *stallBody {
	return &stallBody{ctx: ctx, cancel: cancel, body: body, stall: stall,
		timer: time.AfterFunc(stall, func() { cancel(errStalled) })}
}

func (b *stallBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if n > 0 && err == nil {
		b.timer.Reset(b.stall)
	}
	if err != nil && err != io.EOF {
		err = asTransient(b.ctx, err)
	}
	return n, err
}

func (b *stallBody) Close() error {
	b.timer.Stop()
	err := b.body.Close()
	b.cancel(nil)
	return err
}

// asTransient marks errors that may go away: broken connections and answers
// that say so. ctx's end is not one of them, unless it is a stall.
func asTransient(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, errStalled) {
			return &transient{err: cause}
		}
		return err
	}
	var status *transport.Error
	if errors.As(err, &status) {
		switch status.StatusCode {
		case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
			http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return &transient{err: err}
		}
		return err
	}
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns):
		if dns.IsNotFound {
			return err
		}
	case isTLSFault(err):
		return err
	case errors.As(err, &op) && op.Op == "dial" && !op.Timeout():
		return err // refused: nobody is there
	case !isNetwork(err):
		return err
	}
	return &transient{err: err}
}

func isNetwork(err error) bool {
	var n net.Error
	return errors.As(err, &n) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}
