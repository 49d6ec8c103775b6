// Package client talks to a Skerry server.
//
//	c, err := client.New(client.Config{URL: "http://127.0.0.1:3986", APIKey: key})
//	sb, err := c.CreateSandbox(ctx, client.CreateSandbox{Image: "debian"})
//	sb, err = c.WaitSandbox(ctx, string(sb.ID), time.Minute, skerry.StatusRunning)
//	result, err := c.Toolbox(sb.ID).Run(ctx, client.RunOptions{Argv: []string{"uname", "-r"}, Stdout: os.Stdout})
//
// Errors that the server reports are *Error; its Code is the thing to branch on.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/problem"
)

// DefaultURL is where a server on the same machine listens.
const DefaultURL = "http://127.0.0.1:3986"

// Config says where the server is. The zero value is a server on this machine
// without a key.
type Config struct {
	URL    string // default DefaultURL
	APIKey string
	// HTTPClient is used for all requests; default one that follows no
	// redirects and has no deadline for a whole request, since programs may
	// run for long.
	HTTPClient *http.Client
	UserAgent  string
}

// Client is a connection to a server. It is safe for concurrent use.
type Client struct {
	base      *url.URL
	key       string
	http      *http.Client
	userAgent string
}

// Error is an error that the server or a sandbox reported.
type Error struct {
	Cause     *skerry.Error
	Status    int    // HTTP status
	RequestID string // to find it in the server's log

	execution *skerry.ExecuteResponse // of a command that timed out
}

// Error returns the message, without the request id.
func (e *Error) Error() string { return e.Cause.Message }

// Unwrap returns the cause, so that skerry.CodeOf finds its code.
func (e *Error) Unwrap() error { return e.Cause }

// RequestIDOf returns the request id that err carries, or "".
func RequestIDOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.RequestID
	}
	return ""
}

const (
	// attempts is how often an idempotent request is tried while no
	// connection can be made.
	attempts   = 4
	firstDelay = 100 * time.Millisecond
)

// New returns a client. It makes no connection yet.
func New(c Config) (*Client, error) {
	raw := c.URL
	if raw == "" {
		raw = DefaultURL
	}
	base, err := url.Parse(raw)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, skerry.Invalid("api_url", "url", "http://host:port", "%q is not a URL like %s", raw, DefaultURL)
	}
	base.Path = strings.TrimRight(base.Path, "/")
	cl := &Client{base: base, key: c.APIKey, http: c.HTTPClient, userAgent: c.UserAgent}
	if cl.http == nil {
		cl.http = &http.Client{Transport: newTransport(), CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // the API never redirects
		}}
	}
	if cl.userAgent == "" {
		cl.userAgent = "skerry-go"
	}
	return cl, nil
}

func newTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	t.MaxIdleConnsPerHost = 64
	return t
}

// request is one request with a JSON body, or none.
type request struct {
	method, path string // path is escaped
	query        url.Values
	body         any
	// idempotent says that doing it twice is harmless. GET and DELETE are.
	idempotent bool
}

// call makes a request and decodes the JSON answer into out, if that is not nil.
func (c *Client) call(ctx context.Context, req request, out any) error {
	var body []byte
	if req.body != nil {
		var err error
		if body, err = json.Marshal(req.body); err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
	}
	idempotent := req.idempotent || req.method == http.MethodGet || req.method == http.MethodDelete
	resp, err := retry(ctx, idempotent, func() (*http.Response, error) {
		if req.body == nil {
			return c.do(ctx, req.method, req.path, req.query, nil, "")
		}
		return c.do(ctx, req.method, req.path, req.query, bytes.NewReader(body), "application/json")
	})
	if err != nil {
		return err
	}
	defer drain(resp)
	if out == nil {
		return nil
	}
	return decode(resp, out)
}

func decode(resp *http.Response, out any) error {
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("decode the answer of %s %s: %w", resp.Request.Method, resp.Request.URL.Path, err)
	}
	return nil
}

// retry repeats a request that got no answer. A connection that was refused
// proves that nothing was done, so the request is repeated in any case; one that
// broke proves nothing, so then it must be idempotent.
func retry(ctx context.Context, idempotent bool, try func() (*http.Response, error)) (*http.Response, error) {
	delay := firstDelay
	for n := 1; ; n++ {
		resp, err := try()
		var answered *Error
		if err == nil || errors.As(err, &answered) || ctx.Err() != nil || n == attempts {
			return resp, err
		}
		var op *net.OpError
		if refused := errors.As(err, &op) && op.Op == "dial"; !refused && !idempotent {
			return nil, err
		}
		if err := sleep(ctx, delay+rand.N(delay)); err != nil {
			return nil, err
		}
		delay *= 2
	}
}

// do makes one request. Answers with an error status become *Error.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, body io.Reader, contentType string) (*http.Response, error) {
	header := http.Header{}
	if contentType != "" {
		header.Set("Content-Type", contentType)
	}
	return c.doWith(ctx, header, method, path, query, body)
}

// doWith is do with headers of the caller's.
func (c *Client) doWith(ctx context.Context, header http.Header, method, path string, query url.Values, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url(path, query), body)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	req.Header = header.Clone()
	c.setHeaders(req.Header)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, connectError(ctx, c.base, err)
	}
	if resp.StatusCode >= 300 {
		defer drain(resp)
		return nil, responseError(resp)
	}
	return resp, nil
}

func (c *Client) setHeaders(h http.Header) {
	h.Set("User-Agent", c.userAgent)
	if c.key != "" {
		h.Set("Authorization", "Bearer "+c.key)
	}
}

// url joins an escaped path to the base.
func (c *Client) url(path string, query url.Values) string {
	s := c.base.String() + path
	if len(query) > 0 {
		s += "?" + query.Encode()
	}
	return s
}

// responseError reads the error of a response: a problem of the server, or a
// toolbox error of the sandbox.
func responseError(resp *http.Response) *Error {
	if strings.HasPrefix(resp.Header.Get("Content-Type"), problem.ContentType) {
		p := problem.Read(resp)
		return &Error{Cause: p.Err(), Status: resp.StatusCode, RequestID: p.RequestID}
	}
	e := &Error{Status: resp.StatusCode, RequestID: resp.Header.Get("X-Request-Id")}
	var inner skerry.ToolboxError
	if json.NewDecoder(io.LimitReader(resp.Body, maxErrorBody)).Decode(&inner) != nil || inner.Message == "" {
		inner.Message = "the server answered " + resp.Status
	}
	e.execution = inner.Execution
	e.Cause = &skerry.Error{Code: problem.CodeOf(resp.StatusCode), Message: inner.Message}
	return e
}

// maxErrorBody bounds the error that a sandbox sends, in bytes: the output of a
// command that timed out is 1 MiB for each of three streams, and a byte takes up
// to six in JSON.
const maxErrorBody = 20 << 20

// connectError says which server could not be reached.
func connectError(ctx context.Context, base *url.URL, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		err = urlErr.Err
	}
	hint := ""
	if errors.Is(err, syscall.ECONNREFUSED) {
		hint = "; `skerry server` starts one"
	}
	return skerry.Errorf(skerry.CodeUnavailable, "reach the server at %s: %w%s", base, err, hint)
}

// drain lets the connection be used again, unless much is left.
func drain(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	resp.Body.Close()
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
