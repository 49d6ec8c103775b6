package usernet

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const (
	dnsPort = 53
	// dnsUDPMax bounds a reply over UDP even if the guest would take more;
	// RFC 9715 wants large ones to go over TCP.
	dnsUDPMax = 4096
	// dnsTimeout is for a question in all; resolv.conf(5) gives a question
	// 5 seconds and two attempts.
	dnsTimeout = 10 * time.Second
	// dnsIdle ends a TCP connection without questions (RFC 7766, 6.2.3).
	dnsIdle = 10 * time.Second
)

// dnsServer answers questions by asking the resolvers of the host.
type dnsServer struct {
	upstream upstream
	slots    slots
}

func newDNSServer(resolvers []netip.AddrPort, path string, limit int) *dnsServer {
	d := &dnsServer{upstream: upstream{static: resolvers, path: path}}
	if path == "" {
		d.upstream.path = "/etc/resolv.conf"
	}
	d.slots.max = limit
	return d
}

// handleDNSOverUDP serves one datagram. Over the limit it is dropped, as the
// guest's resolver repeats it.
func (n *Network) handleDNSOverUDP(port uint16, query []byte) {
	if _, ok := n.dns.slots.take(); !ok {
		n.counters.dnsDropped.Add(1)
		return
	}
	if !n.begin() {
		n.dns.slots.give()
		return
	}
	go func() {
		defer n.end()
		defer n.dns.slots.give()
		if reply := n.answer(query, false); reply != nil {
			n.udpToGuest(netip.AddrPortFrom(DNSAddr, dnsPort), port, reply)
		}
	}()
}

// serveDNSConn serves a TCP connection, one question after the other.
func (n *Network) serveDNSConn(conn net.Conn) {
	stop := context.AfterFunc(n.ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for n.ctx.Err() == nil {
		conn.SetDeadline(time.Now().Add(dnsIdle))
		var length [2]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		if _, ok := n.dns.slots.take(); !ok {
			n.counters.dnsDropped.Add(1)
			return
		}
		reply := n.answer(query, true)
		n.dns.slots.give()
		if reply == nil {
			return
		}
		conn.SetDeadline(time.Now().Add(dnsIdle))
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

// answer returns the reply to a message of the guest, or nil for none.
func (n *Network) answer(query []byte, overTCP bool) []byte {
	var q dns.Msg
	if err := q.Unpack(query); err != nil {
		return formatError(query)
	}
	if q.Response {
		return nil
	}
	n.counters.dnsQueries.Add(1)
	reply := n.resolve(&q)
	reply.Id = q.Id
	reply.Compress = true
	if !overTCP {
		reply.Truncate(udpReplySize(&q))
	}
	b, err := reply.Pack()
	if err != nil || len(b) > dns.MaxMsgSize {
		n.counters.dnsFailed.Add(1)
		b, err = rcodeReply(&q, dns.RcodeServerFailure).Pack()
		if err != nil {
			return nil
		}
	}
	return b
}

// resolve answers a question or has it answered. The reply's ID may be wrong.
func (n *Network) resolve(q *dns.Msg) *dns.Msg {
	switch {
	case q.Opcode != dns.OpcodeQuery:
		return rcodeReply(q, dns.RcodeNotImplemented)
	case len(q.Question) != 1:
		return rcodeReply(q, dns.RcodeFormatError)
	}
	question := q.Question[0]
	switch {
	case question.Qclass != dns.ClassINET, question.Qtype == dns.TypeAXFR, question.Qtype == dns.TypeIXFR:
		return rcodeReply(q, dns.RcodeRefused)
	case !n.decide(Flow{Proto: ProtoDNS, Name: flowName(question.Name)}):
		return rcodeReply(q, dns.RcodeRefused)
	case question.Qtype == dns.TypeAAAA:
		return rcodeReply(q, dns.RcodeSuccess) // no data: there is no IPv6
	}
	ctx, cancel := context.WithTimeout(n.ctx, dnsTimeout)
	defer cancel()
	reply, err := n.dns.upstream.exchange(ctx, forwardedQuery(q))
	if err != nil {
		n.counters.dnsFailed.Add(1)
		n.log.Debug("dns question failed", "err", err)
		return rcodeReply(q, dns.RcodeServerFailure)
	}
	return guestReply(q, reply)
}

// flowName is the form in which a policy sees a name.
func flowName(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// rcodeReply answers without records.
func rcodeReply(q *dns.Msg, rcode int) *dns.Msg {
	reply := new(dns.Msg)
	reply.SetRcode(q, rcode)
	reply.RecursionAvailable = true
	if opt := q.IsEdns0(); opt != nil {
		reply.SetEdns0(dnsUDPMax, opt.Do())
	}
	return reply
}

// forwardedQuery is the question as it is put to a resolver: nothing else of
// the guest's message goes out, but the flags of DNSSEC.
func forwardedQuery(q *dns.Msg) *dns.Msg {
	f := new(dns.Msg)
	f.Id = dns.Id()
	f.RecursionDesired = true
	f.CheckingDisabled = q.CheckingDisabled
	f.Question = q.Question
	opt := q.IsEdns0()
	f.SetEdns0(1232, opt != nil && opt.Do()) // size as of DNS flag day 2020
	return f
}

// guestReply turns a resolver's reply into the guest's.
func guestReply(q, upstream *dns.Msg) *dns.Msg {
	reply := rcodeReply(q, upstream.Rcode)
	reply.AuthenticatedData = upstream.AuthenticatedData
	reply.CheckingDisabled = upstream.CheckingDisabled
	reply.Answer, reply.Ns = upstream.Answer, upstream.Ns
	for _, rr := range upstream.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			reply.Extra = append(reply.Extra, rr)
		}
	}
	return reply
}

// udpReplySize is the largest reply the asker takes over UDP.
func udpReplySize(q *dns.Msg) int {
	size := dns.MinMsgSize
	if opt := q.IsEdns0(); opt != nil {
		size = int(opt.UDPSize())
	}
	return min(max(size, dns.MinMsgSize), dnsUDPMax)
}

// formatError answers what cannot be parsed, if it has a header of a question.
func formatError(query []byte) []byte {
	const headerSize, responseBit = 12, 0x80
	if len(query) < headerSize || query[2]&responseBit != 0 {
		return nil
	}
	reply := dns.Msg{MsgHdr: dns.MsgHdr{Id: binary.BigEndian.Uint16(query), Response: true, Rcode: dns.RcodeFormatError}}
	b, err := reply.Pack()
	if err != nil {
		return nil
	}
	return b
}
