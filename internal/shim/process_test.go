package shim

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
)

// TestMain is also the shim that tests start: one whose hypervisor is missing,
// which is all that these tests need of it.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "shim" {
		spec, err := ReadSpec(os.Args[2])
		if err != nil {
			panic(err)
		}
		err = Run(context.Background(), Config{Dir: os.Args[2], Spec: spec, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
			Listening: os.NewFile(FDListening, "listening"),
			NewDriver: func(DriverSpec) (machine.Driver, error) { return missing{}, nil },
			NewNetwork: func(NetworkSpec, *slog.Logger, *os.File) (Network, error) {
				return silent{}, nil
			}})
		if err != nil {
			io.WriteString(os.Stderr, err.Error()+"\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

type missing struct{}

func (missing) Start(context.Context, machine.Config) (machine.Machine, error) {
	return nil, skerry.Errorf(skerry.CodeUnavailable, "no hypervisor here")
}
func (missing) Version(context.Context) (string, error) { return "none", nil }
func (missing) Accel() string                           { return "tcg" }

type silent struct{}

func (silent) Run(ctx context.Context) error { <-ctx.Done(); return nil }

var argv = []string{os.Args[0], "shim"}

func TestFailedMachineIsTold(t *testing.T) {
	dir := deepDir(t)
	if err := os.WriteFile(filepath.Join(dir, ScratchFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	id := skerry.NewMachineID()
	p, err := Start(t.Context(), argv, dir, Spec{MachineID: id}, Source{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill(context.Background())
	st, err := p.Client.WaitChange(t.Context(), PhaseStarting)
	if err != nil || st.Phase != PhaseFailed || st.MachineID != id || !strings.Contains(st.Error, "no hypervisor here") {
		t.Fatalf("status %+v, %v; want failed, with the driver's reason", st, err)
	}
	if _, err := p.Client.Activate(t.Context(), ActivateRequest{SandboxID: "sbx_x"}); skerry.CodeOf(err) != skerry.CodeUnavailable {
		t.Errorf("activate a failed machine: %v, want code unavailable", err)
	}
	conn, err := p.Client.DialToolbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("toolbox of a failed machine: read %d, %v; want a closed connection", n, err)
	}
	conn.Close()

	// A successor finds it by what is in the directory.
	found, last, alive := Find(dir)
	if !alive || found.PID() != p.PID() || last.Phase != PhaseFailed {
		t.Errorf("Find = %v, %+v, %v; want the failed shim, alive", found, last, alive)
	}
	if err := found.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, alive := Find(dir); alive {
		t.Error("the shim lives after Kill")
	}
}

func TestStartFailsAtOnce(t *testing.T) {
	if _, err := Start(t.Context(), []string{"/nonexistent/skerry"}, t.TempDir(), Spec{}, Source{}); err == nil {
		t.Error("start of a missing binary succeeded")
	}
	_, err := Start(t.Context(), []string{"/bin/sh", "-c", "echo last words >&2; exit 3"}, t.TempDir(), Spec{}, Source{})
	if err == nil || !strings.Contains(err.Error(), "last words") {
		t.Errorf("start of a shim that ends at once: %v, want its last words", err)
	}
}

// TestHangingShim is killed although it neither listens nor heeds a signal.
func TestHangingShim(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	done := make(chan error, 1)
	go func() {
		_, err := Start(ctx, []string{"/bin/sh", "-c", "trap '' TERM; echo $$ >" + pidFile + ".new; mv " + pidFile + ".new " + pidFile + "; exec sleep 600"}, dir, Spec{}, Source{})
		done <- err
	}()
	for {
		if _, err := os.Stat(pidFile); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("start of a hanging shim succeeded")
	}
}

// TestKillIsOfTheVeryProcess: a pid that belongs to another process by now is
// left alone.
func TestKillIsOfTheVeryProcess(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	ticks, err := StartTicks(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	st := Status{Version: SpecVersion, MachinePID: cmd.Process.Pid, MachineStartTicks: ticks + 1}
	if err := writeJSON(filepath.Join(dir, StatusFile), st); err != nil {
		t.Fatal(err)
	}
	if err := KillLeftover(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if !Alive(cmd.Process.Pid, ticks) {
		t.Fatal("a process with another start time was killed")
	}
	st.MachineStartTicks = ticks
	if err := writeJSON(filepath.Join(dir, StatusFile), st); err != nil {
		t.Fatal(err)
	}
	if err := KillLeftover(t.Context(), dir); err != nil {
		t.Error(err)
	}
	<-ended
	if Alive(cmd.Process.Pid, ticks) {
		t.Error("the process is alive")
	}
}

// TestSocketInDeepDirectory: paths of sockets have room for 107 bytes only.
func TestSocketInDeepDirectory(t *testing.T) {
	dir := deepDir(t)
	for range 2 { // the second time over a stale socket
		l, err := listen(dir, "s.sock")
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err == nil {
				c.Close()
			}
			got <- err
		}()
		var c net.Conn
		if c, err = dial(t.Context(), dir, "s.sock"); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}

func deepDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}
