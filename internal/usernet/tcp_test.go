package usernet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
)

func echoServer(t testing.TB) netip.AddrPort {
	return listenTCP(t, func(c *net.TCPConn) { io.Copy(c, c) })
}

func TestTCPEcho(t *testing.T) {
	g, n := newGuest(t, Config{})
	c := g.dialTCP(echoServer(t))
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "ping" {
		t.Fatalf("got %q, %v", got, err)
	}
	if s := n.Stats(); s.TCPOpen != 1 || s.TCPOpened != 1 {
		t.Errorf("stats %+v", s)
	}
	c.Close()
	eventually(t, "the flow to end", func() bool { return n.Stats().TCPOpen == 0 })
}

// Each side ends its direction first and still gets everything of the other's.
func TestTCPHalfClose(t *testing.T) {
	t.Run("guest first", func(t *testing.T) {
		g, n := newGuest(t, Config{})
		c := g.dialTCP(listenTCP(t, func(c *net.TCPConn) {
			b, err := io.ReadAll(c)
			if err == nil {
				c.Write(bytes.ToUpper(b))
			}
		}))
		c.Write([]byte("question"))
		c.CloseWrite()
		got, err := io.ReadAll(c)
		if err != nil || string(got) != "QUESTION" {
			t.Fatalf("got %q, %v", got, err)
		}
		c.Close()
		eventually(t, "the flow to end", func() bool { return n.Stats().TCPOpen == 0 })
	})
	t.Run("outside first", func(t *testing.T) {
		g, n := newGuest(t, Config{})
		received := make(chan string, 1)
		c := g.dialTCP(listenTCP(t, func(c *net.TCPConn) {
			c.Write([]byte("greeting"))
			c.CloseWrite()
			b, _ := io.ReadAll(c)
			received <- string(b)
		}))
		got, err := io.ReadAll(c)
		if err != nil || string(got) != "greeting" {
			t.Fatalf("got %q, %v", got, err)
		}
		c.Write([]byte("answer"))
		c.CloseWrite()
		if got := <-received; got != "answer" {
			t.Errorf("server got %q", got)
		}
		c.Close()
		eventually(t, "the flow to end", func() bool { return n.Stats().TCPOpen == 0 })
	})
}

// A reset on one side is a reset on the other, not an end of file.
func TestTCPReset(t *testing.T) {
	t.Run("by the outside", func(t *testing.T) {
		g, n := newGuest(t, Config{})
		c := g.dialTCP(listenTCP(t, func(c *net.TCPConn) {
			io.ReadFull(c, make([]byte, 1))
			c.SetLinger(0)
		}))
		c.Write([]byte("x"))
		if _, err := io.ReadAll(c); err == nil || !strings.Contains(err.Error(), "reset") {
			t.Errorf("read: %v, want a reset", err)
		}
		c.Close()
		eventually(t, "the flow to end", func() bool { return n.Stats().TCPOpen == 0 })
	})
	t.Run("by the guest", func(t *testing.T) {
		g, n := newGuest(t, Config{})
		result := make(chan error, 1)
		c := g.dialTCP(listenTCP(t, func(c *net.TCPConn) {
			_, err := io.ReadAll(c)
			result <- err
		}))
		c.Write([]byte("x"))
		g.stack.Close() // aborts all connections
		if err := <-result; err == nil || !strings.Contains(err.Error(), "reset") {
			t.Errorf("server read: %v, want a reset", err)
		}
		eventually(t, "the flow to end", func() bool { return n.Stats().TCPOpen == 0 })
	})
}

func TestTCPRefused(t *testing.T) {
	g, n := newGuest(t, Config{})
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	if _, err := g.tryTCP(addr); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("dial: %v, want refused", err)
	}
	if s := n.Stats(); s.TCPFailed != 1 || s.TCPOpened != 0 {
		t.Errorf("stats %+v", s)
	}
}

