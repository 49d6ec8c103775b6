package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/problem"
)

// RunOptions says what to run: exactly one of Argv and ShellCommand.
type RunOptions struct {
	Argv         []string // reaches the program unchanged
	ShellCommand string
	Cwd          string
	Env          map[string]string
	User         string
	Timeout      time.Duration // 0 is none; then the whole process tree is killed

	// Stdin is the program's input; nil is none. When the program ends before
	// Stdin does, Run returns all the same, and a Read that is under way goes
	// on: what it gets is lost.
	Stdin io.Reader
	// Stdout and Stderr get the output as it comes; nil discards. With a
	// terminal all output goes to Stdout.
	Stdout, Stderr io.Writer

	// Terminal runs the program on a pseudo terminal of this size.
	Terminal *skerry.Terminal
	// Resizes and Signals ("INT", "TERM") are passed on while the program
	// runs; nil channels never are.
	Resizes <-chan skerry.Terminal
	Signals <-chan string
}

// maxEvent bounds an event: a Process repeats the environment, in JSON.
const maxEvent = 8 << 20

// Run runs a program in the sandbox, copies its streams and returns how it
// ended. It returns an error, never a result, when the program could not be
// started or the connection broke: a result always comes from the sandbox.
// Cancelling ctx kills the program and all its children.
func (t *Toolbox) Run(ctx context.Context, o RunOptions) (skerry.ProcessResult, error) {
	req := skerry.RunRequest{ProcessRequest: skerry.ProcessRequest{
		Argv: o.Argv, ShellCommand: o.ShellCommand, Cwd: o.Cwd, Env: o.Env, User: o.User,
		TimeoutMs: o.Timeout.Milliseconds(), Terminal: o.Terminal,
	}}
	if o.Terminal != nil {
		req.Kind = "pty"
	}
	if o.Stdin != nil {
		req.Stdin = "pipe"
	}
	if o.Timeout > 0 && req.TimeoutMs == 0 {
		req.TimeoutMs = 1
	}
	sink := &sink{stdout: o.Stdout, stderr: o.Stderr}
	if o.Stdin == nil && o.Terminal == nil && o.Signals == nil {
		return t.runOneWay(ctx, req, sink)
	}
	return t.runBothWays(ctx, req, o, sink)
}

// sink takes what the sandbox sends, whichever carrier it comes by.
type sink struct {
	stdout, stderr io.Writer
	result         *skerry.ProcessResult
}

// output takes a piece of output.
func (s *sink) output(channel byte, data []byte) error {
	w := s.stdout
	switch channel {
	case skerry.RunStdout, skerry.RunPTY:
	case skerry.RunStderr:
		w = s.stderr
	default:
		return nil // a channel of a newer sandbox
	}
	if w == nil {
		return nil
	}
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// event takes an event; the result is set after "exit".
func (s *sink) event(data []byte) (skerry.RunEvent, error) {
	var ev skerry.RunEvent
	if err := json.Unmarshal(data, &ev); err != nil {
		return ev, fmt.Errorf("decode an event of the sandbox: %w", err)
	}
	switch ev.Type {
	case skerry.RunError:
		return ev, runError(ev)
	case skerry.RunExit:
		if ev.Process == nil || ev.Process.Reason == "" {
			return ev, errors.New("the sandbox sent an exit without a reason")
		}
		s.result = &ev.Process.ProcessResult
	}
	return ev, nil
}

// end is the outcome when nothing more comes. Without an "exit" event it is an
// error, whatever came before.
func (s *sink) end(err error) (skerry.ProcessResult, error) {
	if s.result != nil {
		return *s.result, nil
	}
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return skerry.ProcessResult{}, skerry.Errorf(skerry.CodeUnavailable, "the connection to the sandbox broke before the program ended")
	}
	return skerry.ProcessResult{}, err
}

func runError(ev skerry.RunEvent) error {
	if ev.Error == nil {
		return skerry.Errorf(skerry.CodeUnavailable, "the sandbox could not run the program: %s", ev.Message)
	}
	return &Error{Cause: &skerry.Error{Code: problem.CodeOf(ev.Error.StatusCode), Message: ev.Error.Message}, Status: ev.Error.StatusCode}
}

// runOneWay runs a program without input: one request, one stream of frames.
func (t *Toolbox) runOneWay(ctx context.Context, req skerry.RunRequest, s *sink) (skerry.ProcessResult, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return skerry.ProcessResult{}, fmt.Errorf("encode the request: %w", err)
	}
	resp, err := retry(ctx, false, func() (*http.Response, error) {
		return t.client.do(ctx, http.MethodPost, t.prefix+"/processes/run", nil, bytes.NewReader(body), "application/json")
	})
	if err != nil {
		return skerry.ProcessResult{}, err
	}
	defer resp.Body.Close()
	return s.end(s.readFrames(ctx, resp.Body))
}

// readFrames reads frames until "exit", the end, or an error.
func (s *sink) readFrames(ctx context.Context, r io.Reader) error {
	var buf []byte
	for s.result == nil {
		var channel byte
		var payload []byte
		var err error
		channel, payload, buf, err = skerry.ReadRunFrame(r, buf)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		if channel == skerry.RunEvents {
			_, err = s.event(payload)
		} else {
			err = s.output(channel, payload)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// runBothWays runs a program with input, a terminal or signals over a
// WebSocket.
func (t *Toolbox) runBothWays(ctx context.Context, req skerry.RunRequest, o RunOptions, s *sink) (skerry.ProcessResult, error) {
	header := http.Header{}
	t.client.setHeaders(header)
	conn, resp, err := websocket.Dial(ctx, t.client.url(t.prefix+"/processes/run", nil), &websocket.DialOptions{
		HTTPClient: t.client.http, HTTPHeader: header, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if resp != nil && resp.StatusCode >= 400 {
			return skerry.ProcessResult{}, responseError(resp)
		}
		return skerry.ProcessResult{}, connectError(ctx, t.client.base, err)
	}
	defer conn.CloseNow()
	conn.SetReadLimit(maxEvent)

	// A lost connection ends the writers, an end of the program all of them;
	// only a Read of o.Stdin under way cannot be ended.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := &input{conn: conn, credit: skerry.RunStdinWindow, changed: make(chan struct{}, 1)}
	if err := in.sendJSON(ctx, req); err != nil {
		return skerry.ProcessResult{}, err
	}
	var controls sync.WaitGroup
	defer controls.Wait()
	defer cancel()
	controls.Go(func() { in.forward(ctx, o.Resizes, o.Signals) })
	if o.Stdin != nil {
		go in.copyStdin(ctx, o.Stdin)
	}
	result, err := s.end(s.readMessages(ctx, conn, in))
	if err == nil {
		conn.Close(websocket.StatusNormalClosure, "")
	}
	return result, err
}

// readMessages reads messages until "exit", the end, or an error.
func (s *sink) readMessages(ctx context.Context, conn *websocket.Conn, in *input) error {
	for s.result == nil {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return io.ErrUnexpectedEOF
		}
		if kind == websocket.MessageBinary {
			if len(data) > 0 {
				err = s.output(data[0], data[1:])
			}
		} else {
			var ev skerry.RunEvent
			if ev, err = s.event(data); err == nil {
				in.event(ev)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
