package toolbox

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
	"skerry.dev/skerry/internal/guest/toolbox/process"
)

// helloTimeout bounds the wait for a client's RunRequest.
const helloTimeout = 30 * time.Second

// session is a WebSocket that is attached to a process.
type session struct {
	conn    *websocket.Conn
	process *process.Process
	// raw: binary messages are a terminal's bytes, without a channel byte.
	raw   bool
	input *inputQueue
}

func acceptSocket(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	// Only the agent's host can connect, so the origin of a web page proves
	// nothing. Compression would cost time that an emulated CPU does not have.
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil, err // Accept has answered
	}
	conn.SetReadLimit(maxBody)
	return conn, nil
}

// runSocket is GET /processes/run.
func (s *Server) runSocket(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	conn, err := acceptSocket(w, r)
	if err != nil {
		return nil
	}
	defer conn.CloseNow()
	ctx := r.Context()
	req, err := readHello(ctx, conn)
	if err != nil {
		return sendError(ctx, conn, err)
	}
	p, follower, err := box.startRun(req)
	if err != nil {
		return sendError(ctx, conn, err)
	}
	defer follower.Close()
	session := &session{conn: conn, process: p, input: newInputQueue()}
	if err := session.serve(ctx, follower); err != nil {
		disconnected(ctx, p, req)
	}
	return nil
}

func readHello(ctx context.Context, conn *websocket.Conn) (*skerry.RunRequest, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	kind, message, err := conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	if kind != websocket.MessageText {
		return nil, toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidBody, "the first message is no text message")
	}
	var req skerry.RunRequest
	if err := decodeJSON(bytes.NewReader(message), &req); err != nil {
		return nil, err
	}
	return &req, nil
}

// sendError tells the client of a run that was refused.
func sendError(ctx context.Context, conn *websocket.Conn, err error) error {
	answer := asToolboxError(err)
	answer.Timestamp, answer.Source = time.Now().UTC(), skerry.ToolboxErrorSource
	text, err := json.Marshal(skerry.RunEvent{Type: skerry.RunError, Error: answer})
	if err != nil {
		return nil
	}
	if conn.Write(ctx, websocket.MessageText, text) == nil {
		conn.Close(websocket.StatusNormalClosure, "")
	}
	return nil
}

// attachProcess is GET /processes/{id}/attach: the output from a cursor on, and
// the input. The binary messages of a terminal are its bytes, in both
// directions, as in Daytona's protocol; those of any other process have a
// channel byte as in a run. Leaving does nothing to the process.
func (s *Server) attachProcess(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	p, err := box.processOf(r)
	if err != nil {
		return err
	}
	position, err := cursorOf(r, p)
	if err != nil {
		return err
	}
	follower, err := p.Log().Follow(position, process.FollowPatience)
	if err != nil {
		return cursorExpired(p)
	}
	defer follower.Close()
	conn, err := acceptSocket(w, r)
	if err != nil {
		return nil
	}
	defer conn.CloseNow()
	session := &session{conn: conn, process: p, raw: p.Terminal(), input: newInputQueue()}
	_ = session.serve(r.Context(), follower) // the client has gone: nothing to do
	return nil
}

// serve moves data both ways until the process has ended and the client knows
// all of it. An error means that the client has gone before.
func (s *session) serve(ctx context.Context, follower *process.Follower) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var helpers sync.WaitGroup
	helpers.Go(func() { cancel(s.receive(ctx)) })
	helpers.Go(func() { s.feed(ctx) })
	err := s.send(ctx, follower)
	if err == nil {
		// Waits for the client's answer, which receive reads.
		s.conn.Close(websocket.StatusNormalClosure, "")
	}
	cancel(nil)
	s.conn.CloseNow()
	s.input.close()
	helpers.Wait()
	return err
}

// send sends the output and the events.
func (s *session) send(ctx context.Context, follower *process.Follower) error {
	if err := s.event(ctx, skerry.RunEvent{Type: skerry.RunStarted, Process: runInfo(s.process)}); err != nil {
		return err
	}
	for {
		frame, err := follower.Next(ctx)
		lost, isLost := errors.AsType[*process.LostError](err)
		switch {
		case err == nil:
			message := frame.Message()
			if s.raw {
				message = frame.Data()
			}
			err = s.conn.Write(ctx, websocket.MessageBinary, message)
		case isLost:
			err = s.event(ctx, skerry.RunEvent{Type: skerry.RunWarning,
				Message: fmt.Sprintf("%d pieces of output were dropped: the reader is too slow", lost.Lost)})
		case errors.Is(err, io.EOF):
			<-s.process.Done()
			return s.event(ctx, skerry.RunEvent{Type: skerry.RunExit, Process: runInfo(s.process)})
		}
		if err != nil {
			return err
		}
	}
}