// The guest's SYN is not answered before the outside has answered: a full
// accept queue leaves the guest waiting.
func TestTCPNotAnsweredBeforeOutside(t *testing.T) {
	n, conn := startNetwork(t, Config{Limits: Limits{Dial: 50 * time.Millisecond}, Policy: OpenPolicy([]netip.Prefix{loopback})})
	addr := fullListener(t)
	if err := writeFrames(conn, packet{dst: addr.Addr(), proto: header.TCPProtocolNumber, payload: tcpSYN(1000, addr.Port(), 1)}.frame()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the dial to end", func() bool { return n.Stats().TCPFailed == 1 })
	if got := n.Stats().TxFrames; got != 0 {
		t.Errorf("%d frames were sent to the guest, want none", got)
	}
	eventually(t, "the slot to be free", func() bool { return n.Stats().TCPOpen == 0 })
}

func TestTCPTransfer(t *testing.T) {
	for mtu, size := range map[int]int{MinMTU: 1 << 20, 1500: 2 << 20, DefaultMTU: 8 << 20, MaxMTU: 8 << 20} {
		g, _ := newGuest(t, Config{MTU: mtu})
		data := make([]byte, size)
		rand.NewChaCha8([32]byte{1}).Read(data)
		want := sha256.Sum256(data)
		sums := make(chan [32]byte, 1)
		c := g.dialTCP(listenTCP(t, func(c *net.TCPConn) {
			var wg sync.WaitGroup
			wg.Go(func() { c.Write(data); c.CloseWrite() })
			h := sha256.New()
			io.Copy(h, c)
			sums <- [32]byte(h.Sum(nil))
			wg.Wait()
		}))
		var wg sync.WaitGroup
		wg.Go(func() { c.Write(data); c.CloseWrite() })
		h := sha256.New()
		if _, err := io.Copy(h, c); err != nil {
			t.Fatalf("mtu %d: read: %v", mtu, err)
		}
		wg.Wait()
		if got := [32]byte(h.Sum(nil)); got != want {
			t.Errorf("mtu %d: the guest received other data", mtu)
		}
		if got := <-sums; got != want {
			t.Errorf("mtu %d: the outside received other data", mtu)
		}
		c.Close()
	}
}

// A reader that does not read stops the writer: no end of the flow buffers
// more than its bound. Then everything arrives.
func TestTCPBackPressure(t *testing.T) {
	const total = 64 << 20
	t.Run("guest reads slowly", func(t *testing.T) {
		g, _ := newGuest(t, Config{})
		var sent counter
		c := g.dialTCP(listenTCP(t, func(c *net.TCPConn) { sent.writeAll(c, total) }))
		sent.waitStalled(t, total)
		n, err := io.Copy(io.Discard, c)
		if err != nil || n != total {
			t.Errorf("read %d bytes, %v", n, err)
		}
		c.Close()
	})
	t.Run("outside reads slowly", func(t *testing.T) {
		g, _ := newGuest(t, Config{})
		read := make(chan struct{})
		got := make(chan int64, 1)
		c := g.dialTCP(listenTCP(t, func(c *net.TCPConn) {
			<-read
			n, _ := io.Copy(io.Discard, c)
			got <- n
		}))
		var sent counter
		var wg sync.WaitGroup
		wg.Go(func() { sent.writeAll(c, total); c.Close() })
		sent.waitStalled(t, total)
		close(read)
		if n := <-got; n != total {
			t.Errorf("the outside read %d bytes", n)
		}
		wg.Wait()
	})
}

// counter counts what a writer got rid of.
type counter struct {
	mu sync.Mutex
	n  int64
}

func (c *counter) writeAll(w io.Writer, total int) {
	buf := make([]byte, 64<<10)
	for sent := 0; sent < total; sent += len(buf) {
		if _, err := w.Write(buf); err != nil {
			return
		}
		c.mu.Lock()
		c.n += int64(len(buf))
		c.mu.Unlock()
	}
}

// waitStalled waits until no more is written for a while, and checks that this
// is before the end.
func (c *counter) waitStalled(t *testing.T, total int64) {
	t.Helper()
	last, since := int64(-1), time.Now()
	eventually(t, "the writer to stall", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.n != last {
			last, since = c.n, time.Now()
		}
		return last > 0 && time.Since(since) > 200*time.Millisecond
	})
	if last >= total/2 {
		t.Errorf("the writer got rid of %d of %d bytes without a reader", last, total)
	}
}

func TestTCPLimit(t *testing.T) {
	g, n := newGuest(t, Config{Limits: Limits{TCPFlows: 3}})
	addr := echoServer(t)
	var conns []*gonet.TCPConn
	for range 3 {
		conns = append(conns, g.dialTCP(addr))
	}
	if _, err := g.tryTCP(addr); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a connection over the limit: %v, want refused", err)
	}
	if got := n.Stats().TCPLimited; got != 1 {
		t.Errorf("TCPLimited %d, want 1", got)
	}
	conns[0].Close()
	eventually(t, "room for another", func() bool { return n.Stats().TCPOpen == 2 })
	g.dialTCP(addr).Close()
	for _, c := range conns[1:] {
		c.Close()
	}
}

func TestDialGuest(t *testing.T) {
	g, n := newGuest(t, Config{})
	l, err := gonet.ListenTCP(g.stack, fullAddr(netip.AddrPortFrom(GuestAddr, 8080)), ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		io.Copy(c, c)
		c.Close()
	})
	// The guest has sent nothing yet: its address has to be found first.
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	c, err := n.Dial(ctx, 8080)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(testTimeout))
	c.Write([]byte("hello"))
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := n.Dial(ctx, 8081); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("dial of a closed port: %v, want refused", err)
	}
}

func TestDialAbsentGuest(t *testing.T) {
	n, _ := startNetwork(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Dial(ctx, 80); err == nil {
		t.Error("dial succeeded without a guest")
	}
	n.Close()
	if _, err := n.Dial(t.Context(), 80); err != ErrClosed {
		t.Errorf("dial on a closed network: %v", err)
	}
}

// Closing with flows in every state leaves nothing behind.
func TestCloseWithOpenFlows(t *testing.T) {
	g, n := newGuest(t, Config{})
	addr := echoServer(t)
	udpAddr := listenUDP(t, bytes.Clone)
	for range 20 {
		c := g.dialTCP(addr)
		c.Write([]byte("x"))
		u := g.dialUDP(udpAddr)
		u.Write([]byte("x"))
	}
	stalled := fullListener(t)
	writeFrames(g.conn, packet{dst: stalled.Addr(), proto: header.TCPProtocolNumber, payload: tcpSYN(1, stalled.Port(), 1)}.frame())
	eventually(t, "all flows", func() bool { s := n.Stats(); return s.TCPOpen == 21 && s.UDPOpen == 20 })
	before := goleak.IgnoreCurrent()
	n.Close()
	if s := n.Stats(); s.TCPOpen != 0 || s.UDPOpen != 0 {
		t.Errorf("after Close: %+v", s)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
	n.Close()
}

func TestRunEndsWithContext(t *testing.T) {
	host, peer := socketPair(t)
	defer peer.Close()
	n, err := New(Config{Conn: host})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- n.Run(ctx) }()
	cancel()
	if err := <-ran; err != context.Canceled {
		t.Errorf("Run: %v", err)
	}
}
