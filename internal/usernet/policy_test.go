package usernet

import (
	"net"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// hostAddrs returns the IPv4 addresses of this host's interfaces.
func hostAddrs(t *testing.T) []netip.Addr {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var out []netip.Addr
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			out = append(out, p.Addr())
		}
	}
	if len(out) == 0 {
		t.Fatal("this host has no IPv4 address, not even loopback")
	}
	return out
}

// deniedAddrs has the ends of every closed range, and addresses people know.
var deniedAddrs = []string{
	"0.0.0.1", "0.255.255.255",
	"10.0.0.0", "10.0.2.2", "10.0.2.3", "10.0.2.4", "10.0.2.15", "10.255.255.255",
	"100.64.0.0", "100.100.100.200", "100.127.255.255",
	"127.0.0.1", "127.0.0.53", "127.255.255.255",
	"168.63.129.16",
	"169.254.0.0", "169.254.169.254", "169.254.170.2", "169.254.255.255",
	"172.16.0.0", "172.17.0.1", "172.31.255.255",
	"192.0.0.0", "192.0.0.192", "192.0.0.255",
	"192.88.99.1",
	"192.168.0.0", "192.168.255.255",
	"198.18.0.0", "198.19.255.255",
	"240.0.0.0", "255.255.255.254",
}

