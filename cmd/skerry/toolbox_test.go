package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"github.com/creack/pty"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

// toolbox speaks the toolbox's protocol for ordinary processes of this host and
// files below a directory.
type toolbox struct{ dir string }

func (tb toolbox) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /processes/run", tb.runStream)
	mux.HandleFunc("GET /processes/run", tb.runSocket)
	mux.HandleFunc("GET /files/info", tb.info)
	mux.HandleFunc("GET /files/download", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeFile(w, r, tb.path(r))
	})
	mux.HandleFunc("PUT /files/content", tb.put)
	mux.HandleFunc("GET /files/archive", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Skerry-Skipped")
		skipped := 0
		if err := client.Pack(tb.path(r), w, func(string) { skipped++ }); err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Skerry-Skipped", strconv.Itoa(skipped))
	})
	mux.HandleFunc("PUT /files/archive", func(w http.ResponseWriter, r *http.Request) {
		if err := errors.Join(os.MkdirAll(tb.path(r), 0o755), client.Extract(tb.path(r), r.Body)); err != nil {
			fail(w, http.StatusBadRequest, err)
		}
	})
	return mux
}

func (tb toolbox) path(r *http.Request) string { return filepath.Join(tb.dir, r.FormValue("path")) }

func fail(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(skerry.ToolboxError{StatusCode: status, Message: err.Error()})
}

func (tb toolbox) info(w http.ResponseWriter, r *http.Request) {
	info, err := os.Stat(tb.path(r))
	if err != nil {
		fail(w, http.StatusNotFound, err)
		return
	}
	json.NewEncoder(w).Encode(skerry.FileInfo{Name: info.Name(), IsDir: info.IsDir(), Size: info.Size(),
		Permissions: "0" + strconv.FormatUint(uint64(info.Mode().Perm()), 8)})
}

func (tb toolbox) put(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	mode, modeErr := strconv.ParseUint(r.FormValue("mode"), 8, 32)
	if err = errors.Join(err, modeErr); err == nil {
		err = os.WriteFile(tb.path(r), data, os.FileMode(mode))
	}
	if err != nil {
		fail(w, http.StatusBadRequest, err)
	}
}

// outlet sends a piece of output or an event.
type outlet func(channel byte, data []byte) error

type writer struct {
	send    outlet
	channel byte
}

func (w writer) Write(p []byte) (int, error) { return len(p), w.send(w.channel, p) }

func (tb toolbox) runStream(w http.ResponseWriter, r *http.Request) {
	var req skerry.RunRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	var mu sync.Mutex
	tb.run(r.Context(), req, nil, func(channel byte, data []byte) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := w.Write(skerry.AppendRunFrame(nil, channel, data))
		http.NewResponseController(w).Flush()
		return err
	})
}

