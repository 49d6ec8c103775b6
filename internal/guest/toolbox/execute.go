package toolbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/toolbox/process"
)

// executeKeep is how many bytes of the head, and again of the tail, of each
// stream POST /process/execute keeps.
const executeKeep = 512 << 10

// execute is POST /process/execute: run a command to its end and return its
// output. The command ends with the request: when the client goes away it is
// terminated. When the whole link is lost it goes on, as any run. A timeout is
// an error, which carries the output up to it.
func execute(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	var req skerry.ExecuteRequest
	if err := readJSON(w, r, maxInputBody, &req); err != nil {
		return err
	}
	start, separate, err := executeRequest(&req)
	if err != nil {
		return err
	}
	p, follower, err := box.table.Start(start, process.Options{Combined: !separate, Follow: true, UntilSeen: true})
	if err != nil {
		return err
	}
	defer follower.Close()
	stopInput := feedInput(context.WithoutCancel(r.Context()), p, req.Stdin)
	defer stopInput()
	result := &executeOutput{separate: separate}
	for {
		frame, err := follower.Next(r.Context())
		if err != nil {
			break // the end, or the client has gone
		}
		result.add(frame)
	}
	if r.Context().Err() != nil {
		follower.Close() // nobody reads on
		disconnected(r.Context(), p, &skerry.RunRequest{OnDisconnect: skerry.DisconnectKill})
		if req.Stdin != "" {
			<-p.Done() // the rest of it is here
		}
		return errors.Join(errAborted, context.Cause(r.Context()))
	}
	<-p.Done()
	end := p.Result()
	if end.ExitCode == nil {
		return toolboxError(http.StatusInternalServerError, skerry.ToolboxInternal, "%s", end.Error)
	}
	response := result.response(end)
	if end.Reason == skerry.ReasonTimedOut {
		timeout := toolboxError(http.StatusRequestTimeout, skerry.ToolboxExecTimeout, "command execution timeout")
		timeout.Execution = response
		return timeout
	}
	return writeJSON(w, http.StatusOK, response)
}

// executeRequest turns the buffered form into a process request.
func executeRequest(req *skerry.ExecuteRequest) (start *skerry.ProcessRequest, separate bool, err error) {
	invalid := func(format string, args ...any) (*skerry.ProcessRequest, bool, error) {
		return nil, false, toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidBody, format, args...)
	}
	command := strings.TrimSpace(req.Command)
	switch {
	case command == "" && len(req.Argv) == 0:
		return invalid("command is empty")
	case req.Timeout < 0 || req.Timeout > 1<<31-1:
		return invalid("timeout %d: is no number of seconds from 0 to %d", req.Timeout, 1<<31-1)
	}
	switch req.Streams {
	case "":
		separate = len(req.Argv) > 0
	case skerry.StreamsSeparate:
		separate = true
	case skerry.StreamsCombined:
	default:
		return invalid("streams %.32q: is neither combined nor separate", req.Streams)
	}
	start = &skerry.ProcessRequest{
		Argv: req.Argv, Cwd: req.Cwd, Env: req.Envs, User: req.User, KeepLogs: process.KeepNone,
		TimeoutMs: int64(time.Duration(req.Timeout) * time.Second / time.Millisecond),
	}
	if command != "" {
		start.ShellCommand = req.Command
	}
	if req.Stdin != "" {
		start.Stdin = process.StdinPipe
	}
	return start, separate, nil
}

// feedInput writes a command's standard input beside its run; the returned
// function waits for that to end.
func feedInput(ctx context.Context, p *process.Process, input string) func() {
	if input == "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var feeding sync.WaitGroup
	feeding.Go(func() {
		// A command that does not read all of its input is no error, as in a shell.
		if _, err := p.WriteStdin(ctx, []byte(input)); err == nil {
			_ = p.CloseStdin(ctx)
		}
	})
	return func() {
		cancel()
		feeding.Wait()
	}
}

// executeOutput collects output.
type executeOutput struct {
	separate               bool
	result, stdout, stderr headTail
}

func (o *executeOutput) add(f process.Frame) {
	o.result.write(f.Data())
	switch {
	case !o.separate:
	case f.Channel == skerry.RunStderr:
		o.stderr.write(f.Data())
	default:
		o.stdout.write(f.Data())
	}
}

func (o *executeOutput) response(end skerry.ProcessResult) *skerry.ExecuteResponse {
	if end.Error != "" { // as a shell would say it
		message := []byte(end.Error + "\n")
		o.result.write(message)
		if o.separate {
			o.stderr.write(message)
		}
	}
	return &skerry.ExecuteResponse{
		ExitCode: *end.ExitCode, Reason: end.Reason, Signal: end.Signal, OOMKilled: end.OOMKilled,
		Result: o.result.String(), Stdout: o.stdout.String(), Stderr: o.stderr.String(),
		TruncatedBytes: o.result.truncated, TruncatedStdoutBytes: o.stdout.truncated, TruncatedStderrBytes: o.stderr.truncated,
	}
}

// headTail keeps the first and the last executeKeep bytes of what is written.
type headTail struct {
	head      []byte
	tail      []byte // a ring once it is full
	start     int    // of the ring
	truncated int64  // bytes dropped between head and tail
}

func (h *headTail) write(b []byte) {
	if room := executeKeep - len(h.head); room > 0 {
		n := min(room, len(b))
		h.head = append(h.head, b[:n]...)
		b = b[n:]
	}
	if skip := len(b) - executeKeep; skip > 0 { // all of the tail is replaced
		h.truncated += int64(skip + len(h.tail))
		h.tail, h.start, b = h.tail[:0], 0, b[skip:]
	}
	if room := executeKeep - len(h.tail); room > 0 {
		n := min(room, len(b))
		h.tail = append(h.tail, b[:n]...)
		b = b[n:]
	}
	h.truncated += int64(len(b))
	for len(b) > 0 {
		n := copy(h.tail[h.start:], b)
		b = b[n:]
		h.start = (h.start + n) % executeKeep
	}
}

func (h *headTail) String() string {
	var text strings.Builder
	text.Grow(len(h.head) + len(h.tail) + 64)
	text.Write(h.head)
	if h.truncated > 0 {
		fmt.Fprintf(&text, "\n[… %d bytes truncated …]\n", h.truncated)
	}
	text.Write(h.tail[h.start:])
	text.Write(h.tail[:h.start])
	return text.String()
}
