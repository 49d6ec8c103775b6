package guestapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"skerry.dev/skerry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakePort is a virtio-serial port in memory: one host at a time, bytes of an
// earlier host's session may still arrive, and the guest's end outlives hosts.
type fakePort struct {
	mu      sync.Mutex
	cond    *sync.Cond
	toGuest bytes.Buffer // guarded by mu, like all below
	host    net.Conn     // guest's end of the host's connection, or nil
	eof     bool         // the host went away and the guest was not told
	expired bool         // a past deadline is set
}

func newFakePort() *fakePort {
	p := &fakePort{}
	p.cond = sync.NewCond(&p.mu)
	return p
}

// connect returns a new host's end; garbage arrives before its bytes.
func (p *fakePort) connect(garbage []byte) net.Conn {
	host, guest := net.Pipe()
	p.mu.Lock()
	p.toGuest.Write(garbage)
	p.host = guest
	p.cond.Broadcast()
	p.mu.Unlock()
	go func() {
		buf := make([]byte, 32<<10)
		for {
			n, err := guest.Read(buf)
			p.mu.Lock()
			p.toGuest.Write(buf[:n])
			if err != nil && p.host == guest {
				p.host, p.eof = nil, true
			}
			p.cond.Broadcast()
			p.mu.Unlock()
			if err != nil {
				guest.Close()
				return
			}
		}
	}()
	return host
}

func (p *fakePort) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.expired:
			return 0, os.ErrDeadlineExceeded
		case p.toGuest.Len() > 0:
			return p.toGuest.Read(b)
		case p.eof:
			p.eof = false
			return 0, io.EOF
		}
		p.cond.Wait()
	}
}

func (p *fakePort) Write(b []byte) (int, error) {
	p.mu.Lock()
	for !p.expired && p.host == nil {
		p.cond.Wait()
	}
	host, expired := p.host, p.expired
	p.mu.Unlock()
	if expired {
		return 0, os.ErrDeadlineExceeded
	}
	if _, err := host.Write(b); errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, err
	}
	return len(b), nil // a gone host loses bytes silently
}

func (p *fakePort) SetDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expired = !t.IsZero() && t.Before(time.Now())
	if p.host != nil {
		_ = p.host.SetWriteDeadline(t)
	}
	p.cond.Broadcast()
	return nil
}
func (p *fakePort) SetReadDeadline(time.Time) error  { return nil }
func (p *fakePort) SetWriteDeadline(time.Time) error { return nil }

// serve runs a guest on port until the test ends.
func serve(t *testing.T, port Port) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, port, answer) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Serve = %v, want %v", err, context.Canceled)
		}
	})
}

func answer(ctx context.Context, kind byte, stream net.Conn) {
	switch kind {
	case StreamControl:
		_ = ServeControl(ctx, stream, func(_ context.Context, path string, body json.RawMessage) (any, error) {
			switch path {
			case PathHello:
				return Hello{Version: Version, Build: "test"}, nil
			case PathActivate:
				return nil, skerry.Errorf(skerry.CodeConflict, "is active")
			}
			return body, nil
		})
	case StreamDial:
		_ = ServeDial(ctx, stream)
	case StreamToolbox:
		l := &oneListener{conn: stream, done: make(chan struct{})}
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(w, r.Body)
		}))
	default:
		stream.Close()
	}
}

// oneListener is a listener with one connection.
type oneListener struct {
	conn net.Conn
	done chan struct{}
}

func (l *oneListener) Accept() (net.Conn, error) {
	if l.conn == nil {
		return nil, io.EOF
	}
	c := l.conn
	l.conn = nil
	return c, nil
}
func (l *oneListener) Close() error   { return nil }
func (l *oneListener) Addr() net.Addr { return portAddr{} }

func dial(t *testing.T, port *fakePort, garbage []byte) *Link {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	link, err := Dial(ctx, port.connect(garbage))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { link.Close() })
	return link
}

