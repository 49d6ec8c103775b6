package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/coder/websocket"

	"skerry.dev/skerry"
)

// input sends what goes to a program: its standard input, as far as the sandbox
// has room for it, resizes and signals.
type input struct {
	conn *websocket.Conn

	mu      sync.Mutex
	credit  int64         // bytes of standard input that may be sent; guarded by mu
	closed  bool          // the program reads no more; guarded by mu
	changed chan struct{} // gets a value when credit or closed changed
}

// event takes what the sandbox says about standard input.
func (in *input) event(ev skerry.RunEvent) {
	in.mu.Lock()
	switch ev.Type {
	case skerry.RunWindow:
		if ev.Bytes > 0 && in.credit < 1<<40 {
			in.credit += ev.Bytes
		}
	case skerry.RunStdinClosed:
		in.closed = true
	}
	in.mu.Unlock()
	select {
	case in.changed <- struct{}{}:
	default:
	}
}

// take waits for credit and takes up to n bytes of it; 0 tells that the program
// reads no more or ctx is done.
func (in *input) take(ctx context.Context, n int) int {
	for {
		in.mu.Lock()
		got := int(min(int64(n), in.credit))
		in.credit -= int64(got)
		closed := in.closed
		in.mu.Unlock()
		switch {
		case closed:
			return 0
		case got > 0:
			return got
		}
		select {
		case <-in.changed:
		case <-ctx.Done():
			return 0
		}
	}
}

// copyStdin sends r until its end, the end of the program, or ctx is done. An
// error of r counts as its end: the program must not wait for ever.
func (in *input) copyStdin(ctx context.Context, r io.Reader) {
	const chunk = 32 << 10
	buf := make([]byte, 1+chunk)
	for {
		n, err := r.Read(buf[1:])
		for sent := 0; sent < n; {
			m := in.take(ctx, n-sent)
			if m == 0 {
				return
			}
			// The byte before the piece is sent already or the reserved one.
			buf[sent] = skerry.RunStdin
			if in.conn.Write(ctx, websocket.MessageBinary, buf[sent:1+sent+m]) != nil {
				return
			}
			sent += m
		}
		if err != nil {
			_ = in.sendJSON(ctx, skerry.RunEvent{Type: skerry.RunEOF})
			return
		}
	}
}

// forward sends resizes and signals until ctx is done.
func (in *input) forward(ctx context.Context, resizes <-chan skerry.Terminal, signals <-chan string) {
	for {
		var ev skerry.RunEvent
		select {
		case size, ok := <-resizes:
			if !ok {
				resizes = nil
				continue
			}
			ev = skerry.RunEvent{Type: skerry.RunResize, Cols: size.Cols, Rows: size.Rows}
		case name, ok := <-signals:
			if !ok {
				signals = nil
				continue
			}
			ev = skerry.RunEvent{Type: skerry.RunSignal, Signal: name}
		case <-ctx.Done():
			return
		}
		if in.sendJSON(ctx, ev) != nil {
			return
		}
	}
}

func (in *input) sendJSON(ctx context.Context, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if err := in.conn.Write(ctx, websocket.MessageText, data); err != nil {
		return fmt.Errorf("write to the sandbox: %w", err)
	}
	return nil
}
