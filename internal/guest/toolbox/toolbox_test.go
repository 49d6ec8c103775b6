package toolbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/toolbox"
	"skerry.dev/skerry/internal/guest/toolbox/process"
)

// testerID is a user without rights that exists in the tests' user database
// only.
const testerID = 61234

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "print-argv" {
		json.NewEncoder(os.Stdout).Encode(os.Args[2:])
		return
	}
	goleak.VerifyTestMain(m)
}

// box is a running toolbox and a client of it.
type box struct {
	*testing.T
	server *toolbox.Server
	url    string
	client *http.Client
	home   string
}

// newBox serves a toolbox as the test's own user.
func newBox(t *testing.T, change func(*toolbox.Defaults)) *box {
	t.Helper()
	root := t.TempDir()
	home := filepath.Join(root, "home")
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := home; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755) // the tester must get here; parents of the temporary directory may be others'
	}
	etc := filepath.Join(root, "etc")
	if err := os.Mkdir(etc, 0o755); err != nil {
		t.Fatal(err)
	}
	passwd := fmt.Sprintf("me:x:%d:%d::%s:/bin/sh\ntester:x:%d:%d::%s:/bin/bash\n", os.Getuid(), os.Getgid(), home, testerID, testerID, home)
	os.WriteFile(filepath.Join(etc, "passwd"), []byte(passwd), 0o644)
	os.WriteFile(filepath.Join(etc, "group"), []byte(fmt.Sprintf("tester:x:%d:\nextra:x:61300:other,tester\n", testerID)), 0o644)

	defaults := toolbox.Defaults{User: "me"}
	if change != nil {
		change(&defaults)
	}
	if defaults.User == "tester" {
		if err := os.Chown(home, testerID, testerID); err != nil {
			t.Fatal(err)
		}
	}
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	b := &box{T: t, home: home, server: toolbox.New(toolbox.Config{Spawner: process.Host{}, Logger: logger, Root: root, Version: "test"})}
	if _, err := b.server.Activate(defaults); err != nil {
		t.Fatal(err)
	}
	listener := httptest.NewServer(b.server)
	b.url, b.client = listener.URL, listener.Client()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := b.server.Close(ctx, 100*time.Millisecond); err != nil {
			t.Error(err)
		}
		listener.CloseClientConnections()
		listener.Close()
	})
	return b
}

func asTester(d *toolbox.Defaults) { d.User = "tester" }

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to act as another user")
	}
}

// do sends a request and returns status and body.
func (b *box) do(method, path string, body any) (int, []byte) {
	b.Helper()
	var reader io.Reader
	switch v := body.(type) {
	case nil:
	case io.Reader:
		reader = v
	case []byte:
		reader = bytes.NewReader(v)
	default:
		text, err := json.Marshal(v)
		if err != nil {
			b.Fatal(err)
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequest(method, b.url+path, reader)
	if err != nil {
		b.Fatal(err)
	}
	resp, err := b.client.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, text
}

// call sends a request, wants a status and decodes the answer.
func call[T any](b *box, want int, method, path string, body any) T {
	b.Helper()
	status, text := b.do(method, path, body)
	if status != want {
		b.Fatalf("%s %s: status %d, want %d: %s", method, path, status, want, text)
	}
	var v T
	if len(text) > 0 {
		if err := json.Unmarshal(text, &v); err != nil {
			b.Fatalf("%s %s: %v: %s", method, path, err, text)
		}
	}
	return v
}

func (b *box) wantError(status int, code, method, path string, body any) skerry.ToolboxError {
	b.Helper()
	e := call[skerry.ToolboxError](b, status, method, path, body)
	if e.Code != code || e.StatusCode != status || e.Path == "" || e.Method != method || e.Timestamp.IsZero() || e.Message == "" {
		b.Errorf("%s %s: error %+v, want status %d and code %s", method, path, e, status, code)
	}
	return e
}

func (b *box) execute(req skerry.ExecuteRequest) skerry.ExecuteResponse {
	b.Helper()
	return call[skerry.ExecuteResponse](b, 200, "POST", "/process/execute", req)
}

func (b *box) start(req skerry.ProcessRequest) skerry.Process {
	b.Helper()
	return call[skerry.Process](b, 201, "POST", "/processes", req)
}

func (b *box) wait(id skerry.ProcessID) skerry.ProcessResult {
	b.Helper()
	return call[skerry.ProcessResult](b, 200, "GET", "/processes/"+string(id)+"/wait", nil)
}

// run is what a client of POST /processes/run gets.
type run struct {
	stdout, stderr bytes.Buffer
	exit           *skerry.Process
}

// run runs a process through POST /processes/run to its end.
func (b *box) run(req skerry.RunRequest) *run {
	b.Helper()
	text, err := json.Marshal(req)
	if err != nil {
		b.Fatal(err)
	}
	resp, err := b.client.Post(b.url+"/processes/run", "application/json", bytes.NewReader(text))
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		body, _ := io.ReadAll(resp.Body)
		b.Fatalf("run: status %d: %s", resp.StatusCode, body)
	}
	r, err := readRun(resp.Body)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

func readRun(body io.Reader) (*run, error) {
	r := &run{}
	var buf []byte
	for {
		channel, payload, grown, err := skerry.ReadRunFrame(body, buf)
		buf = grown
		if err == io.EOF {
			if r.exit == nil {
				return r, io.ErrUnexpectedEOF
			}
			return r, nil
		}
		if err != nil {
			return r, err
		}
		switch channel {
		case skerry.RunStdout:
			r.stdout.Write(payload)
		case skerry.RunStderr:
			r.stderr.Write(payload)
		case skerry.RunEvents:
			var e skerry.RunEvent
			if err := json.Unmarshal(payload, &e); err != nil {
				return r, err
			}
			if e.Type == skerry.RunExit {
				r.exit = e.Process
			}
		}
	}
}

func (r *run) code(t testing.TB) int {
	t.Helper()
	if r.exit == nil || r.exit.ExitCode == nil {
		t.Fatalf("no exit code: %+v", r.exit)
	}
	return *r.exit.ExitCode
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 15 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func alive(pid string) bool {
	stat, err := os.ReadFile("/proc/" + strings.TrimSpace(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}
