package guestapi

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The handshake finds a common starting point on a byte stream whose past is
// unknown: bytes of a session before a capture, or of a host that died, may
// still arrive. The host sends magic 'H' nonce and repeats it until the guest
// answers magic 'A' with the same nonce; both drop whatever comes before.
// 0xff is no yamux version, so a session left over in the guest ends on it.
const (
	nonceLen     = 16
	handshakeLen = 5 + nonceLen

	kindHost  byte = 'H'
	kindAgent byte = 'A'
)

var magic = [4]byte{0xff, 'S', 'B', 'X'}

type nonce [nonceLen]byte

func handshake(kind byte, n nonce) []byte {
	b := make([]byte, 0, handshakeLen)
	b = append(b, magic[:]...)
	b = append(b, kind)
	return append(b, n[:]...)
}

// scanner finds handshakes in a stream of arbitrary bytes, fed in pieces of any
// size. Its memory is one handshake.
type scanner struct {
	kind byte
	have []byte // a proper prefix of a handshake
}

// feed consumes bytes of p up to the end of the first complete handshake and
// returns how many it consumed. If found is false it consumed all of p.
func (s *scanner) feed(p []byte) (consumed int, n nonce, found bool) {
	for i, c := range p {
		s.have = append(s.have, c)
		s.shrink()
		if len(s.have) == handshakeLen {
			copy(n[:], s.have[5:])
			s.have = s.have[:0]
			return i + 1, n, true
		}
	}
	return len(p), n, false
}

// shrink drops leading bytes until have is a prefix of a handshake again. Magic
// and kind are distinct bytes, so only a fresh 0xff can start anew.
func (s *scanner) shrink() {
	i := len(s.have) - 1
	var want byte
	switch {
	case i < len(magic):
		want = magic[i]
	case i == len(magic):
		want = s.kind
	default:
		return // nonce bytes are free
	}
	if c := s.have[i]; c != want {
		s.have = s.have[:0]
		if c == magic[0] {
			s.have = append(s.have, c)
		}
	}
}

// How the host repeats its handshake. The first repeat is early because it is
// needed whenever the guest still had a session open: that session swallows
// the first one. Flush bytes end a frame that a leftover session is in the
// middle of; a frame is never longer than a stream's window.
const (
	firstResend = 10 * time.Millisecond
	maxResend   = 400 * time.Millisecond
	flushAfter  = 5 // resends
	flushLen    = streamWindow + 64
)

// hostHandshake runs the host's side on conn and returns bytes that followed
// the guest's answer. It ends when ctx is done.
func hostHandshake(ctx context.Context, conn net.Conn) ([]byte, error) {
	var n nonce
	if _, err := rand.Read(n[:]); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	sent := make(chan error, 1)
	answered := make(chan struct{})
	go func() { sent <- sendHandshakes(conn, handshake(kindHost, n), answered) }()
	rest, err := awaitAnswer(conn, n)
	close(answered)
	if err != nil {
		// The sender may sit in a write that nobody reads.
		_ = conn.SetWriteDeadline(time.Unix(1, 0))
	}
	sendErr := <-sent
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("agent does not answer: %w", context.Cause(ctx))
	case err != nil:
		return nil, fmt.Errorf("read answer: %w", err)
	case sendErr != nil:
		return nil, fmt.Errorf("send: %w", sendErr)
	case !stop():
		// The deadline is set, or about to be: the connection is spoilt.
		return nil, fmt.Errorf("agent does not answer: %w", context.Cause(ctx))
	}
	return rest, nil
}

func sendHandshakes(w io.Writer, msg []byte, answered <-chan struct{}) error {
	wait := firstResend
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for i := 1; ; i++ {
		if _, err := w.Write(msg); err != nil {
			return err
		}
		select {
		case <-answered:
			return nil
		case <-timer.C:
		}
		if i == flushAfter {
			if _, err := w.Write(bytes.Repeat(magic[:1], flushLen)); err != nil {
				return err
			}
		}
		wait = min(2*wait, maxResend)
		timer.Reset(wait)
	}
}

