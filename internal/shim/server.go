package shim

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
)

// serve opens the control and the toolbox socket.
func (s *shim) serve(ctx context.Context, wg *sync.WaitGroup) error {
	control, err := listen(s.cfg.Dir, ControlSock)
	if err != nil {
		return err
	}
	toolbox, err := listen(s.cfg.Dir, ToolboxSock)
	if err != nil {
		control.Close()
		return err
	}
	srv := &http.Server{Handler: s.handler(), BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}
	wg.Go(func() { srv.Serve(control) })
	wg.Go(func() { s.acceptToolbox(ctx, toolbox) })
	context.AfterFunc(ctx, func() {
		toolbox.Close()
		// The answer to the request that stopped us still goes out.
		bound, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		srv.Shutdown(bound)
	})
	return s.announce()
}

// announce tells the runner that the sockets accept, by one byte: an end of
// the pipe without it means that the shim died before.
func (s *shim) announce() error {
	if s.cfg.Listening == nil {
		return nil
	}
	_, err := s.cfg.Listening.Write([]byte{1})
	return errors.Join(err, s.cfg.Listening.Close())
}

func (s *shim) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		st, _ := s.snapshot()
		reply(w, st, nil)
	})
	mux.HandleFunc("GET /wait", s.handleWait)
	// What changes the machine is not undone by a caller that goes away: the
	// runner's successor finds it done, or failed.
	handle(mux, "POST /activate", true, s.activate)
	handle(mux, "POST /renew", true, func(ctx context.Context, req RenewRequest) (struct{}, error) { return struct{}{}, s.renew(ctx, req) })
	handle(mux, "POST /shutdown", true, s.shutdown)
	handle(mux, "POST /resume", true, func(ctx context.Context, _ struct{}) (struct{}, error) { return struct{}{}, s.resumeSaved(ctx) })
	// A save or a copy that nobody waits for any more is given up.
	handle(mux, "POST /save", false, s.save)
	handle(mux, "POST /copy-disk", false, s.copyDisk)
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, r *http.Request) {
		var stats guestapi.Stats
		link, err := s.runningLink()
		if err == nil {
			err = link.Control(r.Context(), guestapi.PathStats, nil, &stats)
		}
		reply(w, stats, err)
	})
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, r *http.Request) {
		s.killMachine()
		reply(w, struct{}{}, nil)
		s.stop()
	})
	return mux
}

// handle registers a request of JSON. A detached one goes on when the caller has
// gone.
func handle[In, Out any](mux *http.ServeMux, pattern string, detached bool, run func(context.Context, In) (Out, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			reply(w, nil, skerry.Errorf(skerry.CodeInvalid, "%s: %w", pattern, err))
			return
		}
		ctx := r.Context()
		if detached {
			ctx = context.WithoutCancel(ctx)
		}
		out, err := run(ctx, in)
		reply(w, out, err)
	})
}

// handleWait answers when the phase is another than the one given, so that a
// runner hears of a failure at once.
func (s *shim) handleWait(w http.ResponseWriter, r *http.Request) {
	known := Phase(r.FormValue("phase"))
	for {
		st, changed := s.snapshot()
		if st.Phase != known {
			reply(w, st, nil)
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// runningLink is the link to the sandbox's agent. Of a machine that stands still
// for want of room it comes with errFull; it is nil if there was none before.
func (s *shim) runningLink() (*guestapi.Link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.status.Phase {
	case PhaseRunning:
		return s.link, nil
	case PhaseFull:
		return s.link, errFull
	}
	return nil, errNotReady(s.status)
}

// acceptToolbox joins each connection with a toolbox stream of the agent.
func (s *shim) acceptToolbox(ctx context.Context, l net.Listener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			if err := s.joinToolbox(ctx, c.(*net.UnixConn)); err != nil {
				s.log.Debug("toolbox connection", "err", err)
			}
		})
	}
}

func (s *shim) joinToolbox(ctx context.Context, c *net.UnixConn) error {
	defer c.Close()
	link, err := s.runningLink()
	if err != nil {
		return err
	}
	stream, err := link.Open(ctx, guestapi.StreamToolbox)
	if err != nil {
		return err
	}
	defer stream.Close()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.breakOff(ctx, cancel) })
	defer wg.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.Close(); stream.Close() })
	defer stop()
	// A stream that broke must look broken to the client too, so only a
	// clean end is passed on as one; anything else closes both at once.
	errc := make(chan error, 2)
	go func() {
		_, err := io.Copy(stream, c)
		if err == nil {
			err = closeWrite(stream)
		}
		errc <- err
	}()
	go func() {
		_, err := io.Copy(c, stream)
		if err == nil {
			err = c.CloseWrite()
		}
		errc <- err
	}()
	err = <-errc
	if err != nil {
		c.Close()
		stream.Close()
	}
	return errors.Join(err, <-errc)
}

// closeWrite ends one direction where the stream can; yamux streams close
// their sending side and go on receiving.
func closeWrite(c net.Conn) error {
	if cw, ok := c.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return c.Close()
}

// wireError carries an error with its code over the control socket.
type wireError struct {
	Code    skerry.Code `json:"code"`
	Message string      `json:"message"`
}

func reply(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusConflict)
		v = wireError{Code: skerry.CodeOf(err), Message: err.Error()}
	}
	json.NewEncoder(w).Encode(v)
}
