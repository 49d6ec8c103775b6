package usernet

import (
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// The ways to send echo requests from this host, as in Features.
const (
	PingSocket = "socket" // unprivileged, icmp(7): net.ipv4.ping_group_range
	PingRaw    = "raw"    // needs CAP_NET_RAW
	PingNone   = "none"   // the guest gets "administratively prohibited"
)

// Features are what this process can do for a guest on this host.
type Features struct {
	Ping string // PingSocket, PingRaw or PingNone
}

// HostFeatures finds out what this process can do, by trying.
func HostFeatures() Features {
	loopback := netip.MustParseAddr("127.0.0.1")
	fd, raw, err := pingSocket(loopback)
	if err != nil {
		return Features{Ping: PingNone}
	}
	unix.Close(fd)
	if raw {
		return Features{Ping: PingRaw}
	}
	return Features{Ping: PingSocket}
}

// pingFlow is what a natFlow of echo requests needs besides.
type pingFlow struct {
	raw bool
	id  uint16 // of the requests on a raw socket; the kernel's choice otherwise
	ttl uint8  // set on the socket; only used where packets come in
}

// pingSocket opens a socket for echo requests to addr, of the kind the host
// permits.
func pingSocket(addr netip.Addr) (fd int, raw bool, err error) {
	dst := netip.AddrPortFrom(addr, 0)
	fd, err = datagramSocket(unix.SOCK_DGRAM, unix.IPPROTO_ICMP, dst)
	if err != unix.EACCES && err != unix.EPERM && err != unix.EPROTONOSUPPORT {
		return fd, false, err
	}
	fd, err = datagramSocket(unix.SOCK_RAW, unix.IPPROTO_ICMP, dst)
	return fd, true, err
}

// handlePing takes an ICMP packet to the outside. Only whole echo requests go
// there: errors about flows of the host are none of the guest's business.
func (n *Network) handlePing(ip header.IPv4) {
	icmp := header.ICMPv4(ip.Payload())
	if ip.More() || ip.FragmentOffset() != 0 || len(icmp) < header.ICMPv4MinimumSize || icmp.Type() != header.ICMPv4Echo {
		n.counters.rxIgnored.Add(1)
		return
	}
	// The quote outlives the frame.
	quote := append(header.IPv4(nil), ip[:min(len(ip), int(ip.HeaderLength())+header.ICMPv4MinimumSize)]...)
	key := natKey{proto: ProtoICMP, local: icmp.Ident(), dst: netip.AddrPortFrom(hostAddr(ip.DestinationAddress()), 0)}
	f := n.nat.lookup(key)
	if f == nil {
		if f = n.openPing(key, quote); f == nil {
			return
		}
	}
	n.setTTL(f, ip.TTL()-1)
	n.natSend(f, f.ping.request(icmp), quote)
}

// request makes the packet to send; the kernel sets identifier and checksum on
// an unprivileged socket.
func (p pingFlow) request(icmp header.ICMPv4) []byte {
	b := append(header.ICMPv4(nil), icmp...)
	b.SetIdent(p.id)
	b.SetChecksum(0)
	b.SetChecksum(^checksum.Checksum(b, 0))
	return b
}

// setTTL makes the packet as old as it is for the guest, less this hop.
func (n *Network) setTTL(f *natFlow, ttl uint8) {
	if f.ping.ttl == ttl {
		return
	}
	f.ping.ttl = ttl
	// A flow that is being closed fails here and is lost at the send.
	_ = f.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, int(ttl))
	})
}

// openPing makes a flow, or tells the guest why there is none.
func (n *Network) openPing(key natKey, quote header.IPv4) *natFlow {
	if !n.decide(Flow{Proto: ProtoICMP, Dst: key.dst}) {
		n.sendICMPError(header.ICMPv4DstUnreachable, icmpProhibited, quote)
		return nil
	}
	fd, raw, err := pingSocket(key.dst.Addr())
	if err != nil {
		n.counters.datagramDropped.Add(1)
		if code, ok := unreachableCode(err); ok {
			n.sendICMPError(header.ICMPv4DstUnreachable, code, quote)
		}
		return nil
	}
	f := &natFlow{key: key, ping: pingFlow{raw: raw, id: uint16(rand.Uint32())}}
	if !n.natOpen(f, fd, n.limits.PingFlows, n.receivePing) {
		return nil
	}
	return f
}

// receivePing passes an echo reply on. A raw socket sees all ICMP packets of
// the peer, with IPv4 header, those for other processes included.
func (n *Network) receivePing(f *natFlow, b []byte) {
	if f.ping.raw {
		ip := header.IPv4(b)
		if !ip.IsValid(len(b)) {
			return
		}
		b = ip.Payload()
	}
	icmp := header.ICMPv4(b)
	if len(icmp) < header.ICMPv4MinimumSize || icmp.Type() != header.ICMPv4EchoReply || f.ping.raw && icmp.Ident() != f.ping.id {
		return
	}
	icmp.SetIdent(f.key.local)
	icmp.SetChecksum(0)
	icmp.SetChecksum(^checksum.Checksum(icmp, 0))
	n.sendToGuest(f.key.dst.Addr(), header.ICMPv4ProtocolNumber, icmp)
}