func awaitAnswer(r io.Reader, want nonce) ([]byte, error) {
	scan := scanner{kind: kindAgent}
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		for p := buf[:n]; len(p) > 0; {
			consumed, got, found := scan.feed(p)
			p = p[consumed:]
			if found && got == want {
				return bytes.Clone(p), nil
			}
		}
		if err != nil {
			return nil, err
		}
	}
}

// Port is the guest's end of the channel. Read returns io.EOF when the host
// went away; after that Read waits until a host is there again.
type Port interface {
	io.ReadWriter
	SetDeadline(t time.Time) error
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

// acceptHost waits for a host's handshake, answers it and returns the
// connection that begins after it. It gives up only when the port fails.
func acceptHost(ctx context.Context, port Port) (*portConn, error) {
	scan := scanner{kind: kindHost}
	buf := make([]byte, 4<<10)
	for {
		n, err := port.Read(buf)
		for p := buf[:n]; len(p) > 0; {
			consumed, got, found := scan.feed(p)
			p = p[consumed:]
			if !found {
				break
			}
			rest := bytes.Clone(p)
			_, werr := port.Write(handshake(kindAgent, got))
			if werr == nil {
				return &portConn{port: port, done: handshake(kindHost, got), buf: rest}, nil
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			p = nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
}

// portConn is one host's connection on the port: what follows its handshake.
// Closing it leaves the port open for the next host.
type portConn struct {
	port Port
	done []byte // the handshake already answered
	buf  []byte // read but not delivered
	past bool   // all repeats of the handshake are behind us
}

// Read drops repeats of the answered handshake and flush bytes: the host sends
// them until it sees the answer, and never after its first frame.
func (c *portConn) Read(p []byte) (int, error) {
	for !c.past {
		if n, more := c.repeat(); !more {
			c.buf = c.buf[n:]
			c.past = n == 0
			continue
		}
		fresh := make([]byte, 4<<10)
		n, err := c.port.Read(fresh)
		c.buf = append(c.buf, fresh[:n]...)
		if err != nil {
			return 0, err
		}
	}
	if len(c.buf) > 0 {
		n := copy(p, c.buf)
		c.buf = c.buf[n:]
		return n, nil
	}
	return c.port.Read(p)
}

// repeat returns how many bytes at the start of buf are a repeat of the
// handshake or a flush byte, 0 if it is neither, or that it takes more bytes to
// tell.
func (c *portConn) repeat() (n int, more bool) {
	switch {
	case len(c.buf) >= len(c.done) && bytes.Equal(c.buf[:len(c.done)], c.done):
		return len(c.done), false
	case len(c.buf) < len(c.done) && bytes.HasPrefix(c.done, c.buf):
		return 0, true
	case len(c.buf) >= 2 && c.buf[0] == magic[0] && c.buf[1] == magic[0]:
		return 1, false
	}
	return 0, false
}

func (c *portConn) Write(p []byte) (int, error) { return c.port.Write(p) }

// Close ends reads and writes in progress.
func (c *portConn) Close() error { return c.port.SetDeadline(time.Unix(1, 0)) }

func (c *portConn) SetDeadline(t time.Time) error      { return c.port.SetDeadline(t) }
func (c *portConn) SetReadDeadline(t time.Time) error  { return c.port.SetReadDeadline(t) }
func (c *portConn) SetWriteDeadline(t time.Time) error { return c.port.SetWriteDeadline(t) }
func (c *portConn) LocalAddr() net.Addr                { return portAddr{} }
func (c *portConn) RemoteAddr() net.Addr               { return portAddr{} }

type portAddr struct{}

func (portAddr) Network() string { return "virtio-serial" }
func (portAddr) String() string  { return PortName }
