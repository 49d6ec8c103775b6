package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
)

// fakeSystem scripts the faults of the machine below.
type fakeSystem struct {
	activateErr error
	activated   int
	quiesced    int
	did         []string         // what the newer methods did, in order
	errs        map[string]error // of those
	grace       time.Duration    // of the shutdown
	mac         chan string
}

func (s *fakeSystem) Prepare(context.Context, guestapi.Preparation) error { return nil }
func (s *fakeSystem) Activate(context.Context, guestapi.Activation) (map[string]int64, error) {
	s.activated++
	return map[string]int64{"entropy": 1}, s.activateErr
}
func (s *fakeSystem) SetMAC(mac string) error    { s.mac <- mac; return nil }
func (s *fakeSystem) Quiesce()                   { s.quiesced++ }
func (s *fakeSystem) Tune(guestapi.Tuning) error { return nil }
func (s *fakeSystem) Pressure(context.Context, time.Duration) (guestapi.Pressure, error) {
	return guestapi.Pressure{}, nil
}
func (s *fakeSystem) Shutdown(_ context.Context, grace time.Duration) error {
	s.grace = grace
	return s.do("shutdown")
}
func (s *fakeSystem) FreezeProcesses(context.Context) error { return s.do("freeze processes") }
func (s *fakeSystem) ThawProcesses() error                  { return s.do("thaw processes") }
func (s *fakeSystem) FreezeDisk(limit time.Duration) error {
	return s.do("freeze disk for " + limit.String())
}
func (s *fakeSystem) ThawDisk() error                { return s.do("thaw disk") }
func (s *fakeSystem) Renew(r guestapi.Renewal) error { return s.do("renew") }
func (s *fakeSystem) do(what string) error {
	s.did = append(s.did, what)
	return s.errs[what]
}
func (s *fakeSystem) Stats() (guestapi.Stats, error) { return guestapi.Stats{}, nil }

type fakeToolbox struct {
	name      string
	activated bool
	closed    bool
	stages    []*fakeToolbox
	running   int
	lastEnd   time.Time
	env       map[string]string
	envErr    error
	stuck     bool // a process cannot be ended
}

