package guestapi

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"skerry.dev/skerry"
)

// MaxFrame bounds one control message in bytes. The largest is Activation with
// its environment.
const MaxFrame = 4 << 20

var errFrameTooLarge = errors.New("frame too large")

// appendFrame appends v as a 4-byte big-endian length and JSON.
func appendFrame(b []byte, v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(body) > MaxFrame {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", errFrameTooLarge, len(body), MaxFrame)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...), nil
}

// writeFrame writes what appendFrame makes, in one Write.
func writeFrame(w io.Writer, v any) error {
	b, err := appendFrame(nil, v)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// readFrame reads one frame. It reads not a byte more, so raw bytes
// may follow.
func readFrame(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxFrame {
		return fmt.Errorf("%w: %d bytes, at most %d", errFrameTooLarge, n, MaxFrame)
	}
	// Grow with what really comes, not with what is announced.
	body, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return err
	}
	if len(body) < int(n) {
		return io.ErrUnexpectedEOF
	}
	return json.Unmarshal(body, v)
}

// request and reply are the frames of a control stream.
type request struct {
	Path string          `json:"path"`
	Body json.RawMessage `json:"body,omitempty"`
}

type reply struct {
	Error *wireError      `json:"error,omitempty"`
	Body  json.RawMessage `json:"body,omitempty"`
}

// wireError is an error of the other side; codes cross unchanged.
type wireError struct {
	Code    skerry.Code `json:"code"`
	Message string      `json:"message"`
}

func toWire(err error) *wireError {
	return &wireError{Code: skerry.CodeOf(err), Message: err.Error()}
}

func (e *wireError) err() error {
	return &skerry.Error{Code: e.Code, Message: e.Message}
}
