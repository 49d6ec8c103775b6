package usernet

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

func arpRequest(sender, target netip.Addr) []byte {
	b := make([]byte, header.ARPSize)
	a := header.ARP(b)
	a.SetIPv4OverEthernet()
	a.SetOp(header.ARPRequest)
	copy(a.HardwareAddressSender(), testMAC)
	copy(a.ProtocolAddressSender(), sender.AsSlice())
	copy(a.ProtocolAddressTarget(), target.AsSlice())
	return b
}

func TestARP(t *testing.T) {
	_, conn := startNetwork(t, Config{})
	for _, tc := range []struct {
		sender, target netip.Addr
		answered       bool
	}{
		{GuestAddr, netip.MustParseAddr("10.0.2.4"), false},
		{GuestAddr, netip.MustParseAddr("8.8.8.8"), false},
		{GuestAddr, GuestAddr, false}, // address probe: must stay unanswered
		{netip.MustParseAddr("0.0.0.0"), GuestAddr, false},
		{GuestAddr, GatewayAddr, true},
		{GuestAddr, DNSAddr, true},
	} {
		writeFrames(conn, ethFrame(testMAC, header.ARPProtocolNumber, arpRequest(tc.sender, tc.target)))
		if !tc.answered {
			continue // a wrong answer would be the next one read
		}
		conn.SetReadDeadline(time.Now().Add(testTimeout))
		b, err := readFrame(conn)
		if err != nil {
			t.Fatal(err)
		}
		a := header.ARP(b[header.EthernetMinimumSize:])
		if a.Op() != header.ARPReply || tcpip.AddrFrom4Slice(a.ProtocolAddressSender()) != stackAddr(tc.target) ||
			tcpip.LinkAddress(a.HardwareAddressSender()) != tcpip.LinkAddress(GatewayMAC) || header.Ethernet(b).DestinationAddress() != testMAC {
			t.Errorf("answer for %v: %x", tc.target, b)
		}
	}
}

// A guest may change its hardware address, as one does after a restore.
func TestGuestAddressIsLearnt(t *testing.T) {
	_, conn := startNetwork(t, Config{})
	for _, mac := range []tcpip.LinkAddress{testMAC, "\x02\x00\x00\x00\x00\x99", testMAC} {
		b := packet{dst: GatewayAddr, proto: header.ICMPv4ProtocolNumber, payload: echoRequest(1, 1, nil)}.frame()
		copy(b[6:], mac)
		writeFrames(conn, b)
		conn.SetReadDeadline(time.Now().Add(testTimeout))
		reply, err := readFrame(conn)
		if err != nil {
			t.Fatal(err)
		}
		if got := header.Ethernet(reply).DestinationAddress(); got != mac {
			t.Errorf("reply to %v, want %v", got, mac)
		}
	}
}

