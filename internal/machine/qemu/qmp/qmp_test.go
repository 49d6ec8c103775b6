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
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const greeting = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian"}, "capabilities": ["oob"]}}` + "\r\n"

// monitor is the far end of a connection.
type monitor struct {
	t    *testing.T
	conn *net.UnixConn
	in   *bufio.Reader
}

// pair returns a monitor and the client's end.
func pair(t *testing.T) (*monitor, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return &monitor{t: t, conn: ends[0], in: bufio.NewReader(ends[0])}, ends[1]
}

func (m *monitor) say(format string, args ...any) {
	if _, err := fmt.Fprintf(m.conn, format, args...); err != nil {
		m.t.Errorf("monitor: %v", err)
	}
}

type request struct {
	Execute   string          `json:"execute"`
	Arguments json.RawMessage `json:"arguments"`
	ID        string          `json:"id"`
}

func (m *monitor) hear() request {
	var r request
	line, err := m.in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	if err != nil {
		m.t.Errorf("monitor: %v", err)
	}
	return r
}

// open makes a client; script runs as the monitor after the handshake.
func open(t *testing.T, onEvent func(Event), script func(*monitor)) *Client {
	t.Helper()
	m, conn := pair(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		m.say("%s", greeting)
		r := m.hear()
		if r.Execute != "qmp_capabilities" {
			t.Errorf("first command: got %q", r.Execute)
		}
		m.say(`{"return": {}, "id": %q}`+"\n", r.ID)
		script(m)
	})
	c, err := New(t.Context(), conn, onEvent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); wg.Wait() })
	return c
}

func TestExecute(t *testing.T) {
	events := make(chan Event, 1)
	c := open(t, func(e Event) { events <- e }, func(m *monitor) {
		m.say(`{"event": "STOP", "data": {"x": 1}, "timestamp": {"seconds": 1, "microseconds": 2}}` + "\n")
		r := m.hear()
		m.say(`{"return": {"status": "running"}, "id": %q}`+"\n", r.ID)
		r = m.hear()
		m.say(`{"error": {"class": "GenericError", "desc": "no such thing"}, "id": %q}`+"\n", r.ID)
	})
	if got := c.Greeting(); got != (Greeting{7, 2, 22, "Debian"}) {
		t.Errorf("greeting: got %+v", got)
	}
	if got, err := c.Status(t.Context()); err != nil || got != "running" {
		t.Errorf("status: got %q, %v", got, err)
	}
	err := c.BlockdevDel(t.Context(), "n")
	var e *Error
	if !errors.As(err, &e) || e.Class != "GenericError" || e.Error() != "blockdev-del: no such thing" {
		t.Errorf("refused command: got %v", err)
	}
	if e := <-events; e.Name != "STOP" || string(e.Data) != `{"x": 1}` {
		t.Errorf("event: got %s %s", e.Name, e.Data)
	}
}

// TestOutOfOrder: answers find their calls by id.
func TestOutOfOrder(t *testing.T) {
	c := open(t, nil, func(m *monitor) {
		a, b := m.hear(), m.hear()
		for _, r := range []request{b, a} {
			m.say(`{"return": %s, "id": %q}`+"\n", r.Arguments, r.ID)
		}
	})
	var wg sync.WaitGroup
	for _, want := range []string{"one", "two"} {
		wg.Go(func() {
			var got string
			if err := c.Execute(t.Context(), "echo", want, &got); err != nil || got != want {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		})
	}
	wg.Wait()
}

// TestCancel: a cancelled call returns at once, its late answer harms nobody.
func TestCancel(t *testing.T) {
	heard := make(chan struct{})
	c := open(t, nil, func(m *monitor) {
		first := m.hear()
		close(heard)
		second := m.hear()
		m.say(`{"return": 1, "id": %q}`+"\n"+`{"return": 2, "id": %q}`+"\n", first.ID, second.ID)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-heard; cancel() }()
	if err := c.Execute(ctx, "slow", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	var got int
	if err := c.Execute(t.Context(), "next", nil, &got); err != nil || got != 2 {
		t.Errorf("next: got %d, %v", got, err)
	}
}

// TestWriteBlocked: a peer that reads nothing blocks nobody for ever.
// lateConn ends a context when a message is written, and returns when that has
// reached the connection.
type lateConn struct {
	net.Conn
	end func() // or nil
	cut chan struct{}
}

func (c *lateConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.end != nil {
		c.end()
		c.end = nil
		<-c.cut
	}
	return n, err
}

func (c *lateConn) SetWriteDeadline(t time.Time) error {
	err := c.Conn.SetWriteDeadline(t)
	if !t.IsZero() {
		close(c.cut)
	}
	return err
}

// TestCancelWhenWritten: a request that is given up when it is on its way does
// not spoil the next one.
func TestCancelWhenWritten(t *testing.T) {
	m, end := pair(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		m.say(greeting)
		for range 3 {
			m.say(`{"return": {}, "id": %q}`+"\r\n", m.hear().ID)
		}
	})
	defer wg.Wait()
	conn := &lateConn{Conn: end, cut: make(chan struct{})}
	c, err := New(t.Context(), conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	conn.end = cancel
	c.Execute(ctx, "first", nil, nil) // answered or not
	if err := c.Execute(t.Context(), "second", nil, nil); err != nil {
		t.Errorf("the next request: %v", err)
	}
}

func TestWriteBlocked(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := open(t, nil, func(m *monitor) {
		if _, err := m.in.ReadByte(); err != nil {
			t.Error(err)
		}
		cancel()
	})
	err := c.Execute(ctx, "big", strings.Repeat("x", 8<<20), nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	<-c.Done() // half a message was sent: the stream is of no use
	if c.Err() == nil {
		t.Error("Err of a failed client: got nil")
	}
}

// TestDescriptors: a file arrives with its command.
func TestDescriptors(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := open(t, nil, func(m *monitor) {
		buf, oob := make([]byte, 4096), make([]byte, 128)
		n, oobn, _, _, err := m.conn.ReadMsgUnix(buf, oob)
		if err != nil {
			t.Error(err)
			return
		}
		var r request
		if err := json.Unmarshal(buf[:n], &r); err != nil || string(r.Arguments) != `{"fdname":"state"}` {
			t.Errorf("got %s, %v", buf[:n], err)
		}
		msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil || len(msgs) != 1 {
			t.Errorf("control messages: %d, %v", len(msgs), err)
			return
		}
		fds, err := unix.ParseUnixRights(&msgs[0])
		if err != nil || len(fds) != 1 {
			t.Errorf("descriptors: %v, %v", fds, err)
			return
		}
		if _, err := unix.Write(fds[0], []byte("through")); err != nil {
			t.Error(err)
		}
		unix.Close(fds[0])
		m.say(`{"return": {}, "id": %q}`+"\n", r.ID)
	})
	if err := c.GetFD(t.Context(), "state", f); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(f.Name()); err != nil || string(got) != "through" {
		t.Errorf("file: got %q, %v", got, err)
	}
}

// TestBrokenPeer: whatever ends or garbles the connection fails the call that
// waits, and all later ones.
func TestBrokenPeer(t *testing.T) {
	for name, answer := range map[string]string{
		"end":       "",
		"half line": `{"return": `,
		"no JSON":   "hello\n",
		"too long":  `{"return": "` + strings.Repeat("x", maxMessageBytes) + "\"}\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t, nil, func(m *monitor) {
				m.hear()
				io.WriteString(m.conn, answer) // the client may hang up first
				m.conn.Close()
			})
			for range 2 {
				if err := c.Cont(t.Context()); err == nil {
					t.Error("got nil, want an error")
				}
			}
		})
	}
}

