package skerry

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The run protocol (ours) starts a process and carries its whole life in one
// exchange. It has two carriers.
//
// POST /processes/run, for a process without standard input: the body is a
// RunRequest, the answer is 200 and a stream of frames (see ReadRunFrame), the
// last of them the "exit" event. This is one round trip.
//
// GET /processes/run, a WebSocket: the client's first message is a text message
// with a RunRequest. Then binary messages carry data in both directions, the
// first byte being the channel, and text messages carry RunEvents. The server's
// last message is the "exit" event, then it closes the connection.
//
// An exchange that ends without an "exit" event has failed, whatever came
// before. What cannot be started because of the request is refused: with a
// ToolboxError as body (POST), or as the Error of an "error" event (WebSocket).
type RunRequest struct {
	ProcessRequest
	// OnDisconnect says what becomes of the process when the client goes
	// away: "kill" (default: the whole control group) or "continue".
	OnDisconnect string `json:"onDisconnect,omitempty"`
}

// Values of RunRequest.OnDisconnect.
const (
	DisconnectKill     = "kill"
	DisconnectContinue = "continue"
)

// Channels of the run protocol.
const (
	RunStdin  byte = 0 // client to server
	RunStdout byte = 1
	RunStderr byte = 2
	RunPTY    byte = 3
	RunEvents byte = 4 // POST only: a RunEvent as JSON
)

// RunStdinWindow is how many bytes of standard input a client may send before
// the first "window" event. A client that sends more is slowed down by the
// transport, and its "signal" events wait behind the data.
const RunStdinWindow = 256 << 10

// MaxRunFrame bounds the payload of a frame in either direction, in bytes.
const MaxRunFrame = 1 << 20

// RunEvent is a control message of the run protocol.
type RunEvent struct {
	// Type is, from the server: started, exit (both with Process), window
	// (the client may send Bytes more of standard input), stdin_closed (the
	// process does not read its input any more; what is sent is dropped),
	// warning (output was lost), error. From the client: eof, resize, signal.
	Type    string        `json:"type"`
	Process *Process      `json:"process,omitempty"`
	Bytes   int64         `json:"bytes,omitempty"`
	Cols    int           `json:"cols,omitempty"`
	Rows    int           `json:"rows,omitempty"`
	Signal  string        `json:"signal,omitempty"` // "INT"
	Message string        `json:"message,omitempty"`
	Error   *ToolboxError `json:"error,omitempty"`
}

// Types of RunEvent.
const (
	RunStarted     = "started"
	RunExit        = "exit"
	RunWindow      = "window"
	RunStdinClosed = "stdin_closed"
	RunWarning     = "warning"
	RunError       = "error"
	RunEOF         = "eof"
	RunResize      = "resize"
	RunSignal      = "signal"
)

// RunHeader is the length of what precedes a frame's payload: the length of the
// rest as 4 bytes, big endian, and the channel.
const RunHeader = 5

// AppendRunFrame appends a frame of POST /processes/run to b.
func AppendRunFrame(b []byte, channel byte, payload []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)+1))
	b = append(b, channel)
	return append(b, payload...)
}

// ReadRunFrame reads one frame of POST /processes/run into buf, which it grows
// as needed, and returns its channel and its payload, valid until buf is used
// again. It returns io.EOF at the end of the stream, and io.ErrUnexpectedEOF
// inside a frame.
func ReadRunFrame(r io.Reader, buf []byte) (channel byte, payload, grown []byte, err error) {
	var head [RunHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, buf, err
	}
	n := binary.BigEndian.Uint32(head[:4])
	if n == 0 || n > MaxRunFrame+1 {
		return 0, nil, buf, fmt.Errorf("run frame of %d bytes, at most %d", n, MaxRunFrame+1)
	}
	n--
	if int(n) > cap(buf) {
		buf = make([]byte, n)
	}
	payload = buf[:n]
	if _, err := io.ReadFull(r, payload); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, buf, err
	}
	return head[4], payload, buf, nil
}
