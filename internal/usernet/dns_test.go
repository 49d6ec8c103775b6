package usernet

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

var dnsServerAddr = netip.AddrPortFrom(DNSAddr, dnsPort)

// startResolver runs a DNS server on loopback, over UDP and TCP.
func startResolver(t testing.TB, handle func(w dns.ResponseWriter, q *dns.Msg)) netip.AddrPort {
	t.Helper()
	var l net.Listener
	var pc net.PacketConn
	for l == nil {
		var err error
		if pc, err = net.ListenPacket("udp4", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if l, err = net.Listen("tcp4", pc.LocalAddr().String()); err != nil {
			pc.Close() // another process has this port for TCP
		}
	}
	for _, s := range []*dns.Server{{PacketConn: pc}, {Listener: l}} {
		s.Handler = dns.HandlerFunc(handle)
		started, ended := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { defer close(ended); s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { s.Shutdown(); <-ended })
	}
	return pc.LocalAddr().(*net.UDPAddr).AddrPort()
}

// zone answers like a resolver that knows a few names.
func zone(w dns.ResponseWriter, q *dns.Msg) {
	r := new(dns.Msg)
	r.SetReply(q)
	add := func(s string, args ...any) {
		rr, err := dns.NewRR(fmt.Sprintf(s, args...))
		if err != nil {
			panic(err)
		}
		r.Answer = append(r.Answer, rr)
	}
	name := strings.ToLower(q.Question[0].Name)
	switch {
	case name == "www.test." && q.Question[0].Qtype == dns.TypeA:
		add("www.test. 60 IN CNAME host.test.")
		add("host.test. 60 IN A 192.0.2.7")
	case name == "www.test." && q.Question[0].Qtype == dns.TypeTXT:
		add(`www.test. 60 IN TXT "text"`)
	case name == "large.test.":
		for i := range 200 {
			add("large.test. 60 IN A 192.0.2.%d", i)
		}
		if w.LocalAddr().Network() == "udp" {
			r.Answer, r.Truncated = nil, true
		}
	case name == "broken.test.":
		r.Rcode = dns.RcodeServerFailure
	case name == "old.test." && q.IsEdns0() != nil:
		r.Rcode = dns.RcodeFormatError
	case name == "old.test.":
		add("old.test. 60 IN A 192.0.2.8")
	default:
		r.Rcode = dns.RcodeNameError
	}
	w.WriteMsg(r)
}

func question(name string, typ uint16, edns uint16) *dns.Msg {
	q := new(dns.Msg)
	q.SetQuestion(name, typ)
	if edns != 0 {
		q.SetEdns0(edns, false)
	}
	return q
}

// askGuest puts a message to the built-in server over a guest's connection.
func askGuest(t *testing.T, conn net.Conn, q *dns.Msg) *dns.Msg {
	t.Helper()
	c := &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}
	if err := c.WriteMsg(q); err != nil {
		t.Fatal(err)
	}
	r, err := c.ReadMsg()
	if err != nil {
		t.Fatal(err)
	}
	if r.Id != q.Id || !r.Response || !r.RecursionAvailable {
		t.Errorf("reply %v", r)
	}
	return r
}