// TestBadGreeting: no client comes out, and nothing hangs.
func TestBadGreeting(t *testing.T) {
	for name, hello := range map[string]string{"silent": "", "not QMP": "{}\n", "garbage": "SSH-2.0\n"} {
		t.Run(name, func(t *testing.T) {
			m, conn := pair(t)
			m.say("%s", hello)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := New(ctx, conn, nil); err == nil {
				t.Error("got nil, want an error")
			}
		})
	}
}

// TestRealQEMU talks to the installed QEMU, without a guest.
func TestRealQEMU(t *testing.T) {
	m, conn := pair(t)
	theirs, err := m.conn.File()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("qemu-system-x86_64", "-machine", "none", "-nodefaults", "-display", "none", "-S",
		"-chardev", "socket,id=m,fd=3", "-mon", "chardev=m,mode=control")
	cmd.ExtraFiles = []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start QEMU (package qemu-system-x86): %v", err)
	}
	defer cmd.Wait()
	theirs.Close()
	m.conn.Close()
	var shutdown string
	c, err := New(t.Context(), conn, func(e Event) { shutdown = e.Name })
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Greeting().Major; got < 7 {
		t.Errorf("QEMU's major version: got %d, want 7 or more", got)
	}
	if got, err := c.Status(t.Context()); err != nil || got != "prelaunch" {
		t.Errorf("status: got %q, %v", got, err)
	}
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := c.GetFD(t.Context(), "null", f); err != nil {
		t.Error(err)
	}
	if err := c.AddFD(t.Context(), 1, f); err != nil {
		t.Error(err)
	}
	var e *Error
	if err := c.BlockdevDel(t.Context(), "absent"); !errors.As(err, &e) {
		t.Errorf("delete an absent node: got %v, want an *Error", err)
	}
	if err := c.Execute(t.Context(), "quit", nil, nil); err != nil {
		t.Error(err)
	}
	<-c.Done()
	if shutdown != "SHUTDOWN" {
		t.Errorf("last event: got %q, want SHUTDOWN", shutdown)
	}
	if err := c.Cont(t.Context()); err == nil {
		t.Error("command after QEMU's end: got nil, want an error")
	}
}

// FuzzRead: a hostile monitor can end the client, and no more.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		"", greeting, greeting + `{"return": {}, "id": "1"}` + "\n" + `{"event": "STOP"}` + "\n",
		greeting + `{"error": {"class": "x"}, "id": "1"}` + "\n", `{"QMP": null}` + "\n", "[[[[", `{"id": 1}` + "\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		near, far := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() { io.Copy(io.Discard, far) })
		wg.Go(func() { far.Write(input); far.Close() })
		if c, err := New(t.Context(), near, func(Event) {}); err == nil {
			// The input is over, so a second answer must have been in it.
			_, err := c.Status(t.Context())
			if err == nil && strings.Count(string(input), "return") < 2 {
				t.Error("an answer out of nothing")
			}
			c.Close()
		}
		far.Close()
		wg.Wait()
	})
}
