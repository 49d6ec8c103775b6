package testserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

// Server is a running `skerry server`.
type Server struct {
	*Dir
	URL    string
	APIKey string
	Client *client.Client

	cmd    *exec.Cmd
	exited chan struct{} // closed when the process is gone
	err    error         // how it ended; set before exited is closed

	mu  sync.Mutex
	log bytes.Buffer // guarded by mu
}

// startTimeout is how long a server may take to listen.
const startTimeout = time.Minute

// Options are what a server is started with, besides its home.
type Options struct {
	Args []string // after "skerry server"
	Env  []string
}

// Start starts a server on a free port of the loopback interface and returns
// when it listens.
func Start(ctx context.Context, d *Dir, o Options) (*Server, error) {
	s := &Server{Dir: d, exited: make(chan struct{})}
	s.cmd = d.command(context.Background(), append([]string{"server", "--listen", "127.0.0.1:0"}, o.Args...)...)
	s.cmd.Env = append(s.cmd.Env, o.Env...)
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	url := make(chan string, 1)
	go s.follow(stderr, url)
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case s.URL = <-url:
	case <-s.exited:
		return nil, fmt.Errorf("the server ended: %w\n%s", s.err, s.Log())
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("the server does not listen: %w\n%s", ctx.Err(), s.Log()), s.Kill())
	}
	if err := s.connect(); err != nil {
		return nil, errors.Join(err, s.Kill())
	}
	if err := s.awaitRunner(ctx); err != nil {
		return nil, errors.Join(err, s.Kill())
	}
	return s, nil
}

// awaitRunner waits until the server's own host takes work.
func (s *Server) awaitRunner(ctx context.Context) error {
	for {
		runners, err := s.Client.Runners(ctx)
		if err == nil && len(runners) > 0 && runners[0].Online {
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("the server ended: %w\n%s", s.err, s.Log())
		case <-ctx.Done():
			return fmt.Errorf("the host is not online: %w, %w\n%s", ctx.Err(), err, s.Log())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// follow keeps the log until the server ends, and sends its address once.
func (s *Server) follow(stderr io.Reader, url chan<- string) {
	defer close(s.exited)
	for lines := bufio.NewReader(stderr); ; {
		line, err := lines.ReadBytes('\n')
		s.mu.Lock()
		s.log.Write(line)
		s.mu.Unlock()
		var entry struct{ Msg, URL string }
		if json.Unmarshal(line, &entry) == nil && entry.Msg == "listening" {
			url <- entry.URL
		}
		if err != nil {
			break
		}
	}
	s.err = s.cmd.Wait()
}

func (s *Server) connect() error {
	cfg, err := client.ReadFile(s.Dir.Data() + "/client.json")
	if err != nil {
		return err
	}
	s.APIKey = cfg.APIKey
	s.Client, err = client.New(client.Config{URL: s.URL, APIKey: s.APIKey})
	return err
}

// command is the binary as the directory's user, with its environment.
func (d *Dir) command(ctx context.Context, args ...string) *exec.Cmd {
	argv := append([]string{d.Binary()}, args...)
	if d.uid != 0 {
		id := strconv.Itoa(d.uid)
		argv = append([]string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--"}, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = "/", d.Env()
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Command is the command line, set up for this server by what it wrote itself.
func (d *Dir) Command(ctx context.Context, args ...string) *exec.Cmd { return d.command(ctx, args...) }

// PID is the process id of the server.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Exited is closed when the server has ended.
func (s *Server) Exited() <-chan struct{} { return s.exited }

// Log is what the server has written.
func (s *Server) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// LogTail is the last lines of what the server has written.
func (s *Server) LogTail(lines int) string {
	all := strings.Split(strings.TrimSpace(s.Log()), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Kill ends the server at once. Sandboxes run on.
func (s *Server) Kill() error { return s.end(syscall.SIGKILL, 10*time.Second) }

// Stop ends the server gracefully. Sandboxes run on.
func (s *Server) Stop() error {
	if err := s.end(syscall.SIGTERM, 30*time.Second); err != nil {
		return err
	}
	return s.err
}

func (s *Server) end(sig syscall.Signal, within time.Duration) error {
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-s.exited:
		return nil
	case <-time.After(within):
		return fmt.Errorf("the server did not end within %v of %v", within, sig)
	}
}

// DeleteAll deletes all sandboxes and waits until nothing is left of them.
func (s *Server) DeleteAll(ctx context.Context) error {
	const each = time.Minute
	var errs []error
	for sb, err := range s.Client.AllSandboxes(ctx, skerry.SandboxFilter{}) {
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		if _, err := s.Client.DeleteSandbox(ctx, string(sb.ID)); err != nil && skerry.CodeOf(err) != skerry.CodeGone {
			errs = append(errs, err)
			continue
		}
		_, err = s.Client.WaitSandbox(ctx, string(sb.ID), each, skerry.StatusDeleted)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Import registers an archive as the default image and waits until it is ready.
func (s *Server) Import(ctx context.Context, file, name string) error {
	if out, err := s.Command(ctx, "image", "import", file, "--name", name, "--default").CombinedOutput(); err != nil {
		return fmt.Errorf("import %s: %w: %s", name, err, out)
	}
	return nil
}

// Create makes a sandbox of the default image and waits until it runs.
func (s *Server) Create(ctx context.Context, name string) (skerry.Sandbox, error) {
	sb, err := s.Client.CreateSandbox(ctx, client.CreateSandbox{Name: name})
	if err != nil {
		return sb, err
	}
	return s.Client.WaitSandbox(ctx, string(sb.ID), time.Minute, skerry.StatusRunning)
}

// Delete deletes a sandbox and waits until nothing is left of it.
func (s *Server) Delete(ctx context.Context, id skerry.SandboxID) error {
	if _, err := s.Client.DeleteSandbox(ctx, string(id)); err != nil && skerry.CodeOf(err) != skerry.CodeGone {
		return err
	}
	_, err := s.Client.WaitSandbox(ctx, string(id), time.Minute, skerry.StatusDeleted)
	return err
}

// Echo runs a program in a sandbox and checks that it has.
func (s *Server) Echo(ctx context.Context, id skerry.SandboxID) error {
	const word = "alive"
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := s.Client.Toolbox(id).Execute(ctx, skerry.ExecuteRequest{Argv: []string{"echo", word}})
	if err != nil {
		return err
	}
	if r.ExitCode != 0 || r.Stdout != word+"\n" {
		return fmt.Errorf("echo in sandbox %s: %+v", id, r)
	}
	return nil
}
