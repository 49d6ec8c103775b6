package toolbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"skerry.dev/skerry/internal/guest/toolbox/account"
	"skerry.dev/skerry/internal/guest/toolbox/file"
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

// closeMargin is how long, beyond the grace, Close lets clients read the last
// output before it cuts them off.
const closeMargin = time.Second

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
	User       string            // name or number, also "user:group" as in an image; "" is root
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
	users  account.Database
	mux    *http.ServeMux
	cpu    cpuMeter
	active atomic.Pointer[sandbox]

	cut    context.Context // ends requests when the Server closes
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	closed   bool
	requests sync.WaitGroup // Add only while not closed
}

// sandbox is an activated Server's state.
type sandbox struct {
	table   *process.Table
	files   *file.Files
	workDir string
}

// New returns a Server that answers 503 until Activate.
func New(config Config) *Server {
	s := &Server{config: config, users: account.Database{Root: config.Root}, mux: http.NewServeMux()}
	s.cut, s.cancel = context.WithCancelCause(context.Background())
	s.routes()
	return s
}

// Activate opens the Server for requests. It fails, and changes nothing, when
// the user does not exist, a variable's name is invalid, or the Server is active
// already.
func (s *Server) Activate(d Defaults) (Activated, error) {
	if d.User == "" {
		d.User = "root"
	}
	user, err := s.users.Lookup(d.User)
	if err != nil {
		return Activated{}, fmt.Errorf("activate toolbox: %w", err)
	}
	if err := process.CheckEnvironment(d.Env); err != nil {
		return Activated{}, fmt.Errorf("activate toolbox: %w", err)
	}
	if d.WorkingDir != "" {
		d.WorkingDir = filepath.Join("/", d.WorkingDir)
	}
	workDir := d.WorkingDir
	if workDir == "" {
		workDir = user.Home
	}
	box := &sandbox{
		table: process.NewTable(s.config.Spawner, s.users, s.config.Logger, process.Defaults{
			User: user, WorkingDir: d.WorkingDir, ImageEnv: d.ImageEnv, Env: d.Env}),
		files:   &file.Files{User: user, Users: s.users},
		workDir: workDir,
	}
	if !s.active.CompareAndSwap(nil, box) {
		return Activated{}, errors.New("activate toolbox: is active already")
	}
	return Activated{User: user.Name, Home: user.Home}, nil
}

// Running returns the number of processes that run now.
func (s *Server) Running() int {
	if box := s.active.Load(); box != nil {
		return box.table.Running()
	}
	return 0
}

// Activity returns the number of processes that run now, and when the last one
// ended; zero if none did.
func (s *Server) Activity() (running int, lastEnd time.Time) {
	if box := s.active.Load(); box != nil {
		return box.table.Activity()
	}
	return 0, time.Time{}
}

// SetEnvironment replaces the sandbox's variables for processes that are started
// from now on. The Server is active.
func (s *Server) SetEnvironment(env map[string]string) error {
	if err := process.CheckEnvironment(env); err != nil {
		return fmt.Errorf("set environment: %w", err)
	}
	s.active.Load().table.SetEnvironment(env)
	return nil
}

// Close ends all processes: TERM, after grace KILL, both to whole groups. It
// returns when they are gone and every goroutine of the Server has ended, or
// with ctx's error. Requests that come later get 503.
func (s *Server) Close(ctx context.Context, grace time.Duration) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	// A client that reads nothing could hold up the end of its process.
	cut := time.AfterFunc(grace+closeMargin, func() { s.cancel(errClosing) })
	defer cut.Stop()
	if box := s.active.Load(); box != nil {
		if err := box.table.Close(ctx, grace); err != nil {
			s.cancel(errClosing)
			return err
		}
	}
	cut.Reset(closeMargin) // for clients that are reading the end of their process
	defer s.cancel(errClosing)
	idle := make(chan struct{})
	go func() {
		s.requests.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close toolbox: requests are running: %w", ctx.Err())
	}
}

var errClosing = errors.New("the sandbox is going down")

// enter counts a request in, unless the Server cannot serve it.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.active.Load() == nil {
		return false
	}
	s.requests.Add(1)
	return true
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		writeError(w, r, unavailable())
		return
	}
	defer s.requests.Done()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	control := http.NewResponseController(w)
	stop := context.AfterFunc(s.cut, func() {
		cancel(errClosing)
		// Unblock bodies too. Writers that cannot do that have no body to block on.
		past := time.Unix(1, 0)
		_ = control.SetReadDeadline(past)
		_ = control.SetWriteDeadline(past)
	})
	defer stop()
	s.mux.ServeHTTP(w, r.WithContext(ctx))
}

// handler is an operation; an error that it returns has not been answered yet.
type handler func(box *sandbox, w http.ResponseWriter, r *http.Request) error

func (s *Server) handle(pattern string, h handler) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if err := h(s.active.Load(), w, r); err != nil {
			s.fail(w, r, err)
		}
	})
}

func (s *Server) routes() {
	s.handle("POST /processes", createProcess)
	s.handle("GET /processes", listProcesses)
	s.handle("POST /processes/run", s.runStream)
	s.handle("GET /processes/run", s.runSocket)
	s.handle("GET /processes/{id}", getProcess)
	s.handle("DELETE /processes/{id}", deleteProcess)
	s.handle("GET /processes/{id}/wait", waitProcess)
	s.handle("POST /processes/{id}/signals", signalProcess)
	s.handle("POST /processes/{id}/stdin", stdinProcess)
	s.handle("POST /processes/{id}/resize", resizeProcess)
	s.handle("GET /processes/{id}/logs", processLogs)
	s.handle("GET /processes/{id}/attach", s.attachProcess)
	s.handle("POST /process/execute", execute)

	s.handle("GET /files", listFiles)
	s.handle("DELETE /files", deleteFile)
	s.handle("GET /files/info", fileInfo)
	s.handle("GET /files/download", downloadFile)
	s.handle("POST /files/upload-v2", uploadFile)
	s.handle("POST /files/bulk-upload", uploadFiles)
	s.handle("POST /files/bulk-download", downloadFiles)
	s.handle("PUT /files/content", putFile)
	s.handle("POST /files/folder", createFolder)
	s.handle("POST /files/move", moveFile)
	s.handle("POST /files/permissions", setPermissions)
	s.handle("GET /files/archive", getArchive)
	s.handle("PUT /files/archive", putArchive)

	s.handle("GET /version", s.version)
	s.handle("GET /user-home-dir", homeDir)
	s.handle("GET /work-dir", workDir)
	s.handle("GET /system/metrics", s.metrics)
	s.handle("/", func(_ *sandbox, _ http.ResponseWriter, r *http.Request) error {
		return noRoute(r)
	})
}
