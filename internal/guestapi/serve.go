package guestapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"skerry.dev/skerry"
)

// StreamHandler takes a stream over and closes it. kind was already read. ctx is
// done when the stream's link is down.
type StreamHandler func(ctx context.Context, kind byte, stream net.Conn)

// Serve serves one host after another on port until ctx is done or the port
// fails. Streams of a host that went away are broken; their handlers get an
// error on the next read or write. Serve waits for all handlers.
func Serve(ctx context.Context, port Port, handle StreamHandler) error {
	stop := context.AfterFunc(ctx, func() { _ = port.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var handlers sync.WaitGroup
	defer handlers.Wait()
	for {
		conn, err := acceptHost(ctx, port)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("agent port: %w", err)
		}
		session, err := yamux.Server(conn, muxConfig())
		if err != nil {
			return fmt.Errorf("start multiplexer: %w", err)
		}
		serveSession(ctx, session, handle, &handlers)
		session.Close()
		// The session left its deadline on the port.
		if err := port.SetDeadline(time.Time{}); err != nil {
			return fmt.Errorf("agent port: %w", err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func serveSession(ctx context.Context, session *yamux.Session, handle StreamHandler, wg *sync.WaitGroup) {
	link, lost := context.WithCancel(ctx)
	defer lost()
	for {
		s, err := session.AcceptStreamWithContext(ctx)
		if err != nil {
			return
		}
		wg.Go(func() {
			stream := stream{s}
			var kind [1]byte
			if _, err := io.ReadFull(stream, kind[:]); err != nil {
				stream.Close()
				return
			}
			handle(link, kind[0], stream)
		})
	}
}

// ControlFunc answers a control message; out is marshalled, or nil.
type ControlFunc func(ctx context.Context, path string, body json.RawMessage) (out any, err error)

// ServeControl answers the one message of a control stream and closes it.
func ServeControl(ctx context.Context, stream net.Conn, handle ControlFunc) error {
	defer stream.Close()
	var req request
	if err := readFrame(stream, &req); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	var rep reply
	out, err := handle(ctx, req.Path, req.Body)
	if err == nil && out != nil {
		rep.Body, err = json.Marshal(out)
	}
	if err != nil {
		rep = reply{Error: toWire(err)}
	}
	if err := writeFrame(stream, rep); err != nil {
		return fmt.Errorf("write reply: %w", err)
	}
	return nil
}

// dialTimeout bounds a connect inside the guest; it never leaves the machine.
const dialTimeout = 10 * time.Second

// ServeDial answers a dial stream: it connects inside the guest and splices
// until both directions have ended, or ctx is done. It closes the stream.
func ServeDial(ctx context.Context, stream net.Conn) error {
	defer stream.Close()
	var req DialRequest
	if err := readFrame(stream, &req); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	target, err := dialLocal(ctx, req)
	if err != nil {
		return writeFrame(stream, DialReply{Error: err.Error()})
	}
	defer target.Close()
	if err := writeFrame(stream, DialReply{}); err != nil {
		return fmt.Errorf("write reply: %w", err)
	}
	// The end of a link looks like a half close, which a server that waits for
	// its peer would never answer.
	stop := context.AfterFunc(ctx, func() { target.Close() })
	defer stop()
	splice(stream, target)
	return nil
}

func dialLocal(ctx context.Context, req DialRequest) (net.Conn, error) {
	if req.Network != "tcp" && req.Network != "unix" {
		return nil, skerry.Errorf(skerry.CodeInvalid, "network %q is neither tcp nor unix", req.Network)
	}
	d := net.Dialer{Timeout: dialTimeout}
	return d.DialContext(ctx, req.Network, req.Address)
}

// splice copies both ways. The end of one direction is passed on as a half
// close; an error ends both.
func splice(a, b net.Conn) {
	var wg sync.WaitGroup
	one := func(dst, src net.Conn) {
		_, err := io.Copy(dst, src)
		if err == nil {
			err = closeWrite(dst)
		}
		if err != nil {
			a.Close()
			b.Close()
		}
	}
	wg.Go(func() { one(a, b) })
	wg.Go(func() { one(b, a) })
	wg.Wait()
}

func closeWrite(c net.Conn) error {
	if c, ok := c.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}
