package toolbox_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/toolbox/process"
)

// socket is a client of GET /processes/run or …/attach.
type socket struct {
	*testing.T
	conn   *websocket.Conn
	output map[byte]*bytes.Buffer
	events []skerry.RunEvent
	raw    bool
	window int64
}

func (b *box) dial(path string) *socket {
	b.Helper()
	conn, _, err := websocket.Dial(b.Context(), b.url+path, &websocket.DialOptions{HTTPClient: b.client})
	if err != nil {
		b.Fatal(err)
	}
	conn.SetReadLimit(2 << 20)
	b.Cleanup(func() { conn.CloseNow() })
	return &socket{T: b.T, conn: conn, output: map[byte]*bytes.Buffer{}, window: skerry.RunStdinWindow}
}

func (b *box) dialRun(req skerry.RunRequest) *socket {
	b.Helper()
	s := b.dial("/processes/run")
	s.send(req)
	return s
}

func (s *socket) send(v any) {
	s.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		s.Fatal(err)
	}
	if err := s.conn.Write(s.Context(), websocket.MessageText, text); err != nil {
		s.Fatal(err)
	}
}

func (s *socket) input(data []byte) error {
	return s.conn.Write(s.Context(), websocket.MessageBinary, append([]byte{skerry.RunStdin}, data...))
}

// next reads one message.
func (s *socket) next() (*skerry.RunEvent, error) {
	kind, message, err := s.conn.Read(s.Context())
	if err != nil {
		return nil, err
	}
	if kind == websocket.MessageText {
		var e skerry.RunEvent
		if err := json.Unmarshal(message, &e); err != nil {
			return nil, err
		}
		s.events = append(s.events, e)
		return &e, nil
	}
	channel := skerry.RunPTY
	if !s.raw {
		channel, message = message[0], message[1:]
	}
	if s.output[channel] == nil {
		s.output[channel] = &bytes.Buffer{}
	}
	s.output[channel].Write(message)
	return nil, nil
}

// until reads until an event of a type.
func (s *socket) until(kind string) skerry.RunEvent {
	s.Helper()
	for {
		e, err := s.next()
		if err != nil {
			s.Fatalf("before %s: %v", kind, err)
		}
		if e != nil && e.Type == kind {
			return *e
		}
	}
}

func (s *socket) text(channel byte) string {
	if s.output[channel] == nil {
		return ""
	}
	return s.output[channel].String()
}

// Case 6, through the run protocol: any amount, also to a slow reader.
func TestRunStdin(t *testing.T) {
	b := newBox(t, nil)
	data := make([]byte, 8<<20)
	rand.Read(data)
	for name, script := range map[string]string{"quick": "sha256sum", "slow": "sleep 0.3; sha256sum"} {
		t.Run(name, func(t *testing.T) {
			req := sh(script)
			req.Stdin = process.StdinPipe
			s := b.dialRun(skerry.RunRequest{ProcessRequest: req})
			sent := make(chan error, 1)
			go func() {
				for _, chunk := range bytesChunks(data, 60_000) {
					if err := s.input(chunk); err != nil {
						sent <- err
						return
					}
				}
				text, _ := json.Marshal(skerry.RunEvent{Type: skerry.RunEOF})
				sent <- s.conn.Write(s.Context(), websocket.MessageText, text)
			}()
			exit := s.until(skerry.RunExit)
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			if got, want := s.text(skerry.RunStdout), fmt.Sprintf("%x  -\n", sha256.Sum256(data)); got != want || *exit.Process.ExitCode != 0 {
				t.Errorf("digest %q, want %q", got, want)
			}
			granted := int64(0)
			for _, e := range s.events {
				if e.Type == skerry.RunWindow {
					granted += e.Bytes
				}
			}
			if granted < int64(len(data))-skerry.RunStdinWindow {
				t.Errorf("only %d of %d bytes were granted", granted, len(data))
			}
		})
	}
}

func bytesChunks(data []byte, n int) [][]byte {
	var all [][]byte
	for len(data) > 0 {
		k := min(n, len(data))
		all = append(all, data[:k])
		data = data[k:]
	}
	return all
}

