// Package gateway lets requests into sandboxes: /toolbox/{sandbox_id}/… goes to
// the toolbox of that sandbox's guest agent.
//
// The guest is not trusted. Its headers are bounded and picked from a list, so
// that a response cannot set cookies, redirect a client with its key, or run a
// script in the origin of the API. A response that breaks off breaks the
// client's connection: a part never looks like the whole.
package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/problem"
)

// Prefix is the path that the gateway serves.
const Prefix = "/toolbox/"

// Dialer opens connections to toolboxes.
type Dialer interface {
	// DialToolbox opens a connection that speaks HTTP/1.1 with the toolbox of
	// a running sandbox. It fails with CodeNotFound for a sandbox that does
	// not exist, CodeGone for a deleted one and CodeConflict for one that
	// does not run. The connection outlives ctx.
	DialToolbox(ctx context.Context, id skerry.SandboxID) (net.Conn, error)
	// Ready fails, with a code, when a sandbox that runs answers on no
	// connection for now, also not on one that is open.
	Ready(id skerry.SandboxID) error
}

// Config is what New needs.
type Config struct {
	Dialer Dialer
	Logger *slog.Logger
	// Activity is called when a request begins, every activityInterval while
	// it lasts and when it ends. Nil is allowed.
	Activity func(id skerry.SandboxID)
}

// Gateway is the handler below Prefix. Authentication is done in front of it.
type Gateway struct {
	config    Config
	transport *http.Transport
	proxy     *httputil.ReverseProxy
}

const (
	maxResponseHeader = 64 << 10
	idlePerSandbox    = 16
	idleTotal         = 1024
	idleTimeout       = 90 * time.Second

	// activityInterval is how often a request that lasts counts as activity:
	// well below the least idle timeout, skerry.MinIdleSeconds.
	activityInterval = 20 * time.Second
)

// New returns a gateway.
func New(c Config) *Gateway {
	g := &Gateway{config: c}
	g.transport = &http.Transport{
		// Each sandbox is a host of its own, so it has its own pool.
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, &dialError{err}
			}
			conn, err := c.Dialer.DialToolbox(ctx, skerry.SandboxID(host))
			if err != nil {
				return nil, &dialError{err}
			}
			return conn, nil
		},
		DisableCompression:     true, // bytes pass as they are
		MaxResponseHeaderBytes: maxResponseHeader,
		MaxIdleConnsPerHost:    idlePerSandbox,
		MaxIdleConns:           idleTotal,
		IdleConnTimeout:        idleTimeout,
	}
	g.proxy = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      quietTransport{g.transport},
		FlushInterval:  -1, // streams are passed on piece by piece
		ModifyResponse: pickHeaders,
		ErrorHandler:   g.failed,
		ErrorLog:       slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}
	return g
}

// Close closes the connections that no request uses.
func (g *Gateway) Close() { g.transport.CloseIdleConnections() }

// ServeHTTP passes a request on.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, _, ok := target(r.URL)
	if !ok {
		problem.Write(w, r, skerry.Errorf(skerry.CodeNotFound, "the path must be %s{sandbox_id}/…", Prefix))
		return
	}
	if !id.Valid() {
		problem.Write(w, r, skerry.Errorf(skerry.CodeNotFound, "%q is not the id of a sandbox", string(id)))
		return
	}
	if err := g.config.Dialer.Ready(id); err != nil {
		problem.Write(w, r, err)
		return
	}
	if g.config.Activity != nil {
		defer g.active(id)()
	}
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'; frame-ancestors 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	g.proxy.ServeHTTP(w, r)
}

// active reports activity until done is called.
func (g *Gateway) active(id skerry.SandboxID) (done func()) {
	g.config.Activity(id)
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(activityInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				g.config.Activity(id)
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		<-ended
		g.config.Activity(id)
	}
}

