package usernet

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// The codes of "destination unreachable" for a refusal by policy (RFC 1812,
// 5.2.7.1) and for resources that have run out.
const (
	icmpProhibited  = header.ICMPv4Code(13)
	maxQuotedPacket = 548 // so that the error fits 576 bytes (RFC 1812, 4.3.2.3)
)

// sendICMPError tells the guest, from the gateway, what became of a packet it
// sent. As RFC 1122, 3.2.2 wants, errors are not sent about errors nor about
// fragments other than the first.
func (n *Network) sendICMPError(typ header.ICMPv4Type, code header.ICMPv4Code, packet header.IPv4) {
	if packet.FragmentOffset() != 0 {
		return
	}
	if packet.TransportProtocol() == header.ICMPv4ProtocolNumber {
		icmp := header.ICMPv4(packet[packet.HeaderLength():])
		if len(icmp) < header.ICMPv4MinimumSize || icmp.Type() != header.ICMPv4Echo {
			return
		}
	}
	quote := packet[:min(int(packet.TotalLength()), len(packet), maxQuotedPacket)]
	b := make([]byte, header.ICMPv4MinimumSize+len(quote))
	icmp := header.ICMPv4(b)
	icmp.SetType(typ)
	icmp.SetCode(code)
	copy(b[header.ICMPv4MinimumSize:], quote)
	icmp.SetChecksum(^checksum.Checksum(b, 0))
	n.counters.icmpErrors.Add(1)
	n.sendToGuest(GatewayAddr, header.ICMPv4ProtocolNumber, b)
}

// quotePacket copies what an ICMP error quotes of a packet: the IPv4 header
// and the first 8 bytes after it (RFC 792).
func quotePacket(pkt *stack.PacketBuffer) header.IPv4 {
	ip, transport := pkt.NetworkHeader().Slice(), pkt.TransportHeader().Slice()
	transport = transport[:min(len(transport), 8)]
	return append(append(make([]byte, 0, len(ip)+len(transport)), ip...), transport...)
}

// sendToGuest sends a transport packet from any address to the guest, in
// fragments if it must. What cannot be sent is lost, as on every network.
func (n *Network) sendToGuest(from netip.Addr, proto tcpip.TransportProtocolNumber, segment []byte) {
	route, err := n.stack.FindRoute(nicID, stackAddr(from), stackAddr(GuestAddr), ipv4.ProtocolNumber, false)
	if err != nil {
		n.counters.txDropped.Add(1)
		return
	}
	defer route.Release()
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(route.MaxHeaderLength()),
		Payload:            buffer.MakeWithData(segment),
	})
	defer pkt.DecRef()
	pkt.TransportProtocolNumber = proto
	if err := route.WritePacket(stack.NetworkHeaderParams{Protocol: proto, TTL: route.DefaultTTL()}, pkt); err != nil {
		n.counters.txDropped.Add(1)
	}
}

// udpToGuest sends a datagram from any address to a port of the guest.
func (n *Network) udpToGuest(from netip.AddrPort, port uint16, payload []byte) {
	if len(payload) > header.UDPMaximumPacketSize-header.IPv4MinimumSize-header.UDPMinimumSize {
		n.counters.txDropped.Add(1)
		return
	}
	b := make([]byte, header.UDPMinimumSize+len(payload))
	u := header.UDP(b)
	u.Encode(&header.UDPFields{SrcPort: from.Port(), DstPort: port, Length: uint16(len(b))})
	copy(b[header.UDPMinimumSize:], payload)
	sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, stackAddr(from.Addr()), stackAddr(GuestAddr), uint16(len(b)))
	sum = ^checksum.Checksum(b, sum)
	if sum == 0 {
		sum = 0xffff // 0 would mean "none" (RFC 768)
	}
	u.SetChecksum(sum)
	n.sendToGuest(from.Addr(), header.UDPProtocolNumber, b)
}

// unreachableCode is what to tell the guest about an error of the host's
// network, and false if the guest should be left to time out.
func unreachableCode(err error) (header.ICMPv4Code, bool) {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return header.ICMPv4PortUnreachable, true
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EHOSTDOWN):
		return header.ICMPv4HostUnreachable, true
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.ENETDOWN):
		return header.ICMPv4NetUnreachable, true
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return icmpProhibited, true // a firewall of the host
	}
	return 0, false
}
