package toolbox

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
	"unicode/utf8"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/toolbox/process"
)

const (
	defaultPage = 100
	maxPage     = 1000
	// keepAlive is the time between comments on an idle event stream.
	keepAlive = 15 * time.Second
)

// encodings of a frame's data.
const (
	encodingText   = "text"
	encodingBase64 = "base64"
)

func processLogs(box *sandbox, w http.ResponseWriter, r *http.Request) error {
	p, err := box.processOf(r)
	if err != nil {
		return err
	}
	encoding := r.URL.Query().Get("encoding")
	if encoding != "" && encoding != encodingText && encoding != encodingBase64 {
		return badQuery("encoding %.32q: is neither text nor base64", encoding)
	}
	limit, err := queryInt(r, "limit", defaultPage, 1, maxPage)
	if err != nil {
		return err
	}
	follow, err := queryBool(r, "follow")
	if err != nil {
		return err
	}
	position, err := cursorOf(r, p)
	if err != nil {
		return err
	}
	if follow {
		return followLogs(p, position, encoding, w, r)
	}
	page, err := p.Log().Read(position, limit)
	if err != nil {
		return cursorExpired(p)
	}
	out := skerry.LogPage{
		Frames: make([]skerry.LogFrame, len(page.Frames)), NextCursor: process.FormatCursor(page.Next),
		EOF: page.EOF, TruncatedHead: page.First > 0, FirstAvailableCursor: process.FormatCursor(page.First),
	}
	for i, frame := range page.Frames {
		out.Frames[i] = logFrame(frame, encoding)
	}
	return writeJSON(w, http.StatusOK, &out)
}

// logFrame returns a frame in wire form. Text that is no UTF-8, as when a
// character is cut in two, goes as base64.
func logFrame(f process.Frame, encoding string) skerry.LogFrame {
	out := skerry.LogFrame{Seq: f.Seq, Cursor: process.FormatCursor(f.Seq), Channel: channelName(f.Channel), Timestamp: f.Time.UTC()}
	if encoding == encodingBase64 || !utf8.Valid(f.Data()) {
		out.Data, out.Encoding = base64.StdEncoding.EncodeToString(f.Data()), encodingBase64
	} else {
		out.Data, out.Encoding = string(f.Data()), encodingText
	}
	return out
}

func channelName(channel byte) string {
	switch channel {
	case skerry.RunStdout:
		return "stdout"
	case skerry.RunStderr:
		return "stderr"
	default:
		return "pty"
	}
}

// followLogs sends a process's output as server-sent events: state, then a log
// event for each frame, at the end state and eof. The id of each event is a
// cursor with which a client resumes.
func followLogs(p *process.Process, position int64, encoding string, w http.ResponseWriter, r *http.Request) error {
	follower, err := p.Log().Follow(position, process.FollowPatience)
	if err != nil {
		return cursorExpired(p)
	}
	defer follower.Close()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	e := &eventStream{w: w, control: http.NewResponseController(w)}
	e.state(p, position)
	for e.err == nil {
		if !follower.More() {
			e.flush()
		}
		wait, cancel := context.WithTimeout(r.Context(), keepAlive)
		frame, err := follower.Next(wait)
		cancel()
		lost, isLost := errors.AsType[*process.LostError](err)
		switch {
		case err == nil:
			e.send("log", frame.Seq, logFrame(frame, encoding))
		case isLost:
			e.lost(lost)
		case errors.Is(err, io.EOF):
			<-p.Done()
			e.state(p, follower.Position())
			e.send("eof", follower.Position(), map[string]string{"cursor": process.FormatCursor(follower.Position())})
			e.flush()
			return nil
		case r.Context().Err() != nil:
			return nil // the client has gone
		default:
			e.comment("keep-alive")
		}
	}
	return nil // the client has gone
}

// eventStream writes server-sent events (HTML standard, section 9.2). After an
// error it does nothing.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	err     error
}

func (e *eventStream) send(event string, position int64, data any) {
	if e.err != nil {
		return
	}
	text, err := json.Marshal(data)
	if err != nil {
		e.err = err
		return
	}
	_, e.err = fmt.Fprintf(e.w, "id: %s\nevent: %s\ndata: %s\n\n", process.FormatCursor(position), event, text)
}

func (e *eventStream) state(p *process.Process, position int64) {
	e.send("state", position, struct {
		skerry.Process
		Cursor string `json:"cursor"`
	}{p.Info(), process.FormatCursor(position)})
}

func (e *eventStream) lost(lost *process.LostError) {
	cursor := process.FormatCursor(lost.First)
	e.send("warning", lost.First, map[string]string{"cursor": cursor, "firstAvailableCursor": cursor,
		"message": fmt.Sprintf("%d pieces of output were dropped: the reader is too slow", lost.Lost)})
}

func (e *eventStream) comment(text string) {
	if e.err == nil {
		_, e.err = fmt.Fprintf(e.w, ": %s\n\n", text)
	}
}

func (e *eventStream) flush() {
	if e.err == nil {
		e.err = e.control.Flush()
	}
}
