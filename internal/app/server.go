package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"skerry.dev/skerry/internal/api"
	v2 "skerry.dev/skerry/internal/api/v2"
	"skerry.dev/skerry/internal/bus"
	"skerry.dev/skerry/internal/control"
	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/gateway"
	"skerry.dev/skerry/internal/image"
	"skerry.dev/skerry/internal/runner"
	"skerry.dev/skerry/internal/runner/cgroup"
	"skerry.dev/skerry/internal/store/sqlite"
)

const (
	// shutdownTimeout bounds a graceful end.
	shutdownTimeout = 10 * time.Second
	// requestGrace is how long requests may take to end by themselves then.
	requestGrace = 2 * time.Second
	// onlineTimeout is how long the API waits for the runner at the start.
	onlineTimeout = 5 * time.Second
)

// region is the one region of a server on its own.
const region = "earth"

// Server is everything on one host, in one process.
type Server struct {
	cfg      Config
	log      *slog.Logger
	closers  []func() error // in the order of opening
	control  *control.Control
	runner   *runner.Runner
	listener net.Listener
	handler  http.Handler
}

// Open puts a server together: it locks the data directory, opens the database
// and the bus, and listens. Close must be called if it succeeds.
func Open(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, log: cfg.Logger}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) open(ctx context.Context) error {
	if err := os.MkdirAll(s.cfg.DataDir, 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	lock, err := lockDir(s.cfg.DataDir)
	if err != nil {
		return err
	}
	s.onClose(lock.Close)
	st, err := sqlite.Open(ctx, s.path("skerry.db"))
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	s.onClose(st.Close)
	b, err := bus.Open(ctx, bus.Config{Dir: s.path("nats"), Logger: s.log})
	if err != nil {
		return fmt.Errorf("message bus: %w", err)
	}
	s.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		return b.Close(ctx)
	})
	s.control = control.New(control.Config{Store: st, Bus: b, Region: region, Arch: runtime.GOARCH, Policy: s.cfg.Policy, Logger: s.log})
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := s.openRunner(b, metrics); err != nil {
		return fmt.Errorf("runner: %w", err)
	}
	if err := s.listen(); err != nil {
		return err
	}
	return s.openAPI(ctx, metrics)
}

func (s *Server) openRunner(b *bus.Bus, reg prometheus.Registerer) error {
	id, err := runner.LoadID(s.cfg.DataDir)
	if err != nil {
		return err
	}
	images, err := image.Open(image.Options{Dir: s.path("images"), Converter: runner.LayerConverter{}, Log: s.log})
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	s.onClose(images.Close)
	s.cfg.cgroups = cgroup.Open(string(id))
	program, err := s.shimProgram()
	if err != nil {
		return fmt.Errorf("shim: %w", err)
	}
	software := newSoftware(s.cfg)
	s.runner, err = runner.New(runner.Config{
		ID: id, Region: region, Arch: runtime.GOARCH, Dir: s.cfg.DataDir,
		Bus: b, Images: images, Scratch: disk.NewScratch(s.path("scratch")), Prepare: software.prepare, Checks: software.checks,
		ShimArgv: []string{program}, Network: s.cfg.network(), DropPrivileges: os.Getuid() == 0,
		PoolSize: s.cfg.PoolSize, Zygotes: s.cfg.Zygotes, Parallel: s.cfg.Parallel, MemoryMiB: s.cfg.MemoryMiB, ColdBoot: s.cfg.ColdBoot,
		Cgroups: s.cfg.cgroups, CPUBurst: s.cfg.CPUBurst,
		Metrics: runner.NewMetrics(reg), Logger: s.log, Step: s.cfg.Step,
	})
	return err
}

func (s *Server) listen() error {
	l, err := net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.onClose(func() error {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	s.listener = l
	if s.cfg.TLSCert != "" {
		cert, err := tls.LoadX509KeyPair(s.cfg.TLSCert, s.cfg.TLSKey)
		if err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
		s.listener = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	}
	return nil
}

func (s *Server) openAPI(ctx context.Context, metrics *prometheus.Registry) error {
	if err := s.writeClientConfig(ctx); err != nil {
		return fmt.Errorf("client configuration: %w", err)
	}
	spool := s.path("spool")
	if err := os.RemoveAll(spool); err != nil { // uploads that a crash cut off
		return err
	}
	if err := os.Mkdir(spool, 0o700); err != nil {
		return err
	}
	s.handler = api.New(api.Config{
		Logger: s.log, Authenticate: s.control.Authenticate, Hosts: s.cfg.Hosts,
		V2:      v2.New(v2.Config{Control: s.control, Console: s.console, SpoolDir: spool, Region: region, Policy: s.cfg.Policy, Version: s.cfg.Version, Logger: s.log}),
		Toolbox: gateway.New(gateway.Config{Dialer: toolboxDialer{s.runner, s.control}, Activity: s.control.Activity, Logger: s.log}),
		Metrics: promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}),
	})
	return nil
}

// URL is where clients reach the server.
func (s *Server) URL() string {
	scheme := "http"
	if s.cfg.TLSCert != "" {
		scheme = "https"
	}
	return scheme + "://" + s.listener.Addr().String()
}

// Run serves until ctx ends, then ends gracefully within shutdownTimeout.
// Sandboxes run on.
func (s *Server) Run(ctx context.Context) error {
	srv := api.NewServer(s.handler, s.log)
	// Requests outlive the signal to end for a while, streams are cut then.
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	srv.RegisterOnShutdown(s.control.Close) // ends waits and event streams, which clients take up again
	srv.BaseContext = func(net.Listener) context.Context { return requests }
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return (&reserve{s.path("reserve"), s.log}).keep(ctx) })
	g.Go(func() error { return s.control.Run(ctx) })
	g.Go(func() error { return s.runner.Run(ctx) })
	g.Go(func() error {
		select { // the first request should find the runner
		case <-s.runner.Online():
		case <-time.After(onlineTimeout):
		case <-ctx.Done():
			return nil
		}
		if err := srv.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		defer time.AfterFunc(requestGrace, cut).Stop()
		bound, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if err := srv.Shutdown(bound); err != nil {
			srv.Close() // what did not end in time is cut
		}
		return nil
	})
	err := g.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Close releases what Open took, in reverse.
func (s *Server) Close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	s.closers = nil
	return errors.Join(errs...)
}

func (s *Server) onClose(f func() error) { s.closers = append(s.closers, f) }

func (s *Server) path(name string) string { return filepath.Join(s.cfg.DataDir, name) }
