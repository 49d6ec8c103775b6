package toolbox

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"syscall"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/toolbox/process"
)

// processOf finds the process that a request's path names.
func (b *sandbox) processOf(r *http.Request) (*process.Process, error) {
	return b.table.Get(skerry.ProcessID(r.PathValue("id")))
}

func createProcess(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	var req skerry.ProcessRequest
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	p, _, err := box.table.Start(&req, process.Options{})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, p.Info())
}

func listProcesses(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	state := query.Get("state")
	switch state {
	case "", "all", process.StateRunning, process.StateTerminal:
	default:
		return badQuery("state %.32q: is none of running, terminal, all", state)
	}
	pid, err := queryInt(r, "pid", 0, 1, 1<<30)
	if err != nil {
		return err
	}
	found := []skerry.Process{}
	for _, p := range box.table.All() {
		if (state == "" || state == "all" || p.State == state) &&
			matches(query.Get("kind"), p.Kind) && matches(query.Get("sessionId"), p.SessionID) &&
			matches(query.Get("name"), p.Name) && (pid == 0 || p.PID == pid) {
			found = append(found, p)
		}
	}
	return writeJSON(w, http.StatusOK, found)
}

func matches(filter, value string) bool { return filter == "" || filter == value }

func getProcess(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	p, err := box.processOf(r)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, p.Info())
}

func deleteProcess(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	if err := box.table.Delete(skerry.ProcessID(r.PathValue("id"))); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// waitProcess answers when the process has ended, or after timeoutMs with reason
// timed_out and neither exit code nor signal.
func waitProcess(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	p, err := box.processOf(r)
	if err != nil {
		return err
	}
	ms, err := queryInt(r, "timeoutMs", -1, 0, 1<<40)
	if err != nil {
		return err
	}
	var timeout <-chan time.Time
	if ms >= 0 {
		timer := time.NewTimer(time.Duration(ms) * time.Millisecond)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-p.Done():
		return writeJSON(w, http.StatusOK, p.Result())
	default:
	}
	select {
	case <-p.Done():
		return writeJSON(w, http.StatusOK, p.Result())
	case <-timeout:
		return writeJSON(w, http.StatusOK, skerry.ProcessResult{Reason: skerry.ReasonTimedOut})
	case <-r.Context().Done():
		return unavailable()
	}
}

func signalProcess(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Signal          string `json:"signal"`
		EscalateAfterMs int64  `json:"escalateAfterMs"`
		EscalateTo      string `json:"escalateTo"`
	}
	p, err := box.processOf(r)
	if err != nil {
		return err
	}
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	sig, err := signalOf(req.Signal, syscall.SIGTERM)
	if err != nil {
		return err
	}
	escalate, err := signalOf(req.EscalateTo, syscall.SIGKILL)
	if err != nil {
		return err
	}
	if req.EscalateAfterMs < 0 || req.EscalateAfterMs > time.Hour.Milliseconds() {
		return toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidBody, "escalateAfterMs: is not from 0 to %d", time.Hour.Milliseconds())
	}
	if err := p.Signal(sig, time.Duration(req.EscalateAfterMs)*time.Millisecond, escalate); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func signalOf(name string, unset syscall.Signal) (syscall.Signal, error) {
	if name == "" {
		return unset, nil
	}
	sig, ok := process.ParseSignal(name)
	if !ok {
		return 0, toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidBody, "signal %.32q: unknown", name)
	}
	return sig, nil
}

// stdinProcess writes to a process's standard input and answers when the process
// has room for all of it. The body is JSON as in the process protocol, or, ours,
// application/octet-stream of any size, with eof=true in the query.
func stdinProcess(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	p, err := box.processOf(r)
	if err != nil {
		return err
	}
	var eof bool
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media == "application/octet-stream" {
		if eof, err = queryBool(r, "eof"); err != nil {
			return err
		}
		_, err = io.Copy(&stdinWriter{ctx: r.Context(), process: p}, r.Body)
	} else {
		var req struct {
			Data string `json:"data"`
			EOF  bool   `json:"eof"`
		}
		if err := readJSON(w, r, maxInputBody, &req); err != nil {
			return err
		}
		eof = req.EOF
		if req.Data != "" {
			_, err = io.WriteString(&stdinWriter{ctx: r.Context(), process: p}, req.Data)
		}
	}
	if err == nil && eof {
		err = p.CloseStdin(r.Context())
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// stdinWriter writes to a process's standard input.
type stdinWriter struct {
	ctx     context.Context // the request's
	process *process.Process
	written int64
}

func (s *stdinWriter) Write(b []byte) (int, error) {
	n, err := s.process.WriteStdin(s.ctx, b)
	s.written += int64(n)
	if errors.Is(err, process.ErrStdinClosed) {
		err = toolboxError(http.StatusConflict, skerry.ToolboxStdinClosed, "%v; it took %d bytes", err, s.written)
	}
	return n, err
}

func resizeProcess(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	var req skerry.Terminal
	p, err := box.processOf(r)
	if err != nil {
		return err
	}
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	if err := p.Resize(req.Cols, req.Rows); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, p.Info())
}

// cursorOf reads the cursor of a request, also as a reconnecting event source
// sends it, and checks it against a log.
func cursorOf(r *http.Request, p *process.Process) (int64, error) {
	text := r.URL.Query().Get("cursor")
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		text = last
	}
	info := p.Info()
	position, fromStart, ok := process.ParseCursor(text)
	last, _, _ := process.ParseCursor(info.LastCursor)
	switch {
	case !ok || position > last:
		return 0, toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidCursor, "cursor %.64q: is none of this process", text)
	case fromStart:
		position, _, _ = process.ParseCursor(info.FirstAvailableCursor)
	}
	return position, nil
}

func cursorExpired(p *process.Process) error {
	return toolboxError(http.StatusConflict, skerry.ToolboxCursorExpired,
		"output at this cursor is no longer kept; the first that is: %s", p.Info().FirstAvailableCursor)
}
