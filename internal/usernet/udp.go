package usernet

import (
	"net/netip"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// handleUDP takes every datagram of the guest, reassembled. It always returns
// true: the stack has nothing to add.
func (n *Network) handleUDP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	payload := pkt.Data().AsRange().ToSlice()
	size := int(header.UDP(pkt.TransportHeader().Slice()).Length()) - header.UDPMinimumSize
	if size < 0 || size > len(payload) {
		n.counters.rxMalformed.Add(1)
		return true
	}
	payload = payload[:size]
	key := natKey{proto: ProtoUDP, local: id.RemotePort, dst: netip.AddrPortFrom(hostAddr(id.LocalAddress), id.LocalPort)}
	if key.dst == netip.AddrPortFrom(DNSAddr, dnsPort) {
		n.handleDNSOverUDP(key.local, payload)
		return true
	}
	quote := quotePacket(pkt)
	f := n.nat.lookup(key)
	if f == nil {
		if f = n.openUDP(key, quote); f == nil {
			return true
		}
	}
	n.natSend(f, payload, quote)
	return true
}

// openUDP makes a flow, or tells the guest why there is none.
func (n *Network) openUDP(key natKey, quote header.IPv4) *natFlow {
	if !n.decide(Flow{Proto: ProtoUDP, Dst: key.dst}) {
		code := icmpProhibited
		if isOwn(stackAddr(key.dst.Addr())) {
			code = header.ICMPv4PortUnreachable
		}
		n.sendICMPError(header.ICMPv4DstUnreachable, code, quote)
		return nil
	}
	fd, err := datagramSocket(unix.SOCK_DGRAM, 0, key.dst)
	if err != nil {
		n.counters.datagramDropped.Add(1)
		if code, ok := unreachableCode(err); ok {
			n.sendICMPError(header.ICMPv4DstUnreachable, code, quote)
		}
		return nil
	}
	f := &natFlow{key: key}
	if !n.natOpen(f, fd, n.limits.UDPFlows, n.receiveUDP) {
		return nil
	}
	return f
}

func (n *Network) receiveUDP(f *natFlow, payload []byte) {
	n.udpToGuest(f.key.dst, f.key.local, payload)
}
