// Agent is the guest agent for tests: with a simple way to run a program and
// read what it printed, and others to look at the agent from inside.
package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"skerry.dev/skerry/internal/guest"
	"skerry.dev/skerry/internal/guest/control"
	"skerry.dev/skerry/internal/guest/guesttest/run"
	"skerry.dev/skerry/internal/guest/toolbox"
	"skerry.dev/skerry/internal/guestapi"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	guest.Main(context.Background(), "test", func(s toolbox.Spawner, log *slog.Logger) control.Toolbox {
		return newProbe(toolbox.Config{Spawner: s, Logger: log, Version: "test"})
	}, log)
}

// probe is the real toolbox, with means to look at the agent beside it.
type probe struct {
	*toolbox.Server
	config  toolbox.Config
	running atomic.Int64
}

func newProbe(c toolbox.Config) *probe { return &probe{Server: toolbox.New(c), config: c} }

func (p *probe) Activate(a guestapi.Activation) (user, home string, err error) {
	got, err := p.Server.Activate(toolbox.Defaults{User: a.User, WorkingDir: a.WorkingDir, ImageEnv: a.ImageEnv, Env: a.Env})
	return got.User, got.Home, err
}

// Stage implements control.Toolbox.
func (p *probe) Stage() control.Toolbox { return newProbe(p.config) }

// Activity implements control.Toolbox.
func (p *probe) Activity() (running int, lastEnd time.Time) {
	running, lastEnd = p.Server.Activity()
	return running + int(p.running.Load()), lastEnd
}

func (p *probe) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/panic":
		go panic("asked to")
	case "/goroutines":
		_ = pprof.Lookup("goroutine").WriteTo(w, 1)
	case "/run":
		p.serveRun(w, r)
	default:
		p.Server.ServeHTTP(w, r)
	}
}

func (p *probe) serveRun(w http.ResponseWriter, r *http.Request) {
	var req run.Request
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	res, err := p.run(req)
	if err != nil {
		res.Error = err.Error()
	}
	_ = json.NewEncoder(w).Encode(res)
}

func (p *probe) run(req run.Request) (run.Result, error) {
	p.running.Add(1)
	defer p.running.Add(-1)
	null, err := os.Open("/dev/null")
	if err != nil {
		return run.Result{}, err
	}
	defer null.Close()
	out, in, err := os.Pipe()
	if err != nil {
		return run.Result{}, err
	}
	defer out.Close()
	defer in.Close()
	child, err := p.config.Spawner.Start(&toolbox.Spec{
		ID: req.ID, Path: req.Argv[0], Argv: req.Argv, Env: req.Env, Dir: "/",
		UID: req.UID, GID: req.UID, Files: [3]*os.File{null, in, in},
	})
	if err != nil {
		return run.Result{}, err
	}
	defer child.Release()
	in.Close()
	text, err := io.ReadAll(out)
	if err != nil {
		return run.Result{}, err
	}
	status, err := child.Wait()
	return run.Result{
		Output: string(text), ExitCode: status.Wait.ExitStatus(), Signal: int(status.Wait.Signal()),
		OOMKilled: status.OOMKilled, Empty: child.Empty(),
	}, err
}
