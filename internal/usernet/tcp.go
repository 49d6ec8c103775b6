package usernet

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Buffers of a connection towards the guest, in bytes and in each direction.
// The first connections get large ones, since few flows carry the bulk; the
// others small ones. With the default limits a hostile guest can so fill
// 64*2*512 KiB + 960*2*64 KiB, that is 184 MiB, and 64 MiB in transit.
const (
	largeBuffer = 512 << 10
	smallBuffer = 64 << 10
	largeFlows  = 64
)

func (n *Network) setTCPOptions() error {
	sack := tcpip.TCPSACKEnabled(true)
	// Buffers do not grow, so that their bound is the one above.
	moderate := tcpip.TCPModerateReceiveBufferOption(false)
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: largeBuffer, Max: largeBuffer}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: largeBuffer, Max: largeBuffer}
	// Nothing is reordered or late on the link: a port pair may be used
	// again at once.
	timeWait := tcpip.TCPTimeWaitTimeoutOption(time.Second)
	for _, opt := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &receive, &send, &timeWait} {
		if err := n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, opt); err != nil {
			return tcpError(err)
		}
	}
	return nil
}

// synTable holds the SYNs that are being answered, as an ICMP error about them
// quotes them. The stack's forwarder keeps the same set, but does not show the
// sequence number, without which a guest does not believe the error.
type synTable struct {
	mu   sync.Mutex
	max  int
	syns map[stack.TransportEndpointID]header.IPv4 // guarded by mu
}

// add returns false if the SYN is there already, or there are too many.
func (t *synTable) add(id stack.TransportEndpointID, quote header.IPv4) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.syns[id]; ok || len(t.syns) >= t.max {
		return false
	}
	if t.syns == nil {
		t.syns = make(map[stack.TransportEndpointID]header.IPv4)
	}
	t.syns[id] = quote
	return true
}

func (t *synTable) get(id stack.TransportEndpointID) header.IPv4 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.syns[id]
}

func (t *synTable) remove(id stack.TransportEndpointID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.syns, id)
}

// handleSegment takes TCP segments that belong to no connection. It returns
// false for those the stack is to answer with a reset.
func (n *Network) handleSegment(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	const kind = header.TCPFlagSyn | header.TCPFlagAck
	if header.TCP(pkt.TransportHeader().Slice()).Flags()&kind != header.TCPFlagSyn {
		return false
	}
	if !n.syns.add(id, quotePacket(pkt)) {
		return true // the guest repeats it
	}
	if !n.forwarder.HandlePacket(id, pkt) {
		n.syns.remove(id)
		return false
	}
	return true
}

// handleTCP serves a guest's SYN.
func (n *Network) handleTCP(r *tcp.ForwarderRequest) {
	id := r.ID()
	if !n.begin() {
		r.Complete(false)
		n.syns.remove(id)
		return
	}
	defer n.end()
	open, ok := n.tcpSlots.take()
	if !ok {
		n.counters.tcpLimited.Add(1)
		r.Complete(true)
		n.syns.remove(id)
		return
	}
	defer n.tcpSlots.give()
	dst := netip.AddrPortFrom(hostAddr(id.LocalAddress), id.LocalPort)
	if dst == netip.AddrPortFrom(DNSAddr, dnsPort) {
		ep, wq, err := acceptTCP(r, open)
		n.syns.remove(id)
		if err == nil {
			n.serveDNSOverTCP(ep, wq)
		}
		return
	}
	flow := n.openTCP(r, dst, open)
	n.syns.remove(id)
	if flow != nil {
		n.counters.tcpOpened.Add(1)
		flow.run(n.ctx)
	}
}

// openTCP answers a SYN and completes r; it returns nil if there is no
// connection. The outside is dialled before the guest gets an answer, so that
// it sees what there is: a reset, an ICMP error, or silence.
func (n *Network) openTCP(r *tcp.ForwarderRequest, dst netip.AddrPort, open int) *tcpFlow {
	if !n.decide(Flow{Proto: ProtoTCP, Dst: dst}) {
		r.Complete(true)
		return nil
	}
	dialer := net.Dialer{Timeout: n.limits.Dial}
	conn, err := dialer.DialContext(n.ctx, "tcp4", dst.String())
	if err != nil {
		n.refuseTCP(r, err)
		return nil
	}
	host := conn.(*net.TCPConn)
	ep, wq, err := acceptTCP(r, open)
	if err != nil {
		abortHost(host)
		return nil
	}
	return &tcpFlow{guest: ep, queue: wq, host: host}
}

// refuseTCP shows the guest why there is no connection.
func (n *Network) refuseTCP(r *tcp.ForwarderRequest, err error) {
	n.counters.tcpFailed.Add(1)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET) {
		r.Complete(true)
		return
	}
	// What is neither refused nor unreachable (a timeout, no descriptors
	// left) is answered by silence. The guest's next SYN is a new attempt.
	if code, ok := unreachableCode(err); ok {
		n.sendICMPError(header.ICMPv4DstUnreachable, code, n.syns.get(r.ID()))
	}
	r.Complete(false)
}

// acceptTCP completes the handshake with the guest. open is the number of
// connections there are.
func acceptTCP(r *tcp.ForwarderRequest, open int) (tcpip.Endpoint, *waiter.Queue, error) {
	wq := new(waiter.Queue)
	ep, err := r.CreateEndpoint(wq)
	r.Complete(false)
	if err != nil {
		return nil, nil, tcpError(err)
	}
	opts := ep.SocketOptions()
	opts.SetDelayOption(false)
	if open > largeFlows {
		opts.SetReceiveBufferSize(smallBuffer, true)
		opts.SetSendBufferSize(smallBuffer, true)
	}
	return ep, wq, nil
}

// serveDNSOverTCP serves one connection to the DNS server.
func (n *Network) serveDNSOverTCP(ep tcpip.Endpoint, wq *waiter.Queue) {
	conn := gonet.NewTCPConn(wq, ep)
	n.serveDNSConn(conn)
	conn.Close()
	waitEnded(ep, wq)
}
