package api

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/problem"
)

// edge is what every request passes first.
type edge struct {
	log          *slog.Logger
	authenticate func(context.Context, string) (skerry.KeyID, error)
	hosts        map[string]bool
}

// hostSet holds the names that a Host header may carry.
func hostSet(extra []string) map[string]bool {
	set := map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true}
	for _, h := range extra {
		set[strings.ToLower(h)] = true
	}
	return set
}

// wrap gives the request its id, refuses foreign hosts, turns a panic into a
// problem and writes the access log.
func (e *edge) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		id := requestID(r.Header.Get("X-Request-Id"))
		r = r.WithContext(problem.WithRequestID(r.Context(), id))
		rec := &recorder{ResponseWriter: w}
		setSecurityHeaders(rec.Header())
		rec.Header().Set("X-Request-Id", id)
		defer func() {
			if cause := recover(); cause != nil {
				e.recovered(rec, r, cause)
			}
			e.log.LogAttrs(r.Context(), slog.LevelDebug, "request served",
				slog.String("request_id", id), slog.String("method", r.Method), slog.String("path", r.URL.Path),
				slog.Int("status", rec.statusOr200()), slog.Int64("bytes", rec.bytes),
				slog.String("key_id", string(rec.key)), slog.Int64("dur_ms", time.Since(start).Milliseconds()))
		}()
		if !e.hosts[hostName(r.Host)] {
			// A page whose name was re-pointed at loopback (DNS rebinding)
			// arrives with its own name.
			problem.Write(rec, r, skerry.Errorf(skerry.CodeForbidden, "this server does not answer for the host %q", r.Host))
			return
		}
		next.ServeHTTP(rec, r)
	})
}

// recovered ends a request whose handler panicked. When a part of the response
// is already out, only breaking the connection tells the client.
func (e *edge) recovered(rec *recorder, r *http.Request, cause any) {
	if cause == http.ErrAbortHandler {
		panic(cause)
	}
	e.log.ErrorContext(r.Context(), "handler panicked", "request_id", problem.RequestID(r.Context()),
		"err", fmt.Sprint(cause), "stack", string(debug.Stack()))
	if rec.status != 0 || rec.hijacked {
		panic(http.ErrAbortHandler)
	}
	problem.Write(rec, r, fmt.Errorf("panic: %v", cause))
}

// authenticated lets only requests with a valid API key through. The token is
// removed, so that nothing behind the edge can leak it.
func (e *edge) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := bearer(r.Header.Get("Authorization"))
		if !ok {
			problem.Write(w, r, skerry.Errorf(skerry.CodeUnauthorized, "the header Authorization: Bearer <API key> is missing"))
			return
		}
		key, err := e.authenticate(r.Context(), token)
		if err != nil {
			if problem.Write(w, r, err) == http.StatusInternalServerError {
				e.log.ErrorContext(r.Context(), "authentication failed", "request_id", problem.RequestID(r.Context()), "err", err)
			}
			return
		}
		if rec, ok := w.(*recorder); ok {
			rec.key = key
		}
		r.Header.Del("Authorization")
		next.ServeHTTP(w, r)
	})
}

// bearer returns the token of an Authorization header (RFC 6750, section 2.1).
func bearer(header string) (string, bool) {
	scheme, token, ok := strings.Cut(header, " ")
	token = strings.TrimSpace(token)
	return token, ok && strings.EqualFold(scheme, "Bearer") && token != "" && len(token) <= 4096
}

// requestID keeps an id that a client sent if it is harmless in logs and
// headers, else makes one.
func requestID(given string) string {
	if given != "" && len(given) <= 64 && strings.Trim(given, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == "" {
		return given
	}
	return "req_" + skerry.RandomToken(20)
}

// hostName is the name in a Host header, without its port.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

func setSecurityHeaders(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
}

// recorder keeps what the access log needs.
type recorder struct {
	http.ResponseWriter
	status   int
	bytes    int64
	hijacked bool
	key      skerry.KeyID
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

// Flush sends what is buffered; a ResponseWriter of net/http always can.
func (r *recorder) Flush() {
	_ = http.NewResponseController(r.ResponseWriter).Flush()
}

// Hijack hands over the connection.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r.hijacked = true
	return http.NewResponseController(r.ResponseWriter).Hijack()
}

func (r *recorder) statusOr200() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}