func hello(t *testing.T, link *Link) {
	t.Helper()
	var got Hello
	if err := link.Control(t.Context(), PathHello, nil, &got); err != nil || got.Build != "test" {
		t.Fatalf("hello = %+v, %v", got, err)
	}
}

func TestLinkControl(t *testing.T) {
	port := newFakePort()
	serve(t, port)
	link := dial(t, port, nil)
	hello(t, link)

	err := link.Control(t.Context(), PathActivate, Activation{}, nil)
	if skerry.CodeOf(err) != skerry.CodeConflict || !strings.Contains(err.Error(), "is active") {
		t.Errorf("error = %v (%s), want the agent's", err, skerry.CodeOf(err))
	}
	big := Activation{Env: map[string]string{"A": strings.Repeat("x", MaxFrame/2)}}
	var back Activation
	if err := link.Control(t.Context(), "/echo", big, &back); err != nil || back.Env["A"] != big.Env["A"] {
		t.Errorf("a large message did not come back: %v", err)
	}
	big.Env["A"] += big.Env["A"]
	if err := link.Control(t.Context(), "/echo", big, nil); !errors.Is(err, errFrameTooLarge) {
		t.Errorf("error = %v, want %v", err, errFrameTooLarge)
	}
	hello(t, link)
}

// A host may die and come back at any moment; whatever was under way must not
// disturb the next one.
func TestLinkReconnect(t *testing.T) {
	frame := append([]byte{0, yamuxData, 0, 0, 0, 0, 0, 1, 0, 4, 0, 0}, "a body that never comes"...)
	tests := []struct {
		name    string
		garbage []byte
	}{
		{"clean", nil},
		{"random bytes", []byte("PARTIAL\x00\x01\x02")},
		{"part of a handshake", handshake(kindHost, nonce{1})[:9]},
		{"a whole old handshake", handshake(kindHost, nonce{1})},
		{"magic bytes", bytes.Repeat(magic[:], 100)},
		{"an old session in the middle of a frame", append(handshake(kindHost, nonce{1}), frame...)},
		{"an old session and another handshake", append(handshake(kindHost, nonce{1}), handshake(kindHost, nonce{2})...)},
	}
	port := newFakePort()
	serve(t, port)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			link := dial(t, port, tt.garbage)
			hello(t, link)
			if err := link.Close(); err != nil {
				t.Error(err)
			}
			select {
			case <-link.Done():
			default:
				t.Error("Done is not closed after Close")
			}
			if err := link.Control(t.Context(), PathHello, nil, nil); skerry.CodeOf(err) != skerry.CodeUnavailable {
				t.Errorf("error on a closed link = %v", err)
			}
		})
	}
}

// A host may be early: its repeats and flush bytes pile up while the guest boots.
func TestLinkBeforeGuest(t *testing.T) {
	port := newFakePort()
	host := port.connect(nil)
	type result struct {
		link *Link
		err  error
	}
	dialed := make(chan result, 1)
	go func() {
		link, err := Dial(t.Context(), host)
		dialed <- result{link, err}
	}()
	port.mu.Lock()
	for port.toGuest.Len() < flushLen+8*handshakeLen {
		port.cond.Wait()
	}
	port.mu.Unlock()
	serve(t, port)
	r := <-dialed
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.link.Close()
	hello(t, r.link)
}

func TestLinkHTTP(t *testing.T) {
	port := newFakePort()
	serve(t, port)
	link := dial(t, port, nil)
	client := link.HTTPClient(StreamToolbox)
	defer client.CloseIdleConnections()
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	resp, err := client.Post("http://agent/", "", bytes.NewReader(want))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, %v; want the %d sent", len(got), err, len(want))
	}
}

