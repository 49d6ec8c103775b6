package usernet

import (
	"bytes"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

func TestUDPEcho(t *testing.T) {
	for _, mtu := range []int{1500, DefaultMTU} {
		g, n := newGuest(t, Config{MTU: mtu})
		c := g.dialUDP(listenUDP(t, bytes.Clone))
		// Larger ones than the MTU go in fragments, both ways.
		for _, size := range []int{0, 1, 1472, 1473, 9000, 65507} {
			sent := make([]byte, size)
			rand.NewChaCha8([32]byte{byte(size)}).Read(sent)
			if _, err := c.Write(sent); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 64<<10)
			k, err := c.Read(got)
			if err != nil || !bytes.Equal(got[:k], sent) {
				t.Fatalf("mtu %d, %d bytes: got %d bytes, %v", mtu, size, k, err)
			}
		}
		if s := n.Stats(); s.UDPOpen != 1 || s.DatagramFlows != 1 || s.DatagramDropped != 0 {
			t.Errorf("stats %+v", s)
		}
	}
}

// Only the peer of a flow can send into it.
func TestUDPOnlyFromPeer(t *testing.T) {
	g, _ := newGuest(t, Config{})
	stranger, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	peer, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	c := g.dialUDP(peer.LocalAddr().(*net.UDPAddr).AddrPort())
	c.Write([]byte("hello"))
	buf := make([]byte, 16)
	_, from, err := peer.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	stranger.WriteTo([]byte("stranger"), from)
	peer.WriteTo([]byte("peer"), from)
	k, err := c.Read(buf)
	if err != nil || string(buf[:k]) != "peer" {
		t.Errorf("got %q, %v", buf[:k], err)
	}
}

func TestUDPPortUnreachable(t *testing.T) {
	_, conn := startNetwork(t, Config{})
	l, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.LocalAddr().(*net.UDPAddr).AddrPort()
	l.Close()
	segment := udpSegment(5000, addr.Port(), []byte("anyone?"))
	writeFrames(conn, packet{dst: addr.Addr(), proto: header.UDPProtocolNumber, payload: segment}.frame())
	expectUnreachable(t, conn, header.ICMPv4PortUnreachable, addr.Addr(), segment[:8])
}

func TestUDPIdle(t *testing.T) {
	g, n := newGuest(t, Config{Limits: Limits{UDPIdle: 20 * time.Millisecond}})
	addr := listenUDP(t, bytes.Clone)
	c := g.dialUDP(addr)
	for range 2 { // the second time makes a new flow
		c.Write([]byte("x"))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the idle flow to end", func() bool { return n.Stats().UDPOpen == 0 })
	}
	if got := n.Stats().DatagramFlows; got < 2 {
		t.Errorf("%d flows", got)
	}
}

// The longest idle flow makes room for a new one.
func TestUDPEviction(t *testing.T) {
	g, n := newGuest(t, Config{Limits: Limits{UDPFlows: 4}})
	addr := listenUDP(t, bytes.Clone)
	for range 10 {
		c := g.dialUDP(addr)
		c.Write([]byte("x"))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if s := n.Stats(); s.UDPOpen != 4 || s.DatagramEvicted != 6 {
		t.Errorf("stats %+v", s)
	}
}

func TestPingGateway(t *testing.T) {
	_, conn := startNetwork(t, Config{})
	for _, dst := range []netip.Addr{GatewayAddr, DNSAddr} {
		pingOnce(t, conn, dst, 64)
	}
}

func TestPingOutside(t *testing.T) {
	_, conn := startNetwork(t, Config{})
	dst := netip.MustParseAddr("127.0.0.1")
	if f := HostFeatures(); f.Ping == PingNone {
		echo := echoRequest(7, 1, nil)
		writeFrames(conn, packet{dst: dst, proto: header.ICMPv4ProtocolNumber, payload: echo}.frame())
		expectUnreachable(t, conn, icmpProhibited, dst, echo[:8])
		t.Skip("this host permits neither ping sockets nor raw sockets; only the refusal was tested")
	}
	pingOnce(t, conn, dst, 64)
	pingOnce(t, conn, dst, 2)
}

func pingOnce(t *testing.T, conn net.Conn, dst netip.Addr, ttl uint8) {
	t.Helper()
	payload := []byte("0123456789abcdef")
	writeFrames(conn, packet{dst: dst, ttl: ttl, proto: header.ICMPv4ProtocolNumber, payload: echoRequest(7, 3, payload)}.frame())
	ip := nextIPv4(t, conn)
	m := header.ICMPv4(ip.Payload())
	if hostAddr(ip.SourceAddress()) != dst || m.Type() != header.ICMPv4EchoReply || m.Ident() != 7 || m.Sequence() != 3 ||
		!bytes.Equal(m.Payload(), payload) || header.ICMPv4Checksum(m, 0) != m.Checksum() {
		t.Errorf("ping %v: got %x from %v", dst, []byte(m), ip.SourceAddress())
	}
}

func TestPingFeatures(t *testing.T) {
	want := PingNone
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP); err == nil {
		unix.Close(fd)
		want = PingRaw
	}
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP); err == nil {
		unix.Close(fd)
		want = PingSocket
	}
	if got := HostFeatures().Ping; got != want {
		t.Errorf("Ping %q, want %q", got, want)
	}
}