func TestRunStdinClosed(t *testing.T) {
	b := newBox(t, nil)
	req := sh("exec 0<&-; sleep 0.5; echo end")
	req.Stdin = process.StdinPipe
	s := b.dialRun(skerry.RunRequest{ProcessRequest: req})
	s.until(skerry.RunStarted)
	go func() {
		for _, chunk := range bytesChunks(make([]byte, 8<<20), 60_000) {
			if s.input(chunk) != nil {
				return
			}
		}
	}()
	s.until(skerry.RunStdinClosed)
	if exit := s.until(skerry.RunExit); *exit.Process.ExitCode != 0 || s.text(skerry.RunStdout) != "end\n" {
		t.Errorf("exit %+v, stdout %q", exit.Process, s.text(skerry.RunStdout))
	}
}

// Case 5: a client whose input never ends gets the end of its command at once,
// and signals pass data that nobody reads.
func TestRunWithEndlessInput(t *testing.T) {
	b := newBox(t, nil)
	req := skerry.ProcessRequest{Argv: []string{"echo", "hi"}, Stdin: process.StdinPipe}
	s := b.dialRun(skerry.RunRequest{ProcessRequest: req})
	if exit := s.until(skerry.RunExit); *exit.Process.ExitCode != 0 || s.text(skerry.RunStdout) != "hi\n" {
		t.Errorf("exit %+v, stdout %q", exit.Process, s.text(skerry.RunStdout))
	}

	req = skerry.ProcessRequest{Argv: []string{"sleep", "60"}, Stdin: process.StdinPipe, TimeoutMs: 300}
	s = b.dialRun(skerry.RunRequest{ProcessRequest: req})
	if exit := s.until(skerry.RunExit); exit.Process.Reason != skerry.ReasonTimedOut {
		t.Errorf("exit %+v", exit.Process)
	}

	req.TimeoutMs = 0
	s = b.dialRun(skerry.RunRequest{ProcessRequest: req})
	for _, chunk := range bytesChunks(make([]byte, skerry.RunStdinWindow), 32<<10) {
		if err := s.input(chunk); err != nil {
			t.Fatal(err)
		}
	}
	s.send(skerry.RunEvent{Type: skerry.RunSignal, Signal: "INT"})
	if exit := s.until(skerry.RunExit); exit.Process.Signal != "INT" || *exit.Process.ExitCode != 130 {
		t.Errorf("exit %+v", exit.Process)
	}
}

func TestRunTerminal(t *testing.T) {
	b := newBox(t, nil)
	req := sh(`stty size; read line; echo "got $line on $TERM"; stty size; test -t 1 && exit 5`)
	req.Kind, req.Terminal = process.KindPTY, &skerry.Terminal{Cols: 90, Rows: 30}
	s := b.dialRun(skerry.RunRequest{ProcessRequest: req})
	for !strings.Contains(s.text(skerry.RunPTY), "30 90") {
		if _, err := s.next(); err != nil {
			t.Fatal(err)
		}
	}
	s.send(skerry.RunEvent{Type: skerry.RunResize, Cols: 100, Rows: 40})
	if err := s.input([]byte("hello\r")); err != nil {
		t.Fatal(err)
	}
	exit := s.until(skerry.RunExit)
	out := s.text(skerry.RunPTY)
	if *exit.Process.ExitCode != 5 || !strings.Contains(out, "got hello on xterm-256color\r\n40 100\r\n") {
		t.Errorf("exit %+v, output %q", exit.Process, out)
	}
}

