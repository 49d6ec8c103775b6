package v2_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/api"
	v2 "skerry.dev/skerry/internal/api/v2"
	"skerry.dev/skerry/internal/problem"
)

const token = "test-token"

// control records what the API asks for and answers from its fields.
type control struct {
	mu      sync.Mutex
	create  skerry.SandboxRequest
	filter  skerry.SandboxFilter
	until   []skerry.Status
	timeout time.Duration
	pull    skerry.PullRequest
	upload  skerry.ImportRequest
	body    string

	sandbox skerry.Sandbox
	created bool
	image   skerry.Image
	runners []skerry.Runner
	err     error
	panics  bool
}

func (c *control) CreateSandbox(_ context.Context, req skerry.SandboxRequest) (skerry.Sandbox, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.create = req
	return c.sandbox, c.created, c.err
}

func (c *control) Sandbox(_ context.Context, id string) (skerry.Sandbox, error) {
	if c.panics {
		panic("boom")
	}
	if c.err == nil && id != string(c.sandbox.ID) && id != c.sandbox.Name {
		return skerry.Sandbox{}, skerry.Errorf(skerry.CodeNotFound, "no sandbox %q", id)
	}
	return c.sandbox, c.err
}

func (c *control) ListSandboxes(_ context.Context, f skerry.SandboxFilter) (skerry.SandboxPage, error) {
	c.filter = f
	return skerry.SandboxPage{NextCursor: "next"}, c.err
}

func (c *control) WaitSandbox(_ context.Context, _ string, until []skerry.Status, d time.Duration) (skerry.Sandbox, error) {
	c.until, c.timeout = until, d
	sb := c.sandbox
	sb.Status = until[0]
	return sb, c.err
}

func (c *control) DeleteSandbox(context.Context, string) (skerry.Sandbox, error) {
	return c.sandbox, c.err
}

func (c *control) PullImage(_ context.Context, req skerry.PullRequest) (skerry.Image, error) {
	c.pull = req
	return c.image, c.err
}

func (c *control) ImportImage(_ context.Context, req skerry.ImportRequest) (skerry.Image, error) {
	c.upload = req
	b, err := os.ReadFile(req.Path)
	if err != nil {
		return skerry.Image{}, err
	}
	c.body = string(b)
	return c.image, c.err
}

func (c *control) BuildDefaultImage(context.Context) (skerry.Image, error) { return c.image, c.err }
func (c *control) Image(_ context.Context, id string) (skerry.Image, error) {
	if id != c.image.Name {
		return skerry.Image{}, skerry.Errorf(skerry.CodeNotFound, "no image %q", id)
	}
	return c.image, c.err
}
func (c *control) ListImages(context.Context) ([]skerry.Image, error) { return nil, c.err }
func (c *control) WaitImage(_ context.Context, _ string, d time.Duration) (skerry.Image, error) {
	c.timeout = d
	return c.image, c.err
}
func (c *control) DeleteImage(context.Context, string) error        { return c.err }
func (c *control) Runners(context.Context) ([]skerry.Runner, error) { return c.runners, c.err }

func authenticate(_ context.Context, given string) (skerry.KeyID, error) {
	if given != token {
		return "", skerry.Errorf(skerry.CodeUnauthorized, "the API key is not valid")
	}
	return "key_test", nil
}

// newHandler is the whole server with c behind it.
func newHandler(t *testing.T, c *control) http.Handler {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	return api.New(api.Config{
		Logger: log, Authenticate: authenticate,
		V2: v2.New(v2.Config{
			Control: c, Logger: log, Version: "1.2.3", Region: "local", SpoolDir: t.TempDir(), MaxImportBytes: 1 << 20,
			Console: func(context.Context, skerry.SandboxID) (io.ReadCloser, error) {
				return io.NopCloser(strings.NewReader("Linux version 6.1\n")), nil
			},
		}),
	})
}

func do(t *testing.T, h http.Handler, method, target, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, "http://localhost:3986"+target, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func decode[T any](t *testing.T, w *httptest.ResponseRecorder) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("decode %d %q: %v", w.Code, w.Body, err)
	}
	return v
}

func wantProblem(t *testing.T, w *httptest.ResponseRecorder, code skerry.Code, field, rule string) problem.Problem {
	t.Helper()
	if got := w.Header().Get("Content-Type"); got != problem.ContentType {
		t.Fatalf("content type = %q, want a problem; body %s", got, w.Body)
	}
	p := decode[problem.Problem](t, w)
	if p.Code != code || w.Code != problem.Status(code) || p.Status != w.Code {
		t.Errorf("got %d with code %q, want %q: %s", w.Code, p.Code, code, w.Body)
	}
	if p.RequestID == "" || p.RequestID != w.Header().Get("X-Request-Id") {
		t.Errorf("request_id = %q, header %q", p.RequestID, w.Header().Get("X-Request-Id"))
	}
	if p.Title == "" || p.Detail == "" || p.Type == "" {
		t.Errorf("incomplete problem: %s", w.Body)
	}
	if field == "" {
		return p
	}
	if len(p.Errors) == 0 || p.Errors[0].Field != field || p.Errors[0].Rule != rule || p.Errors[0].Message == "" {
		t.Errorf("errors = %+v, want field %q and rule %q", p.Errors, field, rule)
	}
	return p
}
