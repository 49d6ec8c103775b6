// Package scenario tests the built binary from outside: one server, real
// microVMs, images that other tools made.
package scenario

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testimage"
	"skerry.dev/skerry/test/testserver"
)

// What all tests share; set by TestMain and not changed after.
var (
	server  *testserver.Server
	layout  testimage.Layout
	tempDir string
)

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// runTests starts the server, runs the tests, and fails if anything is left
// when all sandboxes are deleted and the server has ended.
func runTests(m *testing.M) (code int, err error) {
	ctx := context.Background()
	if tempDir, err = os.MkdirTemp("", "skerry-images-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tempDir)) }()
	if layout, err = testimage.Build(ctx, tempDir); err != nil {
		return 1, err
	}
	dir, err := testserver.NewDir(0)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, dir.Remove()) }()
	if server, err = testserver.Start(ctx, dir, testserver.Options{}); err != nil {
		return 1, err
	}
	if err := importImages(ctx); err != nil {
		return 1, errors.Join(err, server.Kill())
	}
	code = m.Run()
	if code != 0 {
		fmt.Fprintf(os.Stderr, "end of the server's log:\n%s\n", server.LogTail(100))
	}
	return code, shutDown(ctx)
}

func importImages(ctx context.Context) error {
	for _, img := range []struct{ tag, kind string }{{testimage.Shell, "docker-archive"}, {testimage.Static, "oci-archive"}} {
		file := filepath.Join(tempDir, img.tag+".tar")
		if err := layout.Archive(ctx, img.tag, img.kind, file); err != nil {
			return err
		}
		args := []string{"image", "import", file, "--name", img.tag}
		if img.tag == testimage.Shell {
			args = append(args, "--default")
		}
		if out, err := server.Command(ctx, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("import %s: %w: %s", img.tag, err, out)
		}
	}
	return nil
}

// shutDown deletes what tests have left, so that no process outlives them, and
// reports it.
func shutDown(ctx context.Context) error {
	var errs []error
	for sb, err := range server.Client.AllSandboxes(ctx, skerry.SandboxFilter{}) {
		errs = append(errs, err, fmt.Errorf("sandbox %s (%s) was not deleted by its test", sb.Name, sb.Status))
	}
	errs = append(errs, server.DeleteAll(ctx))
	errs = append(errs, server.Stop())
	left, err := server.Leftovers()
	errs = append(errs, err)
	for _, l := range left {
		errs = append(errs, fmt.Errorf("left over: %s", l))
	}
	return errors.Join(errs...)
}

// runTimeout bounds one call of the command line.
const runTimeout = 2 * time.Minute

// result is how a call of the command line ended.
type result struct {
	stdout, stderr string
	code           int
}

// cli calls the command line without input.
func cli(t *testing.T, args ...string) result {
	t.Helper()
	return cliInput(t, "", args...)
}

// cliInput calls the command line with input.
func cliInput(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	cmd := server.Command(ctx, args...)
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	return finish(t, cmd)
}

func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%q: %v\n%s", cmd.Args, err, stderr.String())
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// mustCLI calls the command line and fails the test unless it exits with 0. It
// returns standard output.
func mustCLI(t *testing.T, args ...string) string {
	t.Helper()
	r := cli(t, args...)
	if r.code != 0 {
		t.Fatalf("skerry %q: exit code %d\n%s%s", args, r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// sandbox is a running sandbox of a test.
type sandbox struct {
	skerry.Sandbox
	*client.Toolbox
}

// create makes a sandbox that is deleted when the test ends.
func create(t *testing.T, req client.CreateSandbox) sandbox {
	t.Helper()
	sb, err := server.Client.CreateSandbox(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, sb.ID) })
	sb, err = server.Client.WaitSandbox(t.Context(), string(sb.ID), time.Minute, skerry.StatusRunning)
	if err != nil {
		t.Fatalf("create: %v (%s)", err, sb.Reason)
	}
	return sandbox{sb, server.Client.Toolbox(sb.ID)}
}

// remove deletes a sandbox and waits until nothing is left of it.
func remove(t *testing.T, id skerry.SandboxID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := server.Client.DeleteSandbox(ctx, string(id)); err != nil && skerry.CodeOf(err) != skerry.CodeGone {
		t.Errorf("delete %s: %v", id, err)
		return
	}
	if _, err := server.Client.WaitSandbox(ctx, string(id), time.Minute, skerry.StatusDeleted); err != nil {
		t.Errorf("wait for the deletion of %s: %v", id, err)
	}
}

// root runs a program as root and returns how it ended.
func (s sandbox) root(t *testing.T, argv ...string) skerry.ExecuteResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	r, err := s.Execute(ctx, skerry.ExecuteRequest{Argv: argv, User: "root"})
	if err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
	return r
}

