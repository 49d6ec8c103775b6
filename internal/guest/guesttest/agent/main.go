// Agent is the guest agent with a toolbox that can only run a program and
// return what it printed: enough to look at the system from inside.
package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
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
	guest.Main(context.Background(), "test", func(s toolbox.Spawner, _ *slog.Logger) control.Toolbox {
		return &probe{spawner: s}
	}, log)
}

type probe struct {
	spawner toolbox.Spawner
	running atomic.Int64
}

func (p *probe) Activate(guestapi.Activation) (user, home string, err error) {
	return "root", "/root", nil
}

func (p *probe) Activity() (running int, lastEnd time.Time) {
	return int(p.running.Load()), time.Time{}
}

func (p *probe) SetEnvironment(map[string]string) error { return nil }

func (p *probe) Close(context.Context, time.Duration) error { return nil }

func (p *probe) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/panic" {
		go panic("asked to")
	}
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
	child, err := p.spawner.Start(&toolbox.Spec{
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

// Stage implements control.Toolbox.
func (p *probe) Stage() control.Toolbox { return p }
