package control

import (
	"net"
	"net/http"
	"sync"

	"skerry.dev/skerry/internal/guestapi"
)

// streamServer serves HTTP on connections that somebody else accepts. One
// server outlives many links to the host.
type streamServer struct {
	server *http.Server
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	done   chan struct{} // closed when Serve has returned
}

func newStreamServer(handler http.Handler) *streamServer {
	s := &streamServer{
		server: &http.Server{Handler: handler, ConnContext: guestapi.WithStream},
		conns:  make(chan net.Conn),
		closed: make(chan struct{}),
		done:   make(chan struct{}),
	}
	go func() {
		defer close(s.done)
		_ = s.server.Serve(s) // returns http.ErrServerClosed after close
	}()
	return s
}

// serve hands a connection to the server, which closes it.
func (s *streamServer) serve(conn net.Conn) {
	select {
	case s.conns <- conn:
	case <-s.closed:
		conn.Close()
	}
}

func (s *streamServer) close() error {
	err := s.server.Close()
	<-s.done
	return err
}

// Accept implements net.Listener.
func (s *streamServer) Accept() (net.Conn, error) {
	select {
	case conn := <-s.conns:
		return conn, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (s *streamServer) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// Addr implements net.Listener.
func (s *streamServer) Addr() net.Addr { return &net.UnixAddr{Name: "agent", Net: "unix"} }
