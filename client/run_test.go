package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"skerry.dev/skerry"
)

func newClient(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := New(Config{URL: srv.URL, APIKey: "key"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func exitFrame(code int) []byte {
	data, _ := json.Marshal(skerry.RunEvent{Type: skerry.RunExit, Process: &skerry.Process{ProcessResult: skerry.ProcessResult{Reason: skerry.ReasonExited, ExitCode: &code}}})
	return skerry.AppendRunFrame(nil, skerry.RunEvents, data)
}

// TestBrokenStreamIsNoResult cuts a stream at every byte.
func TestBrokenStreamIsNoResult(t *testing.T) {
	stream := append(skerry.AppendRunFrame(nil, skerry.RunStdout, []byte("out")), exitFrame(0)...)
	for n := range stream {
		c := newClient(t, func(w http.ResponseWriter, _ *http.Request) { w.Write(stream[:n]) })
		var out bytes.Buffer
		result, err := c.Toolbox("sbx_x").Run(t.Context(), RunOptions{Argv: []string{"true"}, Stdout: &out})
		if err == nil || result.ExitCode != nil {
			t.Fatalf("cut at %d of %d: %+v, %v", n, len(stream), result, err)
		}
	}
	c := newClient(t, func(w http.ResponseWriter, _ *http.Request) { w.Write(stream) })
	var out bytes.Buffer
	result, err := c.Toolbox("sbx_x").Run(t.Context(), RunOptions{Argv: []string{"true"}, Stdout: &out})
	if err != nil || *result.ExitCode != 0 || out.String() != "out" {
		t.Errorf("whole: %+v, %v, %q", result, err, out.String())
	}
}

// TestStdinKeepsToTheWindow sends more than the window to a sandbox that grants
// no more, then grants the rest.
func TestStdinKeepsToTheWindow(t *testing.T) {
	const total = 3 * skerry.RunStdinWindow
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer conn.CloseNow()
		conn.SetReadLimit(1 << 20)
		conn.Read(r.Context()) // the request
		received, granted := 0, skerry.RunStdinWindow
		for {
			kind, data, err := conn.Read(r.Context())
			if err != nil {
				return
			}
			if kind == websocket.MessageText {
				break
			}
			if received += len(data) - 1; received > granted {
				t.Errorf("%d bytes came, %d were granted", received, granted)
			}
			if received == granted {
				granted += skerry.RunStdinWindow
				conn.Write(r.Context(), websocket.MessageText, []byte(`{"type":"window","bytes":262144}`))
			}
		}
		if received != total {
			t.Errorf("%d bytes came, want %d", received, total)
		}
		conn.Write(r.Context(), websocket.MessageText, exitFrame(0)[skerry.RunHeader:])
	})
	if _, err := c.Toolbox("sbx_x").Run(t.Context(), RunOptions{Argv: []string{"cat"}, Stdin: bytes.NewReader(make([]byte, total))}); err != nil {
		t.Error(err)
	}
}

func TestErrorsOfTheSandbox(t *testing.T) {
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			conn, err := websocket.Accept(w, r, nil)
			if err == nil {
				conn.Write(r.Context(), websocket.MessageText, []byte(`{"type":"error","error":{"statusCode":400,"message":"no such user"}}`))
				conn.Close(websocket.StatusNormalClosure, "")
			}
			return
		}
		w.WriteHeader(http.StatusBadRequest)
		w.Write([]byte(`{"statusCode":400,"message":"no such user"}`))
	})
	for _, in := range []io.Reader{nil, bytes.NewReader(nil)} {
		_, err := c.Toolbox("sbx_x").Run(t.Context(), RunOptions{Argv: []string{"id"}, Stdin: in})
		if skerry.CodeOf(err) != skerry.CodeInvalid || err.Error() != "no such user" {
			t.Errorf("got %v (%s)", err, skerry.CodeOf(err))
		}
	}
}

