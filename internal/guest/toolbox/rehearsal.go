package toolbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"skerry.dev/skerry"
)

// rehearsalGrace bounds the end of what a rehearsal has started.
const rehearsalGrace = time.Second

// Rehearse runs argv once as a request would, on a server of its own, so that
// whatever the first one leaves behind for the next is there: files in the page
// cache, threads, grown heaps, and under emulation translated code. Nothing of
// it shows afterwards. It must be called before Activate.
func (s *Server) Rehearse(ctx context.Context, argv []string) error {
	stage := New(s.config)
	if _, err := stage.Activate(Defaults{}); err != nil {
		return err
	}
	defer stage.Close(ctx, rehearsalGrace)
	ours, theirs := net.Pipe()
	defer ours.Close()
	stop := context.AfterFunc(ctx, func() { ours.Close() })
	defer stop()
	server := &http.Server{Handler: stage}
	defer server.Close()
	go server.Serve(&oneConn{conn: theirs, closed: make(chan struct{})})
	return rehearse(ours, argv)
}

// rehearse makes the request on conn and reads its answer to the end.
func rehearse(conn net.Conn, argv []string) error {
	body, err := json.Marshal(skerry.RunRequest{ProcessRequest: skerry.ProcessRequest{Argv: argv}})
	if err != nil {
		return err
	}
	req, err := http.NewRequest(http.MethodPost, "http://agent/processes/run", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if err := req.Write(conn); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, answer)
	}
	return err
}

// oneConn is a listener with a single connection.
type oneConn struct {
	conn   net.Conn
	closed chan struct{}
}

// Accept implements net.Listener.
func (l *oneConn) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l *oneConn) Close() error {
	close(l.closed)
	return nil
}

// Addr implements net.Listener.
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "rehearsal", Net: "unix"} }
