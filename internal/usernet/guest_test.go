package usernet

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = 20 * time.Second

var (
	testMAC      = tcpip.LinkAddress("\x02\x00\x00\x00\x00\x15")
	loopback     = netip.MustParsePrefix("127.0.0.0/8")
	loopbackOnly = OpenPolicy([]netip.Prefix{loopback})
)

// socketPair returns the two ends of a stream.
func socketPair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if conns[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return conns[0], conns[1]
}

// startNetwork runs a network and returns it with the guest's end of the link.
// The network is closed, and its Run has returned nil, at the end of the test.
func startNetwork(t testing.TB, cfg Config) (*Network, net.Conn) {
	t.Helper()
	host, peer := socketPair(t)
	cfg.Conn = host
	if cfg.Policy == nil {
		cfg.Policy = loopbackOnly
	}
	if testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- n.Run(context.Background()) }()
	t.Cleanup(func() {
		peer.Close()
		n.Close()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return n, peer
}

// testGuest is a guest with a TCP/IP stack of its own.
type testGuest struct {
	t     testing.TB
	stack *stack.Stack
	ep    *channel.Endpoint
	conn  net.Conn
	wg    sync.WaitGroup
}

// newGuest starts a network and a guest on it.
func newGuest(t testing.TB, cfg Config) (*testGuest, *Network) {
	t.Helper()
	n, conn := startNetwork(t, cfg)
	mtu := cfg.MTU
	if mtu == 0 {
		mtu = DefaultMTU
	}
	g := &testGuest{t: t, conn: conn}
	g.ep = channel.New(4096, uint32(mtu+header.EthernetMinimumSize), testMAC)
	g.stack = stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			ipv4.NewProtocolWithOptions(ipv4.Options{AllowExternalLoopbackTraffic: true}), arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	check := func(err tcpip.Error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	check(g.stack.CreateNIC(1, ethernet.New(g.ep)))
	check(g.stack.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: stackAddr(GuestAddr), PrefixLen: 24}}, stack.AddressProperties{}))
	g.stack.SetRouteTable([]tcpip.Route{
		{Destination: tcpip.AddressWithPrefix{Address: stackAddr(Subnet.Addr()), PrefixLen: 24}.Subnet(), NIC: 1},
		{Destination: header.IPv4EmptySubnet, Gateway: stackAddr(GatewayAddr), NIC: 1},
	})
	// This stack takes loopback for on-link, which it is not for the guest.
	check(g.stack.AddStaticNeighbor(1, ipv4.ProtocolNumber, tcpip.AddrFrom4([4]byte{127, 0, 0, 1}), tcpip.LinkAddress(GatewayMAC)))
	ctx, cancel := context.WithCancel(context.Background())
	g.wg.Add(2)
	go g.receive()
	go g.transmit(ctx)
	t.Cleanup(func() {
		cancel()
		conn.Close()
		g.wg.Wait()
		g.stack.Close()
		g.stack.Wait()
		g.ep.Close()
	})
	return g, n
}

func (g *testGuest) receive() {
	defer g.wg.Done()
	for {
		frame, err := readFrame(g.conn)
		if err != nil {
			return
		}
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
		g.ep.InjectInbound(0, pkt)
		pkt.DecRef()
	}
}

func (g *testGuest) transmit(ctx context.Context) {
	defer g.wg.Done()
	for {
		pkt := g.ep.ReadContext(ctx)
		if pkt == nil {
			return
		}
		// ReadContext gives what was on the wire: the header is in place.
		b := pkt.ToView().ToSlice()
		pkt.DecRef()
		if writeFrames(g.conn, b) != nil {
			return
		}
	}
}

