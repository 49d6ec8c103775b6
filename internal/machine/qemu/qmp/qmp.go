// Package qmp is a small client of the QEMU Machine Protocol, the JSON lines
// QEMU's monitor speaks on a socket ("QEMU Machine Protocol Specification",
// docs/interop/qmp-spec in the QEMU source). It knows nothing of sandboxes.
//
// The peer is not trusted: a guest that broke into QEMU can say anything.
// Whatever it sends costs bounded memory, and the worst it gets is that the
// client fails.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// maxMessageBytes bounds one line from QEMU. The largest answers the commands
// of this project get are a few KiB.
const maxMessageBytes = 256 << 10

// ErrClosed is the cause of every call after Close.
var ErrClosed = errors.New("qmp: client is closed")

// Error is QEMU's answer that a command did not succeed.
type Error struct {
	Command string // command that was refused
	Class   string // "GenericError", "CommandNotFound", …
	Desc    string // for people
}

func (e *Error) Error() string { return e.Command + ": " + e.Desc }

// Event is something QEMU says unasked.
type Event struct {
	Name string          // "STOP", "RESUME", "SHUTDOWN", "MIGRATION", …
	Data json.RawMessage // or nil
}

// Client is a connection to one monitor. It is safe for concurrent use.
type Client struct {
	conn     net.Conn
	onEvent  func(Event)
	greeting Greeting
	done     chan struct{} // closed when the reader has ended

	writeMu sync.Mutex // held for one whole message

	mu      sync.Mutex
	nextID  uint64
	pending map[string]chan reply // by id; each has room for its one reply
	err     error                 // why the client failed, or nil
}

// Greeting is the first thing QEMU says.
type Greeting struct {
	Major, Minor, Micro int
	Package             string // "Debian 1:7.2+dfsg-7…"
}

type reply struct {
	result json.RawMessage
	err    error
}