func TestOpenPolicy(t *testing.T) {
	closed := append([]string{"224.0.0.1", "239.255.255.255", "255.255.255.255", "0.0.0.0",
		"::1", "::ffff:127.0.0.1", "::ffff:10.1.2.3", "2606:4700::1111", "fd00::1"}, deniedAddrs...)
	for _, a := range hostAddrs(t) {
		closed = append(closed, a.String())
	}
	open := []string{"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255",
		"128.0.0.0", "168.63.129.15", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0",
		"192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "::ffff:1.1.1.1"}
	policy := OpenPolicy(nil)
	for _, proto := range []Proto{ProtoTCP, ProtoUDP, ProtoICMP} {
		for _, a := range closed {
			if policy.Decide(Flow{Proto: proto, Dst: netip.AddrPortFrom(netip.MustParseAddr(a), 80)}) != Deny {
				t.Errorf("%v to %s is open", proto, a)
			}
		}
		for _, a := range open {
			if policy.Decide(Flow{Proto: proto, Dst: netip.AddrPortFrom(netip.MustParseAddr(a), 80)}) != Allow {
				t.Errorf("%v to %s is closed", proto, a)
			}
		}
	}
	if policy.Decide(Flow{Proto: ProtoDNS, Name: "example.com"}) != Allow {
		t.Error("DNS is closed")
	}
}

func TestOpenPolicyExceptions(t *testing.T) {
	policy := OpenPolicy([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")})
	for addr, want := range map[string]Verdict{"10.1.2.3": Allow, "::ffff:10.1.2.3": Allow, "10.2.0.1": Deny, "192.168.0.1": Deny} {
		if got := policy.Decide(Flow{Proto: ProtoTCP, Dst: netip.AddrPortFrom(netip.MustParseAddr(addr), 80)}); got != want {
			t.Errorf("%s: verdict %v, want %v", addr, got, want)
		}
	}
}

// The host's own addresses are closed even where they are public ones, and so
// is everything when the kernel cannot be asked.
func TestOpenPolicyLocal(t *testing.T) {
	policy := &openPolicy{isLocal: func(a netip.Addr) bool { return a == netip.MustParseAddr("8.8.8.8") }}
	for addr, want := range map[string]Verdict{"8.8.8.8": Deny, "::ffff:8.8.8.8": Deny, "8.8.4.4": Allow} {
		if got := policy.Decide(Flow{Proto: ProtoUDP, Dst: netip.AddrPortFrom(netip.MustParseAddr(addr), 53)}); got != want {
			t.Errorf("%s: verdict %v, want %v", addr, got, want)
		}
	}
	for _, a := range hostAddrs(t) {
		if !hostDeliversLocally(a) {
			t.Errorf("%v is not known as the host's own", a)
		}
	}
}

func TestParseRouteReply(t *testing.T) {
	for name, b := range map[string][]byte{"empty": nil, "short": make([]byte, 20), "unknown type": make([]byte, 64)} {
		if _, err := parseRouteReply(b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Even a policy that allows everything opens nothing inside the virtual
// network.
type allowAll struct{}

func (allowAll) Decide(Flow) Verdict { return Allow }

func TestVirtualNetworkIsNotForwarded(t *testing.T) {
	n, conn := startNetwork(t, Config{Policy: allowAll{}})
	for _, a := range []string{"10.0.2.2", "10.0.2.3", "10.0.2.4", "10.0.2.15"} {
		dst := netip.MustParseAddr(a)
		writeFrames(conn, packet{dst: dst, proto: header.TCPProtocolNumber, payload: tcpSYN(1000, 80, 7)}.frame())
		expectReset(t, conn, dst, 7)
	}
	if got := n.Stats().Denied; got != 4 {
		t.Errorf("Denied %d, want 4", got)
	}
}

// What is denied is shown at once, in the way of each protocol.
func TestDenied(t *testing.T) {
	addrs := deniedAddrs
	for _, a := range hostAddrs(t) {
		addrs = append(addrs, a.String())
	}
	n, conn := startNetwork(t, Config{Policy: OpenPolicy(nil)})
	for i, a := range addrs {
		dst := netip.MustParseAddr(a)
		port := uint16(2000 + i)
		writeFrames(conn, packet{dst: dst, proto: header.TCPProtocolNumber, payload: tcpSYN(port, 80, 7)}.frame())
		expectReset(t, conn, dst, 7)

		segment := udpSegment(port, 81, []byte("payload"))
		writeFrames(conn, packet{dst: dst, proto: header.UDPProtocolNumber, payload: segment}.frame())
		code := icmpProhibited
		if isOwn(stackAddr(dst)) {
			code = header.ICMPv4PortUnreachable
		}
		expectUnreachable(t, conn, code, dst, segment[:8])

		if isOwn(stackAddr(dst)) {
			continue // answers echo requests
		}
		echo := echoRequest(port, 1, nil)
		writeFrames(conn, packet{dst: dst, proto: header.ICMPv4ProtocolNumber, payload: echo}.frame())
		expectUnreachable(t, conn, icmpProhibited, dst, echo[:8])
	}
	if s := n.Stats(); s.Denied != uint64(3*len(addrs)-2) || s.TCPOpened+s.DatagramFlows != 0 {
		t.Errorf("stats %+v", s)
	}
}

func expectReset(t *testing.T, conn net.Conn, from netip.Addr, seq uint32) {
	t.Helper()
	ip := nextIPv4(t, conn)
	if ip.TransportProtocol() != header.TCPProtocolNumber || hostAddr(ip.SourceAddress()) != from {
		t.Fatalf("protocol %d from %v, want a reset from %v", ip.TransportProtocol(), ip.SourceAddress(), from)
	}
	seg := header.TCP(ip.Payload())
	if seg.Flags() != header.TCPFlagRst|header.TCPFlagAck || seg.AckNumber() != seq+1 {
		t.Errorf("%v: flags %v, ack %d: want a reset of %d", from, seg.Flags(), seg.AckNumber(), seq)
	}
}

func expectUnreachable(t *testing.T, conn net.Conn, code header.ICMPv4Code, dst netip.Addr, transport []byte) {
	t.Helper()
	expectICMPError(t, conn, header.ICMPv4DstUnreachable, code, dst, transport)
}

// expectICMPError checks that the next packet is an error from the gateway
// about a packet to dst that began with transport.
func expectICMPError(t *testing.T, conn net.Conn, typ header.ICMPv4Type, code header.ICMPv4Code, dst netip.Addr, transport []byte) {
	t.Helper()
	ip := nextIPv4(t, conn)
	if ip.TransportProtocol() != header.ICMPv4ProtocolNumber || hostAddr(ip.SourceAddress()) != GatewayAddr {
		t.Fatalf("protocol %d from %v, want an ICMP error from the gateway", ip.TransportProtocol(), ip.SourceAddress())
	}
	m := header.ICMPv4(ip.Payload())
	if m.Type() != typ || m.Code() != code {
		t.Errorf("%v: type %d code %d, want %d, %d", dst, m.Type(), m.Code(), typ, code)
	}
	quote := header.IPv4(m[header.ICMPv4MinimumSize:])
	if hostAddr(quote.SourceAddress()) != GuestAddr || hostAddr(quote.DestinationAddress()) != dst {
		t.Errorf("the error quotes a packet from %v to %v, want to %v", quote.SourceAddress(), quote.DestinationAddress(), dst)
	}
	if got := quote[quote.HeaderLength():]; string(got[:len(transport)]) != string(transport) {
		t.Errorf("the error quotes %x, want %x", got, transport)
	}
}
