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

	// op is the last operation, with what it was asked on and for.
	op, on string
	asked  any

	snapshot  skerry.Snapshot
	events    []skerry.Event
	changed   chan struct{} // closed when there are more events
	stopping  bool
	lifecycle skerry.Lifecycle

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

func (c *control) record(op, on string, asked any) { c.op, c.on, c.asked = op, on, asked }

func (c *control) StopSandbox(_ context.Context, id string) (skerry.Sandbox, error) {
	c.record("stop", id, nil)
	return c.sandbox, c.err
}

func (c *control) StartSandbox(_ context.Context, id string) (skerry.Sandbox, error) {
	c.record("start", id, nil)
	return c.sandbox, c.err
}

func (c *control) PauseSandbox(_ context.Context, id string) (skerry.Sandbox, error) {
	c.record("pause", id, nil)
	return c.sandbox, c.err
}

func (c *control) ResumeSandbox(_ context.Context, id string) (skerry.Sandbox, error) {
	c.record("resume", id, nil)
	return c.sandbox, c.err
}

func (c *control) ReclaimSandbox(_ context.Context, id string) (skerry.Sandbox, error) {
	c.record("reclaim", id, nil)
	return c.sandbox, c.err
}

func (c *control) ForkSandbox(_ context.Context, id string, req skerry.ForkRequest) ([]skerry.Sandbox, error) {
	c.record("fork", id, req)
	return []skerry.Sandbox{c.sandbox}, c.err
}

func (c *control) TouchSandbox(_ context.Context, id string) (skerry.Lifecycle, error) {
	c.record("touch", id, nil)
	return c.lifecycle, c.err
}

func (c *control) UpdateLifecycle(_ context.Context, id string, req skerry.PolicyRequest) (skerry.Lifecycle, error) {
	c.record("lifecycle", id, req)
	policy, err := req.Update(c.lifecycle.LifecyclePolicy, skerry.PolicyDefaults{}, false)
	if c.err != nil {
		err = c.err
	}
	return skerry.Lifecycle{LifecyclePolicy: policy}, err
}

func (c *control) CaptureImage(_ context.Context, id string, req skerry.CaptureRequest) (skerry.Image, error) {
	c.record("capture", id, req)
	return c.image, c.err
}

func (c *control) PushImage(_ context.Context, id string, req skerry.PushRequest) (skerry.Image, error) {
	c.record("push", id, req)
	return c.image, c.err
}

func (c *control) CreateSnapshot(_ context.Context, id, name string) (skerry.Snapshot, error) {
	c.record("snapshots", id, name)
	return c.snapshot, c.err
}

func (c *control) Snapshot(_ context.Context, id string) (skerry.Snapshot, error) {
	if id != c.snapshot.Name {
		return skerry.Snapshot{}, skerry.Errorf(skerry.CodeNotFound, "no snapshot %q", id)
	}
	return c.snapshot, c.err
}

func (c *control) ListSnapshots(context.Context) ([]skerry.Snapshot, error) { return nil, c.err }

func (c *control) WaitSnapshot(_ context.Context, _ string, d time.Duration) (skerry.Snapshot, error) {
	c.timeout = d
	return c.snapshot, c.err
}

func (c *control) DeleteSnapshot(_ context.Context, id string) error {
	c.record("delete", id, nil)
	return c.err
}

func (c *control) RestoreSnapshot(_ context.Context, id string, req skerry.RestoreRequest) (skerry.Sandbox, bool, error) {
	c.record("restore", id, req)
	return c.sandbox, c.created, c.err
}

func (c *control) Events(_ context.Context, f skerry.EventFilter) ([]skerry.Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = f
	var list []skerry.Event
	for _, e := range c.events {
		if e.ID > f.After && (f.ObjectID == "" || f.ObjectID == e.ObjectID) && len(list) < f.Limit {
			list = append(list, e)
		}
	}
	return list, c.err
}

func (c *control) WaitEvents(ctx context.Context, f skerry.EventFilter, timeout time.Duration) ([]skerry.Event, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		c.mu.Lock()
		changed, stopping := c.changed, c.stopping
		c.mu.Unlock()
		if list, err := c.Events(ctx, f); err != nil || len(list) > 0 {
			return list, err
		}
		if stopping {
			return nil, skerry.Errorf(skerry.CodeUnavailable, "the server is stopping")
		}
		select {
		case <-changed:
		case <-timer.C:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *control) LastEventID(context.Context) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.events) == 0 {
		return 0, c.err
	}
	return c.events[len(c.events)-1].ID, c.err
}

// change adds events, or stops the server.
func (c *control) change(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
	if c.changed != nil {
		close(c.changed)
	}
	c.changed = make(chan struct{})
}

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
			Policy:  skerry.PolicyDefaults{MaxTimeoutSeconds: 7200},
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