// target splits a path into the sandbox and the escaped path inside it.
func target(u *url.URL) (id skerry.SandboxID, rest string, ok bool) {
	path, ok := strings.CutPrefix(u.EscapedPath(), Prefix)
	if !ok {
		return "", "", false
	}
	name, rest, ok := strings.Cut(path, "/")
	return skerry.SandboxID(name), "/" + rest, ok && name != ""
}

// rewrite makes the request to the guest. Nothing of the caller's identity goes
// with it.
func rewrite(pr *httputil.ProxyRequest) {
	id, rest, _ := target(pr.In.URL)
	out := pr.Out.URL
	out.Scheme, out.Host = "http", string(id)
	out.RawPath = rest
	if path, err := url.PathUnescape(rest); err == nil {
		out.Path = path
	}
	pr.Out.Host = "sandbox"
	for _, name := range []string{"Authorization", "Cookie", "Origin", "Referer", "Proxy-Authorization"} {
		pr.Out.Header.Del(name)
	}
}

// passedHeaders are the response headers a guest may set. Everything else
// could act on the origin of the API or on the client's key.
var passedHeaders = map[string]bool{
	"Accept-Ranges": true, "Cache-Control": true, "Content-Disposition": true, "Content-Encoding": true,
	"Content-Length": true, "Content-Range": true, "Content-Type": true, "Date": true, "Etag": true,
	"Last-Modified": true, "Retry-After": true, "Trailer": true, "Transfer-Encoding": true,
	// Of an upgrade to WebSocket.
	"Connection": true, "Upgrade": true, "Sec-Websocket-Accept": true, "Sec-Websocket-Protocol": true,
	"Sec-Websocket-Extensions": true,
}

func pickHeaders(resp *http.Response) error {
	if resp.StatusCode >= 300 && resp.StatusCode < 400 && resp.StatusCode != http.StatusNotModified {
		return errors.New("the guest answered with a redirect")
	}
	for name := range resp.Header {
		if !passedHeaders[name] {
			resp.Header.Del(name)
		}
	}
	return nil
}

// dialError marks an error of the Dialer.
type dialError struct{ err error }

func (e *dialError) Error() string { return "dial toolbox: " + e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// failed answers a request that got no response. What the Dialer says in a code
// goes to the client; 503 is for a sandbox that could not be reached, 502 for
// one that did not answer as it should.
func (g *Gateway) failed(w http.ResponseWriter, r *http.Request, err error) {
	requestID := problem.RequestID(r.Context())
	var p *problem.Problem
	id := skerry.SandboxID(r.URL.Host) // r is the request to the guest, see rewrite
	var dial *dialError
	var known *skerry.Error
	cause := err
	if !errors.As(err, &dial) {
		cause = g.config.Dialer.Ready(id) // perhaps it was broken off for that
	}
	switch {
	case r.Context().Err() != nil:
		p = problem.New(r.Context().Err(), requestID) // nobody reads it
	case errors.As(cause, &known):
		p = problem.New(known, requestID)
	case errors.As(err, &dial):
		p = problem.New(skerry.Errorf(skerry.CodeUnavailable, "the sandbox cannot be reached now"), requestID)
	default:
		p = problem.New(skerry.Errorf(skerry.CodeUnavailable, "the sandbox did not answer as it should"), requestID)
		p.Status = http.StatusBadGateway
	}
	if known == nil && r.Context().Err() == nil {
		g.config.Logger.WarnContext(r.Context(), "toolbox request failed", "request_id", requestID, "sandbox_id", string(id), "err", err)
	}
	p.WriteTo(w)
}

// quietTransport keeps informational responses (1xx) of the guest from the
// client: the reverse proxy learns of them through a value of the context.
type quietTransport struct{ next http.RoundTripper }

func (t quietTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.next.RoundTrip(r.WithContext(valueless{r.Context()}))
}

type valueless struct{ context.Context }

func (valueless) Value(any) any { return nil }