func TestAttach(t *testing.T) {
	b := newBox(t, nil)
	p := b.start(skerry.ProcessRequest{Kind: process.KindPTY, ShellCommand: `echo first; read x; echo "x=$x"`, Shell: "sh"})
	s := b.dial("/processes/" + string(p.ID) + "/attach")
	s.raw = true
	for !strings.Contains(s.text(skerry.RunPTY), "first") {
		if _, err := s.next(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.conn.Write(t.Context(), websocket.MessageBinary, []byte("abc\r")); err != nil {
		t.Fatal(err)
	}
	s.until(skerry.RunExit)
	if out := s.text(skerry.RunPTY); !strings.HasPrefix(out, "first\r\n") || !strings.HasSuffix(out, "x=abc\r\n") {
		t.Errorf("output %q", out)
	}
	// A later client replays.
	s = b.dial("/processes/" + string(p.ID) + "/attach")
	s.raw = true
	s.until(skerry.RunExit)
	if out := s.text(skerry.RunPTY); !strings.HasPrefix(out, "first\r\n") || !strings.HasSuffix(out, "x=abc\r\n") {
		t.Errorf("replayed %q", out)
	}
}

func TestRunRefused(t *testing.T) {
	b := newBox(t, nil)
	s := b.dialRun(skerry.RunRequest{})
	if e := s.until(skerry.RunError); e.Error.Code != skerry.ToolboxInvalidBody {
		t.Errorf("error %+v", e.Error)
	}
	s = b.dial("/processes/run")
	s.send(map[string]any{"argv": []string{"true"}, "odd": 1})
	if e := s.until(skerry.RunError); e.Error.Code != skerry.ToolboxInvalidBody {
		t.Errorf("error %+v", e.Error)
	}
	b.wantError(400, skerry.ToolboxInvalidBody, "POST", "/processes/run", map[string]any{"argv": []string{"cat"}, "stdin": "pipe"})
	b.wantError(400, skerry.ToolboxInvalidBody, "POST", "/processes/run", map[string]any{"argv": []string{"cat"}, "onDisconnect": "x"})
}

// Case 13: a broken connection is an error for the client, never an exit code;
// the process ends, or goes on if the client wanted that.
func TestDisconnect(t *testing.T) {
	b := newBox(t, nil)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		text, _ := json.Marshal(skerry.RunRequest{ProcessRequest: sh("echo up; sleep 30")})
		req, _ := http.NewRequestWithContext(ctx, "POST", b.url+"/processes/run", bytes.NewReader(text))
		resp, err := b.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := skerry.ReadRunFrame(resp.Body, nil); err != nil {
			t.Fatal(err)
		}
		cancel()
		if r, err := readRun(resp.Body); err == nil || r.exit != nil {
			t.Fatalf("a cut connection gave %+v", r.exit)
		}
		resp.Body.Close()
	}
	eventually(t, "the processes end", func() bool { return b.server.Running() == 0 })

	s := b.dialRun(skerry.RunRequest{ProcessRequest: sh("sleep 30 & wait")})
	s.until(skerry.RunStarted)
	s.conn.CloseNow()
	eventually(t, "the process ends", func() bool { return b.server.Running() == 0 })

	s = b.dialRun(skerry.RunRequest{ProcessRequest: sh("echo up; sleep 0.5; echo end"), OnDisconnect: skerry.DisconnectContinue})
	started := s.until(skerry.RunStarted)
	s.conn.CloseNow()
	if got := b.wait(started.Process.ID); *got.ExitCode != 0 {
		t.Errorf("result %+v", got)
	}
	if got := b.logText(started.Process.ID); got != "up\nend\n" {
		t.Errorf("log %q", got)
	}
}

// An answer that is cut by the server is an error for the client too.
func TestServerCutsConnection(t *testing.T) {
	b := newBox(t, nil)
	text, _ := json.Marshal(skerry.RunRequest{ProcessRequest: sh("yes")})
	resp, err := b.client.Post(b.url+"/processes/run", "", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	// The client reads nothing: closing must not wait for it for ever.
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if err := b.server.Close(ctx, 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if r, err := readRun(resp.Body); err == nil && r.exit.Reason != skerry.ReasonSandboxStopped {
		t.Errorf("the client got %+v", r.exit)
	}
}

// Output is held back, not stored, while the client does not read.
func TestRunBackPressure(t *testing.T) {
	b := newBox(t, nil)
	text, _ := json.Marshal(skerry.RunRequest{ProcessRequest: sh("head -c 30000000 /dev/zero; echo done >&2")})
	resp, err := b.client.Post(b.url+"/processes/run", "", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r, err := readRun(io.MultiReader(resp.Body))
	if err != nil {
		t.Fatal(err)
	}
	if r.stdout.Len() != 30_000_000 || r.stderr.String() != "done\n" {
		t.Errorf("%d bytes, stderr %q", r.stdout.Len(), r.stderr.String())
	}
}
