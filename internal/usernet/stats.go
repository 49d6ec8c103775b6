package usernet

import "sync/atomic"

// Stats are counters since the start of a network, and the flows open now.
type Stats struct {
	RxFrames, RxBytes uint64 // from the guest; bytes with Ethernet headers
	TxFrames, TxBytes uint64 // to the guest
	TxDropped         uint64 // datagrams for the guest that could not be sent

	RxMalformed uint64 // frames that are no valid packets, or too large
	RxSpoofed   uint64 // packets from another address than the guest's
	RxIgnored   uint64 // IPv6, broadcasts, protocols other than TCP, UDP, ICMP

	Denied     uint64 // flows and questions refused by the policy
	ICMPErrors uint64 // errors sent to the guest

	TCPOpen    int    // connections now, those being opened included
	TCPOpened  uint64 // connections made
	TCPFailed  uint64 // connections the outside refused or did not answer
	TCPLimited uint64 // connections refused because of Limits.TCPFlows

	UDPOpen, PingOpen int    // flows now
	DatagramFlows     uint64 // UDP and ICMP flows made
	DatagramEvicted   uint64 // flows ended early because of Limits
	DatagramDropped   uint64 // datagrams of the guest that could not be sent

	DNSQueries uint64 // questions put to the built-in server
	DNSFailed  uint64 // questions no resolver answered
	DNSDropped uint64 // questions dropped because of Limits.DNSQueries
}

type counters struct {
	rxFrames, rxBytes, txFrames, txBytes, txDropped atomic.Uint64
	rxMalformed, rxSpoofed, rxIgnored               atomic.Uint64
	denied, icmpErrors                              atomic.Uint64
	tcpOpened, tcpFailed, tcpLimited                atomic.Uint64
	datagramFlows, datagramEvicted, datagramDropped atomic.Uint64
	dnsQueries, dnsFailed, dnsDropped               atomic.Uint64
}

// Stats returns the counters now. They are read one after the other.
func (n *Network) Stats() Stats {
	c := &n.counters
	udp, ping := n.nat.open()
	return Stats{
		RxFrames: c.rxFrames.Load(), RxBytes: c.rxBytes.Load(),
		TxFrames: c.txFrames.Load(), TxBytes: c.txBytes.Load(), TxDropped: c.txDropped.Load(),
		RxMalformed: c.rxMalformed.Load(), RxSpoofed: c.rxSpoofed.Load(), RxIgnored: c.rxIgnored.Load(),
		Denied: c.denied.Load(), ICMPErrors: c.icmpErrors.Load(),
		TCPOpen: n.tcpSlots.inUse(), TCPOpened: c.tcpOpened.Load(), TCPFailed: c.tcpFailed.Load(), TCPLimited: c.tcpLimited.Load(),
		UDPOpen: udp, PingOpen: ping,
		DatagramFlows: c.datagramFlows.Load(), DatagramEvicted: c.datagramEvicted.Load(), DatagramDropped: c.datagramDropped.Load(),
		DNSQueries: c.dnsQueries.Load(), DNSFailed: c.dnsFailed.Load(), DNSDropped: c.dnsDropped.Load(),
	}
}