func readFrame(r io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

func writeFrames(w io.Writer, frames ...[]byte) error {
	var b bytes.Buffer
	for _, f := range frames {
		b.Write(binary.BigEndian.AppendUint32(nil, uint32(len(f))))
		b.Write(f)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func fullAddr(a netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: 1, Addr: stackAddr(a.Addr()), Port: a.Port()}
}

// tryTCP dials from the guest.
func (g *testGuest) tryTCP(to netip.AddrPort) (*gonet.TCPConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	return gonet.DialContextTCP(ctx, g.stack, fullAddr(to), ipv4.ProtocolNumber)
}

// dialTCP is tryTCP that must succeed.
func (g *testGuest) dialTCP(to netip.AddrPort) *gonet.TCPConn {
	g.t.Helper()
	c, err := g.tryTCP(to)
	if err != nil {
		g.t.Fatalf("dial %v: %v", to, err)
	}
	c.SetDeadline(time.Now().Add(testTimeout))
	return c
}

func (g *testGuest) dialUDP(to netip.AddrPort) *gonet.UDPConn {
	g.t.Helper()
	addr := fullAddr(to)
	c, err := gonet.DialUDP(g.stack, nil, &addr, ipv4.ProtocolNumber)
	if err != nil {
		g.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(testTimeout))
	g.t.Cleanup(func() { c.Close() })
	return c
}

// listenTCP serves connections on loopback, each in a goroutine, until the end
// of the test.
func listenTCP(t testing.TB, serve func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(testTimeout))
				serve(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// listenUDP answers datagrams on loopback with what reply makes of them.
func listenUDP(t testing.TB, reply func([]byte) []byte) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			if r := reply(buf[:n]); r != nil {
				c.WriteTo(r, from)
			}
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(testTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			t.Fatalf("timeout waiting for: %s", what)
		case <-tick.C:
		}
	}
}

// Frames by hand, for a guest that does not behave.

func ethFrame(src tcpip.LinkAddress, typ tcpip.NetworkProtocolNumber, payload []byte) []byte {
	b := make([]byte, header.EthernetMinimumSize, header.EthernetMinimumSize+len(payload))
	header.Ethernet(b).Encode(&header.EthernetFields{SrcAddr: src, DstAddr: tcpip.LinkAddress(GatewayMAC), Type: typ})
	return append(b, payload...)
}

type packet struct {
	src, dst netip.Addr
	proto    tcpip.TransportProtocolNumber
	ttl      uint8
	id       uint16
	flags    uint8
	offset   uint16
	payload  []byte
}

// frame encodes p; zero fields are what a behaving guest sends.
func (p packet) frame() []byte {
	if !p.src.IsValid() {
		p.src = GuestAddr
	}
	if p.ttl == 0 {
		p.ttl = 64
	}
	b := make([]byte, header.IPv4MinimumSize, header.IPv4MinimumSize+len(p.payload))
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(b) + len(p.payload)), ID: p.id, Flags: p.flags, FragmentOffset: p.offset,
		TTL: p.ttl, Protocol: uint8(p.proto), SrcAddr: stackAddr(p.src), DstAddr: stackAddr(p.dst)})
	ip.SetChecksum(^ip.CalculateChecksum())
	return ethFrame(testMAC, header.IPv4ProtocolNumber, append(b, p.payload...))
}

func udpSegment(from uint16, to uint16, payload []byte) []byte {
	b := make([]byte, header.UDPMinimumSize, header.UDPMinimumSize+len(payload))
	header.UDP(b).Encode(&header.UDPFields{SrcPort: from, DstPort: to, Length: uint16(len(b) + len(payload))})
	return append(b, payload...)
}

func tcpSYN(from, to uint16, seq uint32) []byte {
	b := make([]byte, header.TCPMinimumSize)
	header.TCP(b).Encode(&header.TCPFields{SrcPort: from, DstPort: to, SeqNum: seq, DataOffset: header.TCPMinimumSize,
		Flags: header.TCPFlagSyn, WindowSize: 65535})
	return b
}

func echoRequest(id, seq uint16, payload []byte) []byte {
	b := make([]byte, header.ICMPv4MinimumSize, header.ICMPv4MinimumSize+len(payload))
	b = append(b, payload...)
	m := header.ICMPv4(b)
	m.SetType(header.ICMPv4Echo)
	m.SetIdent(id)
	m.SetSequence(seq)
	m.SetChecksum(^checksum.Checksum(b, 0))
	return b
}

// nextIPv4 reads frames until one with an IPv4 packet comes, and checks it.
func nextIPv4(t testing.TB, conn net.Conn) header.IPv4 {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(testTimeout))
	for {
		b, err := readFrame(conn)
		if err != nil {
			t.Fatalf("read frame: %v", err)
		}
		eth := header.Ethernet(b)
		if eth.Type() != header.IPv4ProtocolNumber {
			continue
		}
		ip := header.IPv4(b[header.EthernetMinimumSize:])
		if !ip.IsValid(len(ip)) || !ip.IsChecksumValid() {
			t.Fatalf("invalid packet %x", []byte(ip))
		}
		if eth.DestinationAddress() != testMAC || ip.DestinationAddress() != stackAddr(GuestAddr) {
			t.Fatalf("packet to %v, %v", eth.DestinationAddress(), ip.DestinationAddress())
		}
		return ip
	}
}