func TestDNS(t *testing.T) {
	resolver := startResolver(t, zone)
	g, n := newGuest(t, Config{Resolvers: []netip.AddrPort{resolver}})
	udp := g.dialUDP(dnsServerAddr)
	tcp := g.dialTCP(dnsServerAddr)
	defer tcp.Close()
	chaos := question("version.bind.", dns.TypeTXT, 0)
	chaos.Question[0].Qclass = dns.ClassCHAOS
	notify := question("www.test.", dns.TypeA, 0)
	notify.Opcode = dns.OpcodeNotify
	two := question("www.test.", dns.TypeA, 0)
	two.Question = append(two.Question, two.Question[0])
	for _, tc := range []struct {
		what      string
		q         *dns.Msg
		rcode     int
		udp, tcp  int // answers
		truncated bool
	}{
		{"A", question("www.test.", dns.TypeA, 0), dns.RcodeSuccess, 2, 2, false},
		{"A with EDNS", question("www.test.", dns.TypeA, 1232), dns.RcodeSuccess, 2, 2, false},
		{"mixed case", question("wWw.TeSt.", dns.TypeA, 0), dns.RcodeSuccess, 2, 2, false},
		{"TXT", question("www.test.", dns.TypeTXT, 0), dns.RcodeSuccess, 1, 1, false},
		{"AAAA", question("www.test.", dns.TypeAAAA, 0), dns.RcodeSuccess, 0, 0, false},
		{"no such name", question("none.test.", dns.TypeA, 0), dns.RcodeNameError, 0, 0, false},
		{"single label", question("none.", dns.TypeA, 0), dns.RcodeNameError, 0, 0, false},
		{"resolver's failure", question("broken.test.", dns.TypeA, 0), dns.RcodeServerFailure, 0, 0, false},
		{"resolver without EDNS", question("old.test.", dns.TypeA, 1232), dns.RcodeSuccess, 1, 1, false},
		{"large", question("large.test.", dns.TypeA, 0), dns.RcodeSuccess, 30, 200, true},
		{"large with EDNS", question("large.test.", dns.TypeA, 4096), dns.RcodeSuccess, 200, 200, false},
		{"transfer", question("test.", dns.TypeAXFR, 0), dns.RcodeRefused, 0, 0, false},
		{"another class", chaos, dns.RcodeRefused, 0, 0, false},
		{"another opcode", notify, dns.RcodeNotImplemented, 0, 0, false},
		{"two questions", two, dns.RcodeFormatError, 0, 0, false},
	} {
		r := askGuest(t, udp, tc.q)
		if r.Rcode != tc.rcode || len(r.Answer) != tc.udp && !tc.truncated || r.Truncated != tc.truncated || len(r.Answer) > tc.udp {
			t.Errorf("%s over UDP: %v", tc.what, r)
		}
		r = askGuest(t, tcp, tc.q)
		if r.Rcode != tc.rcode || len(r.Answer) != tc.tcp || r.Truncated {
			t.Errorf("%s over TCP: %v", tc.what, r)
		}
		if (r.IsEdns0() != nil) != (tc.q.IsEdns0() != nil) {
			t.Errorf("%s: EDNS in the reply: %v", tc.what, r.IsEdns0())
		}
	}
	if s := n.Stats(); s.DNSQueries != 30 || s.DNSFailed != 0 {
		t.Errorf("stats %+v", s)
	}
}

// Nothing of the guest's message but the question and DNSSEC flags goes out.
func TestDNSForwardsOnlyTheQuestion(t *testing.T) {
	seen := make(chan *dns.Msg, 1)
	resolver := startResolver(t, func(w dns.ResponseWriter, q *dns.Msg) {
		seen <- q.Copy()
		zone(w, q)
	})
	g, _ := newGuest(t, Config{Resolvers: []netip.AddrPort{resolver}})
	q := question("www.test.", dns.TypeA, 4096)
	q.Id = 4711
	q.CheckingDisabled = true
	q.IsEdns0().SetDo()
	q.IsEdns0().Option = append(q.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: dns.EDNS0LOCALSTART, Data: []byte("secret")})
	extra, _ := dns.NewRR("www.test. 0 IN TXT secret")
	q.Extra = append(q.Extra, extra)
	askGuest(t, g.dialUDP(dnsServerAddr), q)
	got := <-seen
	opt := got.IsEdns0()
	if opt == nil || !opt.Do() || len(opt.Option) != 0 || len(got.Extra) != 1 || !got.CheckingDisabled || !got.RecursionDesired || got.Id == q.Id {
		t.Errorf("forwarded: %v", got)
	}
}

// A dead or failing server does not keep the next one from answering.
func TestDNSNextServer(t *testing.T) {
	dead, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	failing := startResolver(t, func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg)
		w.WriteMsg(r.SetRcode(q, dns.RcodeRefused))
	})
	g, _ := newGuest(t, Config{Resolvers: []netip.AddrPort{
		dead.LocalAddr().(*net.UDPAddr).AddrPort(), failing, startResolver(t, zone)}})
	if r := askGuest(t, g.dialUDP(dnsServerAddr), question("www.test.", dns.TypeA, 0)); len(r.Answer) != 2 {
		t.Errorf("reply %v", r)
	}
}

func TestDNSNoServer(t *testing.T) {
	g, n := newGuest(t, Config{ResolvConf: filepath.Join(t.TempDir(), "none")})
	if r := askGuest(t, g.dialUDP(dnsServerAddr), question("www.test.", dns.TypeA, 0)); r.Rcode != dns.RcodeServerFailure {
		t.Errorf("reply %v", r)
	}
	if got := n.Stats().DNSFailed; got != 1 {
		t.Errorf("DNSFailed %d", got)
	}
}

