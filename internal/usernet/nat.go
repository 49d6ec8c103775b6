package usernet

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// natKey identifies a flow of datagrams: ProtoUDP with the guest's port, or
// ProtoICMP with the identifier of its echo requests.
type natKey struct {
	proto Proto
	local uint16
	dst   netip.AddrPort // port 0 for ICMP
}

// natFlow is one flow, with a connected socket of the host, so that the kernel
// passes on answers of the peer only.
type natFlow struct {
	key      natKey
	socket   *os.File
	raw      syscall.RawConn
	lastUsed atomic.Int64 // Unix nanoseconds
	ping     pingFlow     // ProtoICMP only

	mu    sync.Mutex
	quote header.IPv4 // guarded by mu: the last packet sent, for ICMP errors
}

// natTable holds the flows of datagrams.
type natTable struct {
	mu     sync.Mutex
	closed bool                // guarded by mu
	flows  map[natKey]*natFlow // guarded by mu
	count  [ProtoDNS]int       // guarded by mu; flows by protocol
}

func (t *natTable) lookup(k natKey) *natFlow {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.flows[k]
}

// add puts a flow in and returns the one that has to make room for it, or nil.
// It returns false if the table is closed.
func (t *natTable) add(f *natFlow, limit int) (evicted *natFlow, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, false
	}
	if t.count[f.key.proto] >= limit {
		for _, g := range t.flows {
			if g.key.proto == f.key.proto && (evicted == nil || g.lastUsed.Load() < evicted.lastUsed.Load()) {
				evicted = g
			}
		}
		t.removeLocked(evicted)
	}
	if t.flows == nil {
		t.flows = make(map[natKey]*natFlow)
	}
	t.flows[f.key] = f
	t.count[f.key.proto]++
	return evicted, true
}

func (t *natTable) remove(f *natFlow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(f)
}

func (t *natTable) removeLocked(f *natFlow) {
	if t.flows[f.key] == f {
		delete(t.flows, f.key)
		t.count[f.key.proto]--
	}
}

func (t *natTable) open() (udp, ping int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count[ProtoUDP], t.count[ProtoICMP]
}

// closeAll ends all flows and refuses new ones.
func (t *natTable) closeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, f := range t.flows {
		f.socket.Close()
	}
}

// natOpen makes a flow over a connected, non-blocking socket, which it takes
// over, and starts to pass on what is received.
func (n *Network) natOpen(f *natFlow, fd, limit int, receive func(*natFlow, []byte)) bool {
	f.socket = os.NewFile(uintptr(fd), "datagrams")
	raw, err := f.socket.SyscallConn()
	if err != nil || !n.begin() {
		f.socket.Close()
		return false
	}
	f.raw = raw
	f.touch()
	evicted, ok := n.nat.add(f, limit)
	if !ok {
		f.socket.Close()
		n.end()
		return false
	}
	if evicted != nil {
		n.counters.datagramEvicted.Add(1)
		evicted.socket.Close()
	}
	n.counters.datagramFlows.Add(1)
	go func() {
		defer n.end()
		defer f.socket.Close()
		defer n.nat.remove(f)
		n.natReceive(f, receive)
	}()
	return true
}

func (f *natFlow) touch() { f.lastUsed.Store(time.Now().UnixNano()) }

// natReceive passes on what the peer sends, until the flow has been idle for
// long enough or its socket is closed.
func (n *Network) natReceive(f *natFlow, receive func(*natFlow, []byte)) {
	for {
		idleEnd := time.Unix(0, f.lastUsed.Load()).Add(n.limits.UDPIdle)
		if !time.Now().Before(idleEnd) || f.socket.SetReadDeadline(idleEnd) != nil {
			return
		}
		buf, size, err := readDatagram(f.raw)
		switch {
		case err == nil:
			f.touch()
			receive(f, buf[:size])
		case errors.Is(err, os.ErrDeadlineExceeded):
		default:
			var errno unix.Errno
			if !errors.As(err, &errno) {
				return // closed
			}
			n.natError(f, errno)
		}
		if buf != nil {
			datagramBuffers.Put(buf)
		}
	}
}

// natError tells the guest of an error that the network reported.
func (n *Network) natError(f *natFlow, err error) {
	f.mu.Lock()
	quote := f.quote
	f.mu.Unlock()
	if code, ok := unreachableCode(err); ok && quote != nil {
		n.sendICMPError(header.ICMPv4DstUnreachable, code, quote)
	}
}

// natSend sends one datagram of the guest; quote is what an error about it
// quotes. It does not block: a full queue loses datagrams.
func (n *Network) natSend(f *natFlow, payload []byte, quote header.IPv4) {
	f.touch()
	f.mu.Lock()
	f.quote = quote
	f.mu.Unlock()
	var err error
	// The first write may report an error about an earlier datagram.
	for range 2 {
		waitErr := f.raw.Write(func(fd uintptr) bool {
			_, err = unix.Write(int(fd), payload)
			return true
		})
		if waitErr != nil || err == nil {
			return
		}
		if err == unix.EAGAIN || err == unix.EMSGSIZE {
			break
		}
		n.natError(f, err)
	}
	n.counters.datagramDropped.Add(1)
}

// datagramBuffers hold the largest datagram there is.
var datagramBuffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// readDatagram waits for a datagram and reads it into a buffer, which is taken
// only then. The caller gives the buffer back, nil or not.
func readDatagram(raw syscall.RawConn) (buf *[64 << 10]byte, size int, err error) {
	waitErr := raw.Read(func(fd uintptr) bool {
		buf = datagramBuffers.Get().(*[64 << 10]byte)
		size, err = unix.Read(int(fd), buf[:])
		if err == unix.EAGAIN || err == unix.EINTR {
			datagramBuffers.Put(buf)
			buf = nil
			return false
		}
		return true
	})
	if waitErr != nil {
		return buf, 0, waitErr
	}
	return buf, max(size, 0), err
}

// datagramSocket opens a socket that is connected to dst.
func datagramSocket(typ, proto int, dst netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, typ|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: dst.Addr().As4(), Port: int(dst.Port())}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
