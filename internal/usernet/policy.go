package usernet

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"
)

// Proto is the kind of a flow.
type Proto uint8

// The kinds of flows.
const (
	ProtoTCP  Proto = iota + 1
	ProtoUDP        // one pair of ports and addresses
	ProtoICMP       // echo requests to one address
	ProtoDNS        // one question to the built-in server
)

// String returns the name used in logs.
func (p Proto) String() string {
	switch p {
	case ProtoTCP:
		return "tcp"
	case ProtoUDP:
		return "udp"
	case ProtoICMP:
		return "icmp"
	case ProtoDNS:
		return "dns"
	}
	return "unknown"
}

// Flow is what a policy decides on.
type Flow struct {
	Proto Proto
	// Dst is where the flow goes; port 0 for ICMP, the zero value for DNS.
	Dst netip.AddrPort
	// Name is the name asked for, lower case, without the final dot; DNS only.
	Name string
}

// Verdict is a policy's decision. Its zero value denies.
type Verdict uint8

// The verdicts.
const (
	Deny Verdict = iota
	Allow
)

// Policy decides on every new flow. Decide is called from many goroutines, and
// in the path of packets: it must not block.
type Policy interface {
	Decide(Flow) Verdict
}

// closedPrefixes are never open to a guest unless an operator allows them: the
// blocks that the IANA IPv4 special-purpose address registry marks as not
// globally reachable, and the one public address at which a cloud serves a
// machine's own configuration. The documentation blocks (RFC 5737) are
// missing on purpose: nothing private is at home there, and laboratories use
// them in place of public addresses.
var closedPrefixes = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),        // this network, RFC 791
	netip.MustParsePrefix("10.0.0.0/8"),       // private, RFC 1918
	netip.MustParsePrefix("100.64.0.0/10"),    // carrier-grade NAT, RFC 6598
	netip.MustParsePrefix("127.0.0.0/8"),      // loopback, RFC 1122
	netip.MustParsePrefix("168.63.129.16/32"), // Azure's WireServer
	netip.MustParsePrefix("169.254.0.0/16"),   // link-local and metadata services, RFC 3927
	netip.MustParsePrefix("172.16.0.0/12"),    // private, RFC 1918
	netip.MustParsePrefix("192.0.0.0/24"),     // protocol assignments, RFC 6890
	netip.MustParsePrefix("192.88.99.0/24"),   // 6to4 relays, RFC 7526
	netip.MustParsePrefix("192.168.0.0/16"),   // private, RFC 1918
	netip.MustParsePrefix("198.18.0.0/15"),    // benchmarks, RFC 2544
	netip.MustParsePrefix("224.0.0.0/4"),      // multicast, RFC 5771
	netip.MustParsePrefix("240.0.0.0/4"),      // reserved and broadcast, RFC 1112
}

// openPolicy allows all that is public.
type openPolicy struct {
	allow   []netip.Prefix
	isLocal func(netip.Addr) bool
}

// OpenPolicy allows every public IPv4 address and every DNS question. Closed
// are private and special addresses, and every address that is the host's own
// at that moment, public or not. The prefixes in allow are open in any case;
// they are for operators whose mirrors have private addresses.
func OpenPolicy(allow []netip.Prefix) Policy {
	return &openPolicy{allow: allow, isLocal: hostDeliversLocally}
}

// Decide implements Policy.
func (p *openPolicy) Decide(f Flow) Verdict {
	if f.Proto == ProtoDNS {
		return Allow
	}
	addr := f.Dst.Addr().Unmap()
	switch {
	case !addr.Is4():
		return Deny
	case contains(p.allow, addr):
		return Allow
	case contains(closedPrefixes, addr), p.isLocal(addr):
		return Deny
	}
	return Allow
}

func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// decide is the one place where flows and questions meet the policy. Addresses
// of the virtual network are never put to it: they do not leave this process,
// and what serves there (DNS, echo) is dispatched before.
func (n *Network) decide(f Flow) bool {
	if !Subnet.Contains(f.Dst.Addr()) && n.policy.Decide(f) == Allow {
		return true
	}
	n.counters.denied.Add(1)
	n.denied.log(n.log, f)
	return false
}

// denialLog writes at most one line a second, since a guest decides how many
// refusals there are.
type denialLog struct {
	mu         sync.Mutex
	last       time.Time
	suppressed int
}

func (d *denialLog) log(l *slog.Logger, f Flow) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := time.Now(); now.Sub(d.last) >= time.Second {
		l.Debug("flow denied", "proto", f.Proto.String(), "dst", f.Dst.String(), "name", f.Name, "suppressed", d.suppressed)
		d.last, d.suppressed = now, 0
		return
	}
	d.suppressed++
}