// message is every form a line from QEMU can have.
type message struct {
	QMP *struct {
		Version struct {
			QEMU struct {
				Major int `json:"major"`
				Minor int `json:"minor"`
				Micro int `json:"micro"`
			} `json:"qemu"`
			Package string `json:"package"`
		} `json:"version"`
	} `json:"QMP"`
	ID     string          `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Event string          `json:"event"`
	Data  json.RawMessage `json:"data"`
}

// New takes over conn, waits for QEMU's greeting and negotiates capabilities.
// onEvent, or nil, is called for each event in order, from the one goroutine
// that reads: it must not block or call the client. On an error conn is closed.
func New(ctx context.Context, conn net.Conn, onEvent func(Event)) (*Client, error) {
	c := newClient(conn, onEvent)
	r := bufio.NewReaderSize(conn, 4096)
	if err := c.greet(ctx, r); err != nil {
		conn.Close()
		return nil, fmt.Errorf("qmp greeting: %w", err)
	}
	go c.read(r)
	if err := c.Execute(ctx, "qmp_capabilities", nil, nil); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Continue takes over conn as the other end of a session in which capabilities
// were negotiated already, with another client.
func Continue(conn net.Conn, onEvent func(Event)) *Client {
	c := newClient(conn, onEvent)
	go c.read(bufio.NewReaderSize(conn, 4096))
	return c
}

func newClient(conn net.Conn, onEvent func(Event)) *Client {
	return &Client{
		conn:    conn,
		onEvent: onEvent,
		done:    make(chan struct{}),
		pending: map[string]chan reply{},
	}
}

// greet reads the greeting. Cancelling ctx makes the read fail at once.
func (c *Client) greet(ctx context.Context, r *bufio.Reader) error {
	stop := context.AfterFunc(ctx, func() { c.conn.SetReadDeadline(time.Unix(1, 0)) })
	m, err := readMessage(r)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	if m.QMP == nil {
		return errors.New("peer does not speak QMP")
	}
	v := m.QMP.Version
	c.greeting = Greeting{Major: v.QEMU.Major, Minor: v.QEMU.Minor, Micro: v.QEMU.Micro, Package: v.Package}
	return nil
}

// Greeting returns what QEMU said of itself.
func (c *Client) Greeting() Greeting { return c.greeting }

// Close ends the connection, fails all calls and waits for the reader.
func (c *Client) Close() error {
	c.fail(ErrClosed)
	<-c.done
	return nil
}

// Done is closed when the connection is over; Err then says why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is nil until the client has failed.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Execute runs one command and waits for its answer. args, or nil, is encoded
// as its arguments; out, or nil, receives the return value; files travel with
// it as SCM_RIGHTS (unix(7)), which needs a *net.UnixConn. An answer that says
// no is an *Error. A cancelled call leaves the client usable: its late answer
// is dropped, though QEMU may still carry the command out.
func (c *Client) Execute(ctx context.Context, command string, args, out any, files ...*os.File) error {
	id, ch, err := c.register()
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	defer c.forget(id)
	line, err := encode(id, command, args)
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	if err := c.write(ctx, line, files); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	select {
	case r := <-ch:
		return r.decode(command, out)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", command, context.Cause(ctx))
	case <-c.done:
	}
	select { // an answer that came just before the end counts
	case r := <-ch:
		return r.decode(command, out)
	default:
		return fmt.Errorf("%s: %w", command, c.Err())
	}
}

func encode(id, command string, args any) ([]byte, error) {
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        string `json:"id"`
	}{command, args, id})
	return append(line, '\n'), err
}

func (r reply) decode(command string, out any) error {
	if r.err != nil {
		var e *Error
		if errors.As(r.err, &e) {
			e.Command = command
		}
		return r.err
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(r.result, out); err != nil {
		return fmt.Errorf("%s: decode answer: %w", command, err)
	}
	return nil
}

func (c *Client) register() (string, chan reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return "", nil, c.err
	}
	c.nextID++
	id := strconv.FormatUint(c.nextID, 10)
	ch := make(chan reply, 1)
	c.pending[id] = ch
	return id, ch, nil
}

func (c *Client) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

// write sends one message whole. A message cut short by ctx leaves the stream
// in the middle of a line, so then the client fails.
func (c *Client) write(ctx context.Context, line []byte, files []*os.File) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		c.conn.SetWriteDeadline(time.Unix(1, 0))
		close(cut)
	})
	err := send(c.conn, line, files)
	if !stop() {
		// ctx ended, perhaps when all was sent: that must not meet the next
		// message.
		<-cut
		c.conn.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		c.fail(err)
	}
	return err
}

// read delivers answers and events until the connection ends.
func (c *Client) read(r *bufio.Reader) {
	defer close(c.done)
	for {
		m, err := readMessage(r)
		if err != nil {
			c.fail(err)
			return
		}
		switch {
		case m.Event != "":
			if c.onEvent != nil {
				c.onEvent(Event{Name: m.Event, Data: m.Data})
			}
		case m.Error != nil:
			c.deliver(m.ID, reply{err: &Error{Class: m.Error.Class, Desc: m.Error.Desc}})
		case m.Return != nil:
			c.deliver(m.ID, reply{result: m.Return})
		}
	}
}

func (c *Client) deliver(id string, r reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch, ok := c.pending[id]; ok {
		delete(c.pending, id)
		ch <- r
	}
}

// fail records the first error and closes the connection, which ends read.
func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.conn.Close()
}

// readMessage reads one line of at most maxMessageBytes.
func readMessage(r *bufio.Reader) (*message, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxMessageBytes {
			return nil, fmt.Errorf("message is longer than %d bytes", maxMessageBytes)
		}
		line = append(line, part...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			if errors.Is(err, io.EOF) && len(line) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	m := &message{}
	if err := json.Unmarshal(line, m); err != nil {
		return nil, fmt.Errorf("decode message: %w", err)
	}
	return m, nil
}