func TestLinkDial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer conn.Close()
		all, err := io.ReadAll(conn) // to the half close
		if err == nil {
			_, err = fmt.Fprintf(conn, "got %s", all)
		}
		served <- err
	}()
	port := newFakePort()
	serve(t, port)
	link := dial(t, port, nil)
	conn, err := link.DialGuest(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hi")); err != nil {
		t.Fatal(err)
	}
	if err := closeWrite(conn); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != "got hi" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	l.Close()
	_, err = link.DialGuest(t.Context(), "tcp", l.Addr().String())
	if skerry.CodeOf(err) != skerry.CodeUnavailable {
		t.Errorf("error = %v, want unavailable", err)
	}
	_, err = link.DialGuest(t.Context(), "udp", "127.0.0.1:1")
	if err == nil || !strings.Contains(err.Error(), "neither tcp nor unix") {
		t.Errorf("error = %v", err)
	}
}

func TestDialEndsWithContext(t *testing.T) {
	host, guest := net.Pipe()
	defer guest.Close()
	go func() { _, _ = io.Copy(io.Discard, guest) }()
	cause := errors.New("machine died")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(30*time.Millisecond, func() { cancel(cause) })
	if _, err := Dial(ctx, host); !errors.Is(err, cause) {
		t.Errorf("error = %v, want %v", err, cause)
	}
}

func TestControlEndsWithContext(t *testing.T) {
	host, guest := net.Pipe()
	defer guest.Close()
	go muteGuest(guest)
	link, err := Dial(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := link.Control(ctx, PathHello, nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error = %v, want %v", err, context.DeadlineExceeded)
	}
}

// muteGuest shakes hands, then takes everything and answers nothing.
func muteGuest(conn net.Conn) {
	shake(conn)
	_, _ = io.Copy(io.Discard, conn)
}

func shake(conn net.Conn) {
	msg := make([]byte, handshakeLen)
	if _, err := io.ReadFull(conn, msg); err != nil {
		return
	}
	_, _ = conn.Write(handshake(kindAgent, nonce(msg[5:])))
}

// A guest that breaks the protocol loses the link and costs no memory.
func TestHostileGuest(t *testing.T) {
	tests := []struct {
		name string
		sent []byte
	}{
		{"ping", []byte{0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9}},
		{"opens a stream", []byte{0, yamuxWindow, 0, yamuxSYN, 0, 0, 0, 2, 0, 0, 0, 0}},
		{"huge frame", []byte{0, yamuxData, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff}},
		{"bad version", []byte{1, yamuxData, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}},
		{"unknown type", []byte{0, 9, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			host, guest := net.Pipe()
			go func() {
				shake(guest)
				_, _ = guest.Write(tt.sent)
				_, _ = io.Copy(io.Discard, guest)
				guest.Close()
			}()
			link, err := Dial(t.Context(), host)
			if err != nil {
				t.Fatal(err)
			}
			<-link.Done()
			link.Close()
		})
	}
}

// TestLinkLost: a handler can tell a client that left from a link that is down,
// and a connection into the guest does not outlive the link.
func TestLinkLost(t *testing.T) {
	lost := make(chan bool, 1)
	ctx, cancel := context.WithCancel(context.Background())
	port := newFakePort()
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, port, func(ctx context.Context, kind byte, stream net.Conn) {
			if kind == StreamDial {
				_ = ServeDial(ctx, stream)
				return
			}
			defer stream.Close()
			_, _ = io.Copy(io.Discard, stream)
			lost <- LinkLost(WithStream(context.Background(), stream))
		})
	}()
	defer func() { cancel(); <-done }()
	if LinkLost(ctx) {
		t.Error("a context without a stream has lost its link")
	}

	link := dial(t, port, nil)
	open := func() net.Conn {
		stream, err := link.Open(t.Context(), StreamToolbox)
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	stream := open()
	stream.Close()
	if <-lost {
		t.Error("a client's leaving is a lost link")
	}
	open()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if _, err := link.DialGuest(t.Context(), "tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	server, err := listener.Accept() // waits for its peer, which will not come back
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	link.Close()
	if !<-lost {
		t.Error("a lost link is a client's leaving")
	}
	if _, err := server.Read(make([]byte, 1)); err == nil {
		t.Error("the connection has data")
	}
	// It is closed both ways: what is written comes back as a reset.
	for err == nil {
		_, err = server.Write(make([]byte, 1<<10))
	}
}