// mustRoot is root for a program that must succeed; it returns its output.
func (s sandbox) mustRoot(t *testing.T, argv ...string) string {
	t.Helper()
	r := s.root(t, argv...)
	if r.ExitCode != 0 {
		t.Fatalf("%q: exit code %d (%s)\n%s%s", argv, r.ExitCode, r.Reason, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// shell runs a script as root.
func (s sandbox) shell(t *testing.T, script string) string {
	t.Helper()
	return s.mustRoot(t, "sh", "-c", script)
}

// decode reads JSON.
func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return v
}

// eventually waits until check returns "", or fails with what it returned last.
func eventually(t *testing.T, within time.Duration, check func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	ticks := time.NewTicker(50 * time.Millisecond)
	defer ticks.Stop()
	for {
		problem := check()
		if problem == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", within, problem)
		case <-ticks.C:
		}
	}
}

func pointer[T any](v T) *T { return &v }

// sorted is a text with its lines in order.
func sorted(text string) string {
	return strings.Join(slices.Sorted(strings.Lines(text)), "")
}

func clientCreate(image string) client.CreateSandbox { return client.CreateSandbox{Image: image} }

func sha256Of(s string) [sha256.Size]byte { return sha256.Sum256([]byte(s)) }

// startOther starts a server of its own with the shell image; when the test
// ends, its sandboxes are deleted and nothing of it may be left.
func startOther(t *testing.T, o testserver.Options) *testserver.Server {
	t.Helper()
	dir, err := testserver.NewDir(0)
	if err != nil {
		t.Fatal(err)
	}
	other, err := testserver.Start(t.Context(), dir, o)
	if err != nil {
		dir.Remove()
		t.Fatal(err)
	}
	t.Cleanup(func() { endOther(t, other) })
	if err := other.Import(t.Context(), filepath.Join(tempDir, testimage.Shell+".tar"), testimage.Shell); err != nil {
		t.Fatal(err)
	}
	return other
}

func endOther(t *testing.T, other *testserver.Server) {
	t.Helper()
	if t.Failed() {
		t.Logf("end of the server's log:\n%s", other.LogTail(40))
	}
	if err := other.DeleteAll(context.Background()); err != nil {
		t.Error(err)
	}
	if err := other.Stop(); err != nil {
		t.Error(err)
	}
	left, err := other.Leftovers()
	if err != nil || len(left) > 0 {
		t.Errorf("left over: %q, %v", left, err)
	}
	if err := other.Remove(); err != nil {
		t.Error(err)
	}
}

func runningToolbox(t *testing.T, s *testserver.Server, id skerry.SandboxID) *client.Toolbox {
	t.Helper()
	if sb, err := s.Client.WaitSandbox(t.Context(), string(id), time.Minute, skerry.StatusRunning); err != nil {
		t.Fatalf("%v (%s)", err, sb.Reason)
	}
	return s.Client.Toolbox(id)
}

// execute runs a program that must succeed and returns its output.
func execute(t *testing.T, tb *client.Toolbox, argv ...string) string {
	t.Helper()
	r, err := tb.Execute(t.Context(), skerry.ExecuteRequest{Argv: argv})
	if err != nil || r.ExitCode != 0 {
		t.Fatalf("%q: %+v, %v", argv, r, err)
	}
	return r.Stdout
}
