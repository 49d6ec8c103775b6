// Package api is the HTTP entry of Skerry: the edge that every request passes
// (request id, host check, authentication, log, panics) and, behind it, one
// package per dialect and the gateway.
package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/problem"
)

// Config is what New puts together. Handlers that are nil are left out.
type Config struct {
	Logger *slog.Logger
	// Authenticate returns the key that a bearer token belongs to, or a
	// *skerry.Error with CodeUnauthorized.
	Authenticate func(ctx context.Context, token string) (skerry.KeyID, error)
	// Hosts are names, without port, that requests may carry besides those
	// of loopback: "skerry.example.org".
	Hosts []string

	V2      http.Handler // below /v2/
	Toolbox http.Handler // below /toolbox/
	Metrics http.Handler // /metrics
	// Health reports why the server cannot work, or nil.
	Health func(ctx context.Context) error
}

// New returns the handler of the whole server.
func New(c Config) http.Handler {
	e := &edge{log: c.Logger, authenticate: c.Authenticate, hosts: hostSet(c.Hosts)}
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", healthHandler(c.Health))
	mux.Handle("GET /docs", http.RedirectHandler("/docs/", http.StatusMovedPermanently))
	mux.Handle("GET /docs/", docsHandler())
	if c.V2 != nil {
		mux.Handle("GET /v2/openapi.json", c.V2)
		mux.Handle("/v2/", e.authenticated(c.V2))
	}
	if c.Metrics != nil {
		mux.Handle("GET /metrics", e.authenticated(c.Metrics))
	}
	var toolbox http.Handler
	if c.Toolbox != nil {
		toolbox = e.authenticated(c.Toolbox)
	}
	return e.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The mux would redirect paths with "//" and "..", which are the
		// guest's business below /toolbox/.
		if toolbox != nil && strings.HasPrefix(r.URL.Path, "/toolbox/") {
			toolbox.ServeHTTP(w, r)
			return
		}
		Mux{mux}.ServeHTTP(w, r)
	}))
}

// NewServer returns an HTTP server with the deadlines that suit the handler:
// bodies and responses may take as long as they keep moving (uploads, streams),
// headers and idle connections may not.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// Mux answers with problems where a bare ServeMux answers in plain text.
type Mux struct{ *http.ServeMux }

// ServeHTTP dispatches the request.
func (m Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h, pattern := m.Handler(r)
	if pattern != "" {
		m.ServeMux.ServeHTTP(w, r)
		return
	}
	probe := statusProbe{header: http.Header{}}
	h.ServeHTTP(&probe, r)
	switch {
	case probe.status == http.StatusMethodNotAllowed:
		w.Header().Set("Allow", probe.header.Get("Allow"))
		p := problem.New(skerry.Invalid("method", "one_of", probe.header.Get("Allow"), "%s is not allowed here", r.Method), problem.RequestID(r.Context()))
		p.Status = http.StatusMethodNotAllowed
		p.WriteTo(w)
	case probe.status >= 300 && probe.status < 400:
		h.ServeHTTP(w, r)
	default:
		problem.Write(w, r, skerry.Errorf(skerry.CodeNotFound, "there is nothing at %s", r.URL.Path))
	}
}

// statusProbe records what the mux's own handlers would have answered.
type statusProbe struct {
	header http.Header
	status int
}

func (p *statusProbe) Header() http.Header         { return p.header }
func (p *statusProbe) WriteHeader(status int)      { p.status = status }
func (p *statusProbe) Write(b []byte) (int, error) { return len(b), nil }

func healthHandler(health func(context.Context) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if health != nil {
			if err := health(r.Context()); err != nil {
				var e *skerry.Error
				if !errors.As(err, &e) {
					e = skerry.Errorf(skerry.CodeUnavailable, "the server is not ready")
				}
				problem.Write(w, r, e)
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(`{"status":"ok"}` + "\n"))
	})
}
