package toolbox

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"skerry.dev/skerry/internal/guest/toolbox/process"
)

// The seam to whoever starts processes.
type (
	// Spawner starts processes, each in a control group of its own.
	Spawner = process.Spawner
	// Spec is what a Spawner is asked to start.
	Spec = process.Spec
	// Child is a process that a Spawner has started.
	Child = process.Child
	// Status is how a process ended.
	Status = process.Status
)

// Config is what a Server is made of.
type Config struct {
	Spawner Spawner
	Logger  *slog.Logger
	// Root is the directory whose etc/passwd and etc/group name the users;
	// "" is "/".
	Root string
	// Version is the answer of GET /version.
	Version string
}

// Defaults are what the sandbox gives every process.
type Defaults struct {
	User       string            // name or number, also "user:group" as in an image
	WorkingDir string            // the image's, or ""
	ImageEnv   []string          // KEY=value, in order
	Env        map[string]string // the sandbox's, over the image's
}

// Activated is what Defaults were resolved to.
type Activated struct {
	User string
	Home string
}

// Server serves the toolbox API. Use New.
type Server struct {
	config Config
	active atomic.Bool
}

// New returns a Server that answers 503 until Activate.
func New(config Config) *Server { return &Server{config: config} }

// Activate opens the Server for requests. It fails, and changes nothing, when
// the user does not exist or the Server is active already.
func (s *Server) Activate(d Defaults) (Activated, error) {
	if !s.active.CompareAndSwap(false, true) {
		return Activated{}, errors.New("activate toolbox: is active already")
	}
	return Activated{}, nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusServiceUnavailable)
}

// Running returns the number of processes that run now.
func (s *Server) Running() int { return 0 }

// Close ends all processes: TERM, after grace KILL. It returns when they are
// gone and every goroutine of the Server has ended, or with ctx's error.
// Requests that come later get 503.
func (s *Server) Close(ctx context.Context, grace time.Duration) error { return nil }
