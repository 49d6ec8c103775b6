package usernet

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// ingress sorts a frame of the guest; it owns it. Every frame has at least an
// Ethernet header (see link.readFrames).
func (n *Network) ingress(frame *buffer.View) {
	eth := header.Ethernet(frame.AsSlice())
	src := eth.SourceAddress()
	if header.IsMulticastEthernetAddress(src) || src == header.UnspecifiedEthernetAddress {
		n.counters.rxMalformed.Add(1)
		frame.Release()
		return
	}
	switch eth.Type() {
	case header.ARPProtocolNumber:
		n.handleARP(src, header.ARP(frame.AsSlice()[header.EthernetMinimumSize:]))
		frame.Release()
	case header.IPv4ProtocolNumber:
		n.handleIPv4(src, frame)
	default:
		// IPv6, VLAN tags and the like: nobody is there.
		n.counters.rxIgnored.Add(1)
		frame.Release()
	}
}

// handleIPv4 drops what must not come from a guest and sorts the rest.
func (n *Network) handleIPv4(src tcpip.LinkAddress, frame *buffer.View) {
	frame.TrimFront(header.EthernetMinimumSize)
	ip := header.IPv4(frame.AsSlice())
	if !ip.IsValid(len(ip)) {
		n.counters.rxMalformed.Add(1)
		frame.Release()
		return
	}
	if ip.SourceAddress() != stackAddr(GuestAddr) {
		n.counters.rxSpoofed.Add(1)
		frame.Release()
		return
	}
	n.link.learn(src)
	if n.refusePacket(ip) {
		frame.Release()
		return
	}
	if ip.TransportProtocol() == header.ICMPv4ProtocolNumber && !isOwn(ip.DestinationAddress()) {
		n.handlePing(ip)
		frame.Release()
		return
	}
	n.link.deliver(frame)
}

// refusePacket answers packets that no flow can come of, and reports whether
// ip was one.
func (n *Network) refusePacket(ip header.IPv4) bool {
	dst := ip.DestinationAddress()
	addr := hostAddr(dst)
	switch {
	case addr.IsMulticast(), dst == header.IPv4Broadcast, dst == header.IPv4Any, addr == subnetBroadcast:
		// Never answered with an error (RFC 1122, 3.2.2).
		n.counters.rxIgnored.Add(1)
		return true
	case isOwn(dst):
		return false
	case ip.TTL() <= 1:
		n.sendICMPError(header.ICMPv4TimeExceeded, header.ICMPv4TTLExceeded, ip)
		return true
	}
	switch ip.TransportProtocol() {
	case header.TCPProtocolNumber, header.UDPProtocolNumber, header.ICMPv4ProtocolNumber:
		return false
	}
	n.counters.rxIgnored.Add(1)
	n.sendICMPError(header.ICMPv4DstUnreachable, header.ICMPv4ProtoUnreachable, ip)
	return true
}

// subnetBroadcast is the last address of Subnet.
var subnetBroadcast = netip.MustParseAddr("10.0.2.255")

func isOwn(a tcpip.Address) bool { return a == stackAddr(GatewayAddr) || a == stackAddr(DNSAddr) }

// handleARP answers requests for the gateway and the DNS server (RFC 826), and
// learns the guest's hardware address from what it says of itself.
func (n *Network) handleARP(src tcpip.LinkAddress, arp header.ARP) {
	if len(arp) < header.ARPSize || !arp.IsValid() {
		n.counters.rxMalformed.Add(1)
		return
	}
	if tcpip.AddrFrom4Slice(arp.ProtocolAddressSender()) == stackAddr(GuestAddr) {
		n.link.learn(src)
	}
	target := tcpip.AddrFrom4Slice(arp.ProtocolAddressTarget())
	if arp.Op() != header.ARPRequest || !isOwn(target) {
		return
	}
	var sender [4]byte
	copy(sender[:], arp.ProtocolAddressSender())
	// An error closes the link, which readFrames sees.
	_ = n.link.writeFrame(arpFrame(header.ARPReply, src, target.As4(), sender))
}

// writeARPRequest asks who the guest is.
func (l *link) writeARPRequest() error {
	return l.writeFrame(arpFrame(header.ARPRequest, header.EthernetBroadcastAddress, GatewayAddr.As4(), GuestAddr.As4()))
}

// arpFrame makes an ARP packet from the gateway's hardware address, with
// length and Ethernet header.
func arpFrame(op header.ARPOp, to tcpip.LinkAddress, sender, target [4]byte) []byte {
	b := make([]byte, lengthSize+header.EthernetMinimumSize+header.ARPSize)
	binary.BigEndian.PutUint32(b, header.EthernetMinimumSize+header.ARPSize)
	header.Ethernet(b[lengthSize:]).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(GatewayMAC), DstAddr: to, Type: header.ARPProtocolNumber})
	arp := header.ARP(b[lengthSize+header.EthernetMinimumSize:])
	arp.SetIPv4OverEthernet()
	arp.SetOp(op)
	copy(arp.HardwareAddressSender(), GatewayMAC)
	copy(arp.ProtocolAddressSender(), sender[:])
	if op == header.ARPReply {
		copy(arp.HardwareAddressTarget(), to)
	}
	copy(arp.ProtocolAddressTarget(), target[:])
	return b
}