// A reply to another question is not passed on.
func TestDNSWrongReply(t *testing.T) {
	resolver := startResolver(t, func(w dns.ResponseWriter, q *dns.Msg) {
		q.Question[0].Name = "www.test."
		zone(w, q)
	})
	g, _ := newGuest(t, Config{Resolvers: []netip.AddrPort{resolver}})
	if r := askGuest(t, g.dialUDP(dnsServerAddr), question("victim.test.", dns.TypeA, 0)); r.Rcode != dns.RcodeServerFailure {
		t.Errorf("reply %v", r)
	}
}

func TestDNSPolicy(t *testing.T) {
	var mu sync.Mutex
	var flows []Flow
	policy := policyFunc(func(f Flow) Verdict {
		mu.Lock()
		defer mu.Unlock()
		flows = append(flows, f)
		return Deny
	})
	g, n := newGuest(t, Config{Policy: policy, Resolvers: []netip.AddrPort{startResolver(t, zone)}})
	if r := askGuest(t, g.dialUDP(dnsServerAddr), question("WWW.test.", dns.TypeA, 0)); r.Rcode != dns.RcodeRefused {
		t.Errorf("reply %v", r)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := (Flow{Proto: ProtoDNS, Name: "www.test"}); len(flows) != 1 || flows[0] != want {
		t.Errorf("decided on %v, want %v", flows, want)
	}
	if got := n.Stats().Denied; got != 1 {
		t.Errorf("Denied %d", got)
	}
}

type policyFunc func(Flow) Verdict

func (f policyFunc) Decide(flow Flow) Verdict { return f(flow) }

func TestDNSLimit(t *testing.T) {
	release := make(chan struct{})
	resolver := startResolver(t, func(w dns.ResponseWriter, q *dns.Msg) { <-release; zone(w, q) })
	g, n := newGuest(t, Config{Resolvers: []netip.AddrPort{resolver}, Limits: Limits{DNSQueries: 2}})
	b, err := question("www.test.", dns.TypeA, 0).Pack()
	if err != nil {
		t.Fatal(err)
	}
	c := g.dialUDP(dnsServerAddr)
	for range 5 {
		c.Write(b)
	}
	eventually(t, "the rest to be dropped", func() bool { return n.Stats().DNSDropped == 3 })
	close(release)
	for range 2 {
		if _, err := c.Read(make([]byte, 512)); err != nil {
			t.Fatal(err)
		}
	}
}

// The file is read again when it has changed; search domains are not used.
func TestResolvConf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(text string, age time.Duration) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(path+".new", at, at); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	u := &upstream{path: path}
	for i, tc := range []struct{ text, want string }{
		{"nameserver 127.0.0.53\nsearch corp.test\n", "[127.0.0.53:53]"},
		{"nameserver 192.0.2.1\nnameserver 2001:db8::1\n", "[192.0.2.1:53 [2001:db8::1]:53]"},
		{"nameserver 192.0.2.2\nnameserver 2001:db8::1\n", "[192.0.2.2:53 [2001:db8::1]:53]"},
		{"# none\n", "[127.0.0.1:53]"},
	} {
		write(tc.text, time.Duration(10-i)*time.Second)
		for range 2 {
			got, err := u.resolvers()
			if err != nil || fmt.Sprint(got) != tc.want {
				t.Errorf("%q: servers %v, %v, want %s", tc.text, got, err, tc.want)
			}
		}
	}
}

func TestDNSMalformed(t *testing.T) {
	g, n := newGuest(t, Config{Resolvers: []netip.AddrPort{startResolver(t, zone)}})
	c := g.dialUDP(dnsServerAddr)
	c.Write(nil)
	c.Write(make([]byte, 11)) // no header
	response := question("www.test.", dns.TypeA, 0)
	response.Response = true
	b, _ := response.Pack()
	c.Write(b)
	c.Write(append(b[:12:12], 0xc0)) // a broken response
	broken := binary.BigEndian.AppendUint16(nil, 4711)
	c.Write(append(broken, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0)) // one question, cut short
	buf := make([]byte, 512)
	k, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	var r dns.Msg
	if err := r.Unpack(buf[:k]); err != nil || r.Id != 4711 || r.Rcode != dns.RcodeFormatError {
		t.Errorf("reply %v, %v", r, err)
	}
	if got := n.Stats().DNSQueries; got != 0 {
		t.Errorf("DNSQueries %d", got)
	}
}