// Each frame is dropped silently and counted, and the link goes on.
func TestDroppedFrames(t *testing.T) {
	outside := netip.MustParseAddr("127.0.0.1")
	valid := func() []byte {
		return packet{dst: outside, proto: header.UDPProtocolNumber, payload: udpSegment(1, 2, []byte("x"))}.frame()
	}
	patch := func(at int, v ...byte) []byte {
		b := valid()
		copy(b[at:], v)
		return b
	}
	const eth = header.EthernetMinimumSize
	malformed := func(s Stats) uint64 { return s.RxMalformed }
	ignored := func(s Stats) uint64 { return s.RxIgnored }
	spoofed := func(s Stats) uint64 { return s.RxSpoofed }
	udp := func(p packet) []byte {
		p.proto, p.payload = header.UDPProtocolNumber, udpSegment(1, 2, nil)
		return p.frame()
	}
	for name, tc := range map[string]struct {
		frame   []byte
		counter func(Stats) uint64
	}{
		"empty":                  {nil, malformed},
		"shorter than a header":  {make([]byte, 13), malformed},
		"larger than the MTU":    {make([]byte, DefaultMTU+15), malformed},
		"header only":            {valid()[:eth], malformed},
		"short IPv4":             {valid()[:eth+19], malformed},
		"version 6":              {patch(eth, 0x65), malformed},
		"header length 4":        {patch(eth, 0x44), malformed},
		"header beyond packet":   {patch(eth, 0x4f), malformed},
		"length beyond frame":    {patch(eth+2, 0xff, 0xff), malformed},
		"length below header":    {patch(eth+2, 0, 19), malformed},
		"UDP length too large":   {patch(eth+24, 0, 100), malformed},
		"UDP length too small":   {patch(eth+24, 0, 7), malformed},
		"source group address":   {patch(6, 1), malformed},
		"source address zero":    {patch(6, 0, 0, 0, 0, 0, 0), malformed},
		"short ARP":              {ethFrame(testMAC, header.ARPProtocolNumber, make([]byte, 27)), malformed},
		"ARP of another kind":    {ethFrame(testMAC, header.ARPProtocolNumber, make([]byte, 28)), malformed},
		"IPv6":                   {ethFrame(testMAC, header.IPv6ProtocolNumber, make([]byte, 40)), ignored},
		"VLAN":                   {ethFrame(testMAC, 0x8100, make([]byte, 40)), ignored},
		"multicast":              {udp(packet{dst: netip.MustParseAddr("224.0.0.251")}), ignored},
		"broadcast":              {udp(packet{dst: netip.MustParseAddr("255.255.255.255")}), ignored},
		"subnet broadcast":       {udp(packet{dst: netip.MustParseAddr("10.0.2.255")}), ignored},
		"destination unset":      {udp(packet{dst: netip.MustParseAddr("0.0.0.0")}), ignored},
		"ICMP that is no echo":   {packet{dst: outside, proto: header.ICMPv4ProtocolNumber, payload: make([]byte, 8)}.frame(), ignored},
		"short ICMP":             {packet{dst: outside, proto: header.ICMPv4ProtocolNumber, payload: make([]byte, 7)}.frame(), ignored},
		"fragment of ICMP":       {packet{dst: outside, flags: header.IPv4FlagMoreFragments, proto: header.ICMPv4ProtocolNumber, payload: echoRequest(1, 1, nil)}.frame(), ignored},
		"spoofed gateway":        {udp(packet{src: GatewayAddr, dst: outside}), spoofed},
		"spoofed outside":        {udp(packet{src: outside, dst: outside}), spoofed},
		"DHCP":                   {udp(packet{src: netip.MustParseAddr("0.0.0.0"), dst: netip.MustParseAddr("255.255.255.255")}), spoofed},
		"spoofed, same subnet":   {udp(packet{src: netip.MustParseAddr("10.0.2.16"), dst: outside}), spoofed},
		"spoofed, to the server": {udp(packet{src: outside, dst: DNSAddr}), spoofed},
	} {
		t.Run(name, func(t *testing.T) {
			n, conn := startNetwork(t, Config{})
			if err := writeFrames(conn, tc.frame); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the counter", func() bool { return tc.counter(n.Stats()) == 1 })
			// The link still works, and nothing was sent before this.
			writeFrames(conn, packet{dst: GatewayAddr, proto: header.ICMPv4ProtocolNumber, payload: echoRequest(1, 1, nil)}.frame())
			if m := header.ICMPv4(nextIPv4(t, conn).Payload()); m.Type() != header.ICMPv4EchoReply {
				t.Errorf("a frame was answered with ICMP type %d", m.Type())
			}
			if s := n.Stats(); s.RxMalformed+s.RxIgnored+s.RxSpoofed != 1 || s.DatagramFlows != 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

func TestPacketsAnsweredWithErrors(t *testing.T) {
	_, conn := startNetwork(t, Config{})
	dst := netip.MustParseAddr("127.0.0.1")
	segment := udpSegment(1, 2, []byte("payload"))
	writeFrames(conn, packet{dst: dst, ttl: 1, proto: header.UDPProtocolNumber, payload: segment}.frame())
	expectICMPError(t, conn, header.ICMPv4TimeExceeded, header.ICMPv4TTLExceeded, dst, segment[:8])
	writeFrames(conn, packet{dst: dst, proto: 132, payload: segment}.frame()) // SCTP
	expectICMPError(t, conn, header.ICMPv4DstUnreachable, header.ICMPv4ProtoUnreachable, dst, segment[:8])
}

// The link ends with an error if, and only if, its framing is broken.
func TestFraming(t *testing.T) {
	frame := packet{dst: GatewayAddr, proto: header.UDPProtocolNumber, payload: udpSegment(1, 2, nil)}.frame()
	for name, tc := range map[string]struct {
		stream []byte
		broken bool
	}{
		"nothing":            {nil, false},
		"one frame":          {append([]byte{0, 0, 0, byte(len(frame))}, frame...), false},
		"largest frame":      {append([]byte{0, 1, 0x10, 0}, make([]byte, maxFrame)...), false},
		"beyond the largest": {append([]byte{0, 1, 0x10, 1}, make([]byte, maxFrame+1)...), true},
		"giant":              {[]byte{0xff, 0xff, 0xff, 0xff}, true},
		"cut length":         {[]byte{0, 0}, true},
		"cut frame":          {[]byte{0, 0, 0, 60, 1, 2, 3}, true},
		"cut dropped frame":  {[]byte{0, 1, 0x10, 0, 1, 2, 3}, true},
		"missing frame":      {[]byte{0, 0, 0, 60}, true},
	} {
		t.Run(name, func(t *testing.T) {
			host, peer := socketPair(t)
			n, err := New(Config{Conn: host})
			if err != nil {
				t.Fatal(err)
			}
			ran := make(chan error)
			go func() { ran <- n.Run(context.Background()) }()
			// Nothing is read before the end, so that no reply blocks it.
			peer.Write(tc.stream)
			peer.(interface{ CloseWrite() error }).CloseWrite()
			if err := <-ran; (err != nil) != tc.broken || tc.broken && !errors.Is(err, errFraming) {
				t.Errorf("Run: %v, want an error: %v", err, tc.broken)
			}
			peer.Close()
		})
	}
}

func TestConfig(t *testing.T) {
	host, peer := socketPair(t)
	defer host.Close()
	defer peer.Close()
	for name, cfg := range map[string]Config{
		"no connection": {},
		"MTU too small": {Conn: host, MTU: MinMTU - 1},
		"MTU too large": {Conn: host, MTU: MaxMTU + 1},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