func (tb toolbox) runSocket(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer conn.CloseNow()
	conn.SetReadLimit(8 << 20)
	var req skerry.RunRequest
	if _, first, err := conn.Read(r.Context()); err != nil || json.Unmarshal(first, &req) != nil {
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	tb.run(ctx, req, &socket{conn, cancel}, func(channel byte, data []byte) error {
		if channel == skerry.RunEvents {
			return conn.Write(ctx, websocket.MessageText, data)
		}
		return conn.Write(ctx, websocket.MessageBinary, append([]byte{channel}, data...))
	})
	conn.Close(websocket.StatusNormalClosure, "")
}

// socket is a connection whose loss ends the process.
type socket struct {
	*websocket.Conn
	lost context.CancelFunc
}

// run runs a process and reports its life. "DROP" as program breaks the
// connection instead.
func (tb toolbox) run(ctx context.Context, req skerry.RunRequest, conn *socket, send outlet) {
	event := func(ev skerry.RunEvent) {
		data, _ := json.Marshal(ev)
		send(skerry.RunEvents, data)
	}
	if req.Argv[0] == "DROP" {
		send(skerry.RunStdout, []byte("partial"))
		panic(http.ErrAbortHandler)
	}
	cmd := exec.CommandContext(ctx, req.Argv[0], req.Argv[1:]...)
	cmd.Dir = tb.dir
	cmd.Env = os.Environ()
	for k, v := range req.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.WaitDelay = 5 * time.Second
	start, wait, stdin := cmd.Start, cmd.Wait, io.WriteCloser(nil)
	if req.Terminal != nil {
		start, wait, stdin = onTerminal(cmd, req.Terminal, writer{send, skerry.RunPTY})
	} else {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.Stdout, cmd.Stderr = writer{send, skerry.RunStdout}, writer{send, skerry.RunStderr}
		if req.Stdin == "pipe" {
			stdin, _ = cmd.StdinPipe()
		}
	}
	if err := start(); err != nil {
		code := 127
		event(skerry.RunEvent{Type: skerry.RunExit, Process: &skerry.Process{ProcessResult: skerry.ProcessResult{
			Reason: skerry.ReasonFailed, ExitCode: &code, Error: err.Error()}}})
		return
	}
	event(skerry.RunEvent{Type: skerry.RunStarted})
	if conn != nil {
		go takeInput(ctx, conn, cmd, stdin, event)
	}
	result := skerry.ProcessResult{Reason: skerry.ReasonExited}
	if req.TimeoutMs > 0 {
		timer := time.AfterFunc(time.Duration(req.TimeoutMs)*time.Millisecond, func() {
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		})
		defer timer.Stop()
	}
	wait()
	code := cmd.ProcessState.ExitCode()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		code = 128 + int(status.Signal())
		result.Reason = skerry.ReasonSignaled
		if req.TimeoutMs > 0 {
			result.Reason = skerry.ReasonTimedOut
		}
	}
	result.ExitCode = &code
	event(skerry.RunEvent{Type: skerry.RunExit, Process: &skerry.Process{ProcessResult: result}})
}

func onTerminal(cmd *exec.Cmd, size *skerry.Terminal, out io.Writer) (start, wait func() error, stdin io.WriteCloser) {
	master, slave, err := pty.Open()
	if err != nil {
		return func() error { return err }, nil, nil
	}
	pty.Setsize(master, &pty.Winsize{Cols: uint16(size.Cols), Rows: uint16(size.Rows)})
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	copied := make(chan struct{})
	start = func() error {
		err := cmd.Start()
		slave.Close()
		go func() {
			defer close(copied)
			io.Copy(out, master)
		}()
		return err
	}
	wait = func() error {
		err := cmd.Wait()
		<-copied
		return err
	}
	return start, wait, terminalInput{master}
}

// terminalInput ends as a terminal does, with Ctrl-D.
type terminalInput struct{ io.Writer }

func (t terminalInput) Close() error {
	_, err := t.Write([]byte{4})
	return err
}

// takeInput passes on what the client sends.
func takeInput(ctx context.Context, conn *socket, cmd *exec.Cmd, stdin io.WriteCloser, event func(skerry.RunEvent)) {
	defer conn.lost()
	for {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			if stdin != nil && len(data) > 0 {
				if _, err := io.Copy(stdin, bytes.NewReader(data[1:])); err != nil {
					event(skerry.RunEvent{Type: skerry.RunStdinClosed})
					stdin = nil
					continue
				}
				event(skerry.RunEvent{Type: skerry.RunWindow, Bytes: int64(len(data) - 1)})
			}
			continue
		}
		var ev skerry.RunEvent
		if json.Unmarshal(data, &ev) != nil {
			return
		}
		switch {
		case ev.Type == skerry.RunEOF && stdin != nil:
			stdin.Close()
			stdin = nil
		case ev.Type == skerry.RunSignal && ev.Signal == "INT":
			syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		case ev.Type == skerry.RunSignal && ev.Signal == "TERM":
			syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		}
	}
}
