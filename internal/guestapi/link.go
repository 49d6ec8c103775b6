package guestapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/yamux"
	"skerry.dev/skerry"
)

// Link is the host's end of the channel to one guest agent. Its methods are
// safe for concurrent use. Nothing the guest sends makes it use more than a
// window of memory per open stream.
type Link struct {
	session *yamux.Session
	conn    net.Conn
}

// Dial shakes hands with the agent on conn and takes conn over. Cancelling ctx
// ends the handshake; a link that is up is ended by Close. On error conn is
// closed.
func Dial(ctx context.Context, conn net.Conn) (*Link, error) {
	rest, err := hostHandshake(ctx, conn)
	if err != nil {
		conn.Close()
		return nil, skerry.Errorf(skerry.CodeUnavailable, "handshake with guest agent: %w", err)
	}
	session, err := yamux.Client(&guard{Conn: conn, pre: rest}, muxConfig())
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("start multiplexer: %w", err)
	}
	return &Link{session: session, conn: conn}, nil
}

// muxConfig has no keepalive: the host watches the hypervisor process, and a
// captured guest must be silent.
func muxConfig() *yamux.Config {
	cfg := yamux.DefaultConfig()
	cfg.EnableKeepAlive = false
	cfg.MaxStreamWindowSize = streamWindow
	// A paused guest neither reads nor acknowledges; pausing is no failure.
	cfg.StreamOpenTimeout = 0
	cfg.ConnectionWriteTimeout = 10 * time.Minute
	cfg.LogOutput = nil
	cfg.Logger = log.New(io.Discard, "", 0)
	return cfg
}

// Open opens a stream of a kind. The stream's end of life is the caller's; it
// has CloseWrite. Open fails with CodeUnavailable when the link is down.
func (l *Link) Open(ctx context.Context, kind byte) (net.Conn, error) {
	return l.open(ctx, []byte{kind})
}

// open opens a stream and sends its first bytes, kind included, in one frame.
func (l *Link) open(ctx context.Context, first []byte) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	// yamux waits without a context while many opens are unanswered or the
	// guest takes nothing; the goroutine ends at the latest with the link.
	go func() {
		s, err := l.session.OpenStream()
		if err != nil {
			done <- result{nil, err}
			return
		}
		if _, err := s.Write(first); err != nil {
			stream{s}.Close()
			done <- result{nil, err}
			return
		}
		done <- result{stream{s}, nil}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, skerry.Errorf(skerry.CodeUnavailable, "open stream to guest agent: %w", r.err)
		}
		return r.conn, nil
	case <-ctx.Done():
		go func() {
			if r := <-done; r.conn != nil {
				r.conn.Close()
			}
		}()
		return nil, fmt.Errorf("open stream to guest agent: %w", context.Cause(ctx))
	}
}

// exchange opens a stream, sends one frame and reads one. The stream is closed
// unless keep is set and all went well.
func (l *Link) exchange(ctx context.Context, kind byte, in, out any, keep bool) (net.Conn, error) {
	first, err := appendFrame([]byte{kind}, in)
	if err != nil {
		return nil, err
	}
	conn, err := l.open(ctx, first)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = readFrame(conn, out)
	if !stop() && err == nil {
		err = context.Cause(ctx) // the deadline is set or about to be
	}
	if err != nil || !keep {
		conn.Close()
	}
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	default:
		return nil, skerry.Errorf(skerry.CodeUnavailable, "%w", err)
	}
}

// Control sends one control message: path is one of the Path… constants, in
// and out its request and reply or nil. An error of the agent's carries the
// agent's code; a link that breaks is CodeUnavailable, and then it is unknown
// whether the message was acted on.
func (l *Link) Control(ctx context.Context, path string, in, out any) error {
	req := request{Path: path}
	if in != nil {
		body, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("agent %s: %w", path, err)
		}
		req.Body = body
	}
	var rep reply
	if _, err := l.exchange(ctx, StreamControl, req, &rep, false); err != nil {
		return fmt.Errorf("agent %s: %w", path, err)
	}
	if rep.Error != nil {
		return fmt.Errorf("agent %s: %w", path, rep.Error.err())
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(rep.Body, out); err != nil {
		return fmt.Errorf("agent %s: reply: %w", path, err)
	}
	return nil
}

// DialGuest connects to an address inside the guest: network is tcp or unix.
func (l *Link) DialGuest(ctx context.Context, network, address string) (net.Conn, error) {
	var rep DialReply
	conn, err := l.exchange(ctx, StreamDial, DialRequest{Network: network, Address: address}, &rep, true)
	if err != nil {
		return nil, fmt.Errorf("dial %s in guest: %w", address, err)
	}
	if rep.Error != "" {
		conn.Close()
		return nil, skerry.Errorf(skerry.CodeUnavailable, "dial %s in guest: %s", address, rep.Error)
	}
	return conn, nil
}

// Bounds on what a guest's HTTP server may answer before the body.
const (
	maxHeaderBytes  = 64 << 10
	maxHTTPStreams  = 256
	idleHTTPStreams = 4
)

// HTTPClient returns a client whose requests go over streams of a kind; host
// names in URLs are ignored. It follows no redirects and sends no timeouts of
// its own. Call its CloseIdleConnections when done.
func (l *Link) HTTPClient(kind byte) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return l.Open(ctx, kind)
			},
			DisableCompression:     true,
			MaxConnsPerHost:        maxHTTPStreams,
			MaxIdleConnsPerHost:    idleHTTPStreams,
			MaxResponseHeaderBytes: maxHeaderBytes,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Done is closed when the link is down, for whatever reason.
func (l *Link) Done() <-chan struct{} { return l.session.CloseChan() }

// Close ends the link and its streams, and waits for its goroutines. The guest
// then waits for the next host.
func (l *Link) Close() error {
	// The connection goes first: yamux would wait for a frame that a stuck
	// guest does not take.
	l.conn.Close()
	return l.session.Close()
}
