package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/api"
	v2 "skerry.dev/skerry/internal/api/v2"
	"skerry.dev/skerry/internal/gateway"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"skerry": main,
		"args":   printArgs,
		"hold":   holdStdin,
	})
}

const testKey = "test-key"

// TestScripts runs the command line against the real API and gateway; only
// what is behind them is a stand-in.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			guest := filepath.Join(env.WorkDir, "guest")
			if err := os.Mkdir(guest, 0o755); err != nil {
				return err
			}
			env.Setenv("SKERRY_API_URL", serve(t, env.WorkDir, guest))
			env.Setenv("SKERRY_API_KEY", testKey)
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
			env.Setenv("HOME", env.WorkDir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"interrupt": interruptWhen, "exits": exits},
	})
}

func serve(t testing.TB, dir, guest string) string {
	t.Helper()
	tb := httptest.NewServer(toolbox{guest}.handler())
	t.Cleanup(tb.Close)
	c := newControl(t, dir, tb.Listener.Addr().String())
	log := slog.New(slog.DiscardHandler)
	authenticate := func(_ context.Context, token string) (skerry.KeyID, error) {
		if token != testKey {
			return "", skerry.Errorf(skerry.CodeUnauthorized, "the API key is not valid")
		}
		return "key_test", nil
	}
	spool := filepath.Join(dir, "spool")
	if err := os.Mkdir(spool, 0o755); err != nil {
		t.Fatal(err)
	}
	var h http.Handler = api.New(api.Config{
		Logger: log, Authenticate: authenticate,
		V2:      v2.New(v2.Config{Control: c, Logger: log, Version: "9.9.9", Region: "local", SpoolDir: spool, Policy: skerry.PolicyDefaults{MaxTimeoutSeconds: 7200}}),
		Toolbox: gateway.New(gateway.Config{Dialer: c, Logger: log}),
	})
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

// interruptWhen is the script command "interrupt FILE": once FILE exists, it
// sends an interrupt to the background command.
func interruptWhen(ts *testscript.TestScript, _ bool, args []string) {
	name := ts.MkAbs(args[0])
	deadline := time.Now().Add(20 * time.Second)
	for {
		if _, err := os.Stat(name); err == nil {
			break
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s never appeared", name)
		}
		time.Sleep(10 * time.Millisecond) // files have no channel
	}
	for _, cmd := range ts.BackgroundCmds() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
			ts.Fatalf("interrupt: %v", err)
		}
	}
}

// exits is the script command "exits CODE COMMAND…".
func exits(ts *testscript.TestScript, _ bool, args []string) {
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}
