package usernet

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// FuzzFrames sends two frames of a guest through the whole network, to a policy
// that opens only loopback. The link must end cleanly.
func FuzzFrames(f *testing.F) {
	local, outside := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")
	frag := packet{dst: DNSAddr, id: 1, flags: header.IPv4FlagMoreFragments, proto: header.UDPProtocolNumber, payload: udpSegment(1, 53, make([]byte, 8))}
	last := packet{dst: DNSAddr, id: 1, offset: 16, proto: header.UDPProtocolNumber, payload: make([]byte, 8)}
	query, err := question("www.test.", dns.TypeA, 4096).Pack()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][2][]byte{
		{packet{dst: outside, proto: header.TCPProtocolNumber, payload: tcpSYN(1, 80, 1)}.frame(), nil},
		{packet{dst: local, proto: header.TCPProtocolNumber, payload: tcpSYN(1, 1, 1)}.frame(), nil},
		{packet{dst: DNSAddr, proto: header.TCPProtocolNumber, payload: tcpSYN(1, 53, 1)}.frame(), packet{dst: DNSAddr, proto: header.TCPProtocolNumber, payload: tcpSYN(1, 53, 2)}.frame()},
		{packet{dst: DNSAddr, proto: header.UDPProtocolNumber, payload: udpSegment(1, 53, query)}.frame(), nil},
		{packet{dst: outside, proto: header.UDPProtocolNumber, payload: udpSegment(1, 2, query)}.frame(), nil},
		{packet{dst: outside, proto: header.ICMPv4ProtocolNumber, payload: echoRequest(1, 1, nil)}.frame(), nil},
		{packet{dst: GatewayAddr, proto: header.ICMPv4ProtocolNumber, payload: echoRequest(1, 1, nil)}.frame(), nil},
		{packet{dst: outside, ttl: 1, proto: header.ICMPv4ProtocolNumber, payload: echoRequest(1, 1, nil)}.frame(), nil},
		{frag.frame(), last.frame()},
		{ethFrame(testMAC, header.ARPProtocolNumber, arpRequest(GuestAddr, GatewayAddr)), ethFrame(testMAC, header.IPv6ProtocolNumber, make([]byte, 40))},
	} {
		f.Add(seed[0], seed[1])
	}
	resolver := netip.MustParseAddrPort("127.0.0.1:1") // refuses
	f.Fuzz(func(t *testing.T, first, second []byte) {
		if len(first) > maxFrame || len(second) > maxFrame {
			return
		}
		host, peer := socketPair(t)
		n, err := New(Config{Conn: host, Policy: loopbackOnly, Resolvers: []netip.AddrPort{resolver}})
		if err != nil {
			t.Fatal(err)
		}
		ran := make(chan error)
		go func() { ran <- n.Run(context.Background()) }()
		drained := make(chan struct{})
		go func() { defer close(drained); io.Copy(io.Discard, peer) }()
		writeFrames(peer, first, second)
		peer.(interface{ CloseWrite() error }).CloseWrite()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
		<-drained
		peer.Close()
	})
}

// FuzzStream sends a stream that need not be one of frames.
func FuzzStream(f *testing.F) {
	f.Add([]byte{0, 0, 0, 14, 1, 2, 3})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add(append([]byte{0, 0, 0, 60}, make([]byte, 64)...))
	f.Fuzz(func(t *testing.T, stream []byte) {
		host, peer := socketPair(t)
		l := newLink(host, DefaultMTU, new(counters))
		go func() { peer.Write(stream); peer.Close() }()
		err := l.readFrames(func(b *buffer.View) { b.Release() })
		if err == nil {
			t.Error("the stream ended without an error")
		}
		host.Close()
	})
}

// FuzzDNS gives messages to the built-in server. Whatever it answers must be
// a reply to the message, and fit.
func FuzzDNS(f *testing.F) {
	for _, m := range []*dns.Msg{question("www.test.", dns.TypeA, 0), question("www.test.", dns.TypeAAAA, 4096), question(".", dns.TypeANY, 512)} {
		b, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12})
	n := &Network{policy: policyFunc(func(Flow) Verdict { return Deny }), log: slog.New(slog.DiscardHandler)}
	f.Fuzz(func(t *testing.T, query []byte) {
		for _, overTCP := range []bool{false, true} {
			reply := n.answer(query, overTCP)
			if reply == nil {
				continue
			}
			var m dns.Msg
			if err := m.Unpack(reply); err != nil {
				t.Fatalf("reply %x: %v", reply, err)
			}
			if !m.Response || m.Id != binary.BigEndian.Uint16(query) || !overTCP && len(reply) > dnsUDPMax {
				t.Errorf("reply %v of %d bytes", m, len(reply))
			}
		}
	})
}

// FuzzDNSReply lets a resolver answer anything: the guest's reply must pack.
func FuzzDNSReply(f *testing.F) {
	r := question("www.test.", dns.TypeA, 1232)
	rr, _ := dns.NewRR("www.test. 60 IN A 192.0.2.7")
	r.Answer, r.Response = []dns.RR{rr}, true
	b, err := r.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	q := question("www.test.", dns.TypeA, 1232)
	f.Fuzz(func(t *testing.T, b []byte) {
		var upstream dns.Msg
		if upstream.Unpack(b) != nil {
			return
		}
		reply := guestReply(q, &upstream)
		reply.Compress = true
		reply.Truncate(udpReplySize(q))
		if b, err := reply.Pack(); err == nil && len(b) > udpReplySize(q) && len(upstream.Answer) > 0 {
			t.Errorf("reply of %d bytes", len(b))
		}
	})
}