// TestRetry: a broken connection is tried again for idempotent requests only.
func TestRetry(t *testing.T) {
	var calls atomic.Int64
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		w.Write([]byte(`{"id":"sbx_x"}`))
	})
	if sb, err := c.Sandbox(t.Context(), "x"); err != nil || sb.ID != "sbx_x" || calls.Load() != 2 {
		t.Errorf("get: %v, %v after %d calls", sb.ID, err, calls.Load())
	}
	calls.Store(0)
	if _, err := c.CreateSandbox(t.Context(), CreateSandbox{}); err != nil || calls.Load() != 2 {
		t.Errorf("create: %v after %d calls", err, calls.Load())
	}
	calls.Store(0)
	if _, err := c.Toolbox("sbx_x").Execute(t.Context(), skerry.ExecuteRequest{Command: "x"}); err == nil || calls.Load() != 1 {
		t.Errorf("execute: %v after %d calls, must not run twice", err, calls.Load())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	nobody, err := New(Config{URL: "http://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nobody.Sandbox(t.Context(), "x"); skerry.CodeOf(err) != skerry.CodeUnavailable {
		t.Errorf("nobody there: %v", err)
	}
}

// TestExecuteTimeout: a timeout is an error, and the output is there.
func TestExecuteTimeout(t *testing.T) {
	long := strings.Repeat("\x01", 1<<20) // six bytes each in JSON
	want := skerry.ExecuteResponse{ExitCode: 143, Reason: skerry.ReasonTimedOut, Result: long, Stdout: long, Stderr: long}
	c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusRequestTimeout)
		json.NewEncoder(w).Encode(skerry.ToolboxError{StatusCode: 408, Message: "command timed out after 1 s", Code: skerry.ToolboxExecTimeout, Execution: &want})
	})
	got, err := c.Toolbox("sbx_x").Execute(t.Context(), skerry.ExecuteRequest{Command: "x", Timeout: 1})
	if skerry.CodeOf(err) != skerry.CodeTimeout || got != want {
		t.Errorf("got %d bytes, reason %q, %v; want the output and a timeout", len(got.Result), got.Reason, err)
	}
}

func TestWait(t *testing.T) {
	status := skerry.StatusBooting
	c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(skerry.Sandbox{ID: "sbx_x", Status: status, Reason: "why"})
	})
	_, err := c.WaitSandbox(t.Context(), "x", 120*time.Millisecond, skerry.StatusRunning)
	if skerry.CodeOf(err) != skerry.CodeTimeout {
		t.Errorf("booting for ever: %v", err)
	}
	status = skerry.StatusFailed
	if sb, err := c.WaitSandbox(t.Context(), "x", 0, skerry.StatusRunning); skerry.CodeOf(err) != skerry.CodeConflict || sb.Status != status {
		t.Errorf("failed: %v, %v", sb.Status, err)
	}
	status = skerry.StatusRunning
	if _, err := c.WaitSandbox(t.Context(), "x", 0, skerry.StatusRunning); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.WaitSandbox(ctx, "x", 0, skerry.StatusStopped); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestWaitForgetsEarlierAnswers: what the last answer leaves out is not taken
// from an earlier one.
func TestWaitForgetsEarlierAnswers(t *testing.T) {
	asked := 0
	c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		img := skerry.Image{ID: "img_x", Status: skerry.ImageReady}
		if asked++; asked == 1 {
			img.Status, img.Progress = skerry.ImageBuilding, &skerry.PullProgress{Phase: "converting"}
		}
		json.NewEncoder(w).Encode(img)
	})
	img, err := c.WaitImage(t.Context(), "x", 0, nil)
	if err != nil || img.Progress != nil || asked != 2 {
		t.Errorf("got %+v, %v after %d requests; want no progress after 2", img, err, asked)
	}
}

func FuzzReadFrames(f *testing.F) {
	f.Add(append(skerry.AppendRunFrame(nil, skerry.RunStderr, []byte("x")), exitFrame(3)...))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Add(skerry.AppendRunFrame(nil, skerry.RunEvents, []byte(`{"type":"exit"}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &sink{stdout: io.Discard, stderr: io.Discard}
		result, err := s.end(s.readFrames(t.Context(), bytes.NewReader(data)))
		if err == nil && result.Reason == "" {
			t.Errorf("a result without a reason: %+v", result)
		}
	})
}