func (t *fakeToolbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/hang" {
		<-r.Context().Done()
	}
	w.Write([]byte(t.name))
}
func (t *fakeToolbox) Activate(a guestapi.Activation) (string, string, error) {
	t.activated = true
	return a.User, "/home", nil
}
func (t *fakeToolbox) Stage() Toolbox {
	stage := &fakeToolbox{name: "stage"}
	t.stages = append(t.stages, stage)
	return stage
}
func (t *fakeToolbox) Activity() (int, time.Time) { return t.running, t.lastEnd }
func (t *fakeToolbox) SetEnvironment(env map[string]string) error {
	t.env = env
	return t.envErr
}
func (t *fakeToolbox) Close(ctx context.Context, _ time.Duration) error {
	t.closed = true
	if t.stuck {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func newAgent(t *testing.T) (*Agent, *fakeSystem, *fakeToolbox) {
	t.Helper()
	system, toolbox := &fakeSystem{mac: make(chan string, 1)}, &fakeToolbox{name: "real"}
	a := New(system, toolbox, guestapi.Hello{Version: guestapi.Version}, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { a.Close() })
	return a, system, toolbox
}

func send(t *testing.T, a *Agent, path string, in any) (any, error) {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	return a.control(t.Context(), path, body)
}

// TestOrder: every message in every state, allowed or refused.
func TestOrder(t *testing.T) {
	prepare := func(a *Agent, t *testing.T) { mustSend(t, a, guestapi.PathPrepare) }
	activate := func(a *Agent, t *testing.T) { mustSend(t, a, guestapi.PathActivate) }
	rehearse := func(a *Agent, t *testing.T) { prepare(a, t); mustSend(t, a, guestapi.PathRehearse) }
	shutdown := func(a *Agent, t *testing.T) { activate(a, t); mustSend(t, a, guestapi.PathShutdown) }
	states := []struct {
		name string
		to   func(*Agent, *testing.T)
		ok   string // paths that are allowed
	}{
		{"anonymous", func(*Agent, *testing.T) {}, "/hello /prepare /activate /quiesce /stats /thaw /shutdown"},
		{"prepared", prepare, "/hello /rehearse /activate /quiesce /stats /thaw /shutdown"},
		{"rehearsing", rehearse, "/hello /activate /quiesce /stats /thaw /shutdown"},
		{"activated", activate, "/hello /quiesce /tune /freeze /thaw /renew /stats /shutdown"},
		{"shut down", shutdown, "/hello /quiesce /stats /thaw /shutdown"},
	}
	paths := []string{guestapi.PathHello, guestapi.PathPrepare, guestapi.PathRehearse, guestapi.PathActivate,
		guestapi.PathQuiesce, guestapi.PathTune, guestapi.PathStats, guestapi.PathShutdown,
		guestapi.PathFreeze, guestapi.PathThaw, guestapi.PathRenew}
	for _, state := range states {
		for _, path := range paths {
			t.Run(state.name+path, func(t *testing.T) {
				a, _, _ := newAgent(t)
				state.to(a, t)
				_, err := send(t, a, path, struct{}{})
				allowed := strings.Contains(state.ok+" ", path+" ")
				if allowed && err != nil {
					t.Errorf("refused: %v", err)
				}
				if !allowed && skerry.CodeOf(err) != skerry.CodeConflict {
					t.Errorf("error %v, want code conflict", err)
				}
			})
		}
	}
}

func mustSend(t *testing.T, a *Agent, path string) {
	t.Helper()
	if _, err := send(t, a, path, struct{}{}); err != nil {
		t.Fatal(path, err)
	}
}

// TestFailsClosed: a machine whose activation failed, for example because it
// could not be reseeded, never becomes a sandbox.
func TestFailsClosed(t *testing.T) {
	a, system, toolbox := newAgent(t)
	system.activateErr = errors.New("RNDRESEEDCRNG: operation not permitted")
	if _, err := send(t, a, guestapi.PathActivate, guestapi.Activation{}); err == nil || !strings.Contains(err.Error(), "RNDRESEEDCRNG") {
		t.Fatalf("activation: %v, want the reason", err)
	}
	system.activateErr = nil
	if _, err := send(t, a, guestapi.PathActivate, guestapi.Activation{}); skerry.CodeOf(err) != skerry.CodeConflict {
		t.Errorf("second activation: %v, want code conflict", err)
	}
	if toolbox.activated {
		t.Error("the toolbox was opened")
	}
	if hello := a.sayHello(); hello.Activated {
		t.Error("hello says activated")
	}
}

// TestRehearsalDoesNotCount: a stage of its own answers, is gone after quiesce,
// and the real activation still comes.
func TestRehearsalDoesNotCount(t *testing.T) {
	a, system, toolbox := newAgent(t)
	mustSend(t, a, guestapi.PathPrepare)
	if got := ask(t, a); got != "" {
		t.Errorf("before a rehearsal the stage answers %q", got)
	}
	out, err := send(t, a, guestapi.PathRehearse, guestapi.Activation{User: "root", MAC: "02:00:00:00:00:01"})
	if err != nil {
		t.Fatal(err)
	}
	if mac := <-system.mac; mac != "02:00:00:00:00:01" {
		t.Errorf("hardware address %q in the rehearsal", mac)
	}
	if r := out.(guestapi.Rehearsal); len(r.Argv) == 0 {
		t.Error("nothing to run")
	}
	if got := ask(t, a); got != "stage" {
		t.Errorf("the stage answers %q", got)
	}
	if toolbox.activated || a.sayHello().Activated {
		t.Error("the rehearsal counted")
	}
	mustSend(t, a, guestapi.PathQuiesce)
	if !toolbox.stages[0].closed || system.quiesced != 1 {
		t.Errorf("stage closed: %v, quiesced %d times", toolbox.stages[0].closed, system.quiesced)
	}
	if got := ask(t, a); got != "" {
		t.Errorf("after quiesce the stage answers %q", got)
	}
	if _, err := send(t, a, guestapi.PathActivate, guestapi.Activation{MAC: "02:00:00:00:00:02"}); err != nil {
		t.Fatal(err)
	}
	if !toolbox.activated || system.activated != 2 {
		t.Errorf("toolbox %v, activated %d times, want the real one after the rehearsal", toolbox.activated, system.activated)
	}
	if mac := <-system.mac; mac != "02:00:00:00:00:02" {
		t.Errorf("hardware address %q", mac)
	}
}

// ask makes a request over a rehearsal stream; "" when the stream is closed.
func ask(t *testing.T, a *Agent) string {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	go a.Handle(t.Context(), guestapi.StreamRehearsal, theirs)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return ours, nil }}}
	resp, err := client.Get("http://guest/")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b := make([]byte, 16)
	n, _ := resp.Body.Read(b)
	return string(b[:n])
}