func (s *session) event(ctx context.Context, e skerry.RunEvent) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return s.conn.Write(ctx, websocket.MessageText, text)
}

// receive reads what the client sends, until the connection ends.
func (s *session) receive(ctx context.Context) error {
	for {
		kind, message, err := s.conn.Read(ctx)
		if err != nil {
			return err
		}
		if kind == websocket.MessageText {
			err = s.command(message)
		} else {
			err = s.data(ctx, message)
		}
		if err != nil {
			s.conn.Close(websocket.StatusPolicyViolation, closeReason(err))
			return err
		}
	}
}

// closeReason fits an error into a close frame, RFC 6455 section 5.5.
func closeReason(err error) string {
	text := err.Error()
	return text[:min(len(text), 120)]
}

func (s *session) data(ctx context.Context, message []byte) error {
	if !s.raw {
		if len(message) == 0 || message[0] != skerry.RunStdin {
			return errors.New("a binary message is not of channel 0")
		}
		message = message[1:]
	}
	return s.input.put(ctx, message)
}

func (s *session) command(message []byte) error {
	var e skerry.RunEvent
	if err := decodeJSON(bytes.NewReader(message), &e); err != nil {
		return err
	}
	switch e.Type {
	case skerry.RunEOF:
		s.input.end()
		return nil
	case skerry.RunResize:
		return ignoreState(s.process.Resize(e.Cols, e.Rows))
	case skerry.RunSignal:
		sig, err := signalOf(e.Signal, 0)
		if err != nil || sig == 0 {
			return fmt.Errorf("signal %.32q is unknown", e.Signal)
		}
		return ignoreState(s.process.Signal(sig, 0, 0))
	}
	return fmt.Errorf("event %.32q is unknown", e.Type)
}

// ignoreState drops the error of a command that came too late: its sender could
// not know.
func ignoreState(err error) error {
	if e, ok := errors.AsType[*skerry.ToolboxError](err); ok && e.Code == skerry.ToolboxProcessState {
		return nil
	}
	return err
}

// feed writes the client's data to the process and grants it more room.
func (s *session) feed(ctx context.Context) {
	open, granted := true, int64(0)
	for {
		chunk, eof, ok := s.input.take()
		if !ok {
			return
		}
		if eof && open {
			_ = s.process.CloseStdin(ctx) // it has ended by itself
			open = false
		}
		if len(chunk) > 0 && open {
			if _, err := s.process.WriteStdin(ctx, chunk); err != nil {
				open = false // go on taking, so that signals get through
				_ = s.event(ctx, skerry.RunEvent{Type: skerry.RunStdinClosed, Message: err.Error()})
			}
		}
		if granted += int64(len(chunk)); granted >= skerry.RunStdinWindow/4 {
			_ = s.event(ctx, skerry.RunEvent{Type: skerry.RunWindow, Bytes: granted})
			granted = 0 // if that did not get through, receive and send know too
		}
	}
}

// inputQueue holds data that the process has not read yet.
type inputQueue struct {
	mu      sync.Mutex
	changed sync.Cond
	chunks  [][]byte
	bytes   int
	eof     bool
	eofSeen bool
	closed  bool
}

func newInputQueue() *inputQueue {
	q := &inputQueue{}
	q.changed.L = &q.mu
	return q
}

// put adds data, and blocks while more than the window is queued: a client that
// keeps to its window is never blocked.
func (q *inputQueue) put(ctx context.Context, b []byte) error {
	stop := context.AfterFunc(ctx, q.close)
	defer stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.bytes > skerry.RunStdinWindow && !q.closed {
		q.changed.Wait()
	}
	if q.eof {
		return errors.New("data after the end of standard input")
	}
	q.chunks = append(q.chunks, b)
	q.bytes += len(b)
	q.changed.Broadcast()
	return nil
}

// end says that no data follows.
func (q *inputQueue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.eof = true
	q.changed.Broadcast()
}

// close ends the queue; what is in it is dropped.
func (q *inputQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.chunks = true, nil
	q.changed.Broadcast()
}

// take returns the next data, or the end (once). ok is false when the queue is
// closed.
func (q *inputQueue) take() (chunk []byte, eof, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		switch {
		case q.closed:
			return nil, false, false
		case len(q.chunks) > 0:
			chunk, q.chunks = q.chunks[0], q.chunks[1:]
			q.bytes -= len(chunk)
			q.changed.Broadcast()
			return chunk, false, true
		case q.eof && !q.eofSeen:
			q.eofSeen = true
			return nil, true, true
		}
		q.changed.Wait()
	}
}
