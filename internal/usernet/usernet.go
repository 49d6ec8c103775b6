package usernet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// The fixed network of every sandbox.
var (
	Subnet      = netip.MustParsePrefix("10.0.2.0/24")
	GuestAddr   = netip.MustParseAddr("10.0.2.15")
	GatewayAddr = netip.MustParseAddr("10.0.2.2")
	DNSAddr     = netip.MustParseAddr("10.0.2.3")
	GatewayMAC  = net.HardwareAddr{0x5a, 0x94, 0xef, 0xe4, 0x0c, 0xdd}
)

// DefaultMTU is the IP packet size on the link, in bytes. A large one is what
// makes the link fast, since the cost is per packet (see BenchmarkTCP). QEMU
// must be given the same as host_mtu, and the guest's interface set to it.
const DefaultMTU = 65000

// The bounds of Config.MTU: the smallest every IPv4 host must take (RFC 791)
// and the largest whose frame fits one chunk of the stack's buffers.
const (
	MinMTU = 576
	MaxMTU = 65520
)

// Config describes a network. Only Conn is required.
type Config struct {
	// Conn is the link: each Ethernet frame preceded by its length, 4 bytes,
	// big endian (QEMU's "-netdev stream"). New takes it over.
	Conn net.Conn
	// MTU in bytes is what the guest's interface is set to; 0 is DefaultMTU.
	MTU int
	// Policy decides on flows and DNS questions; nil is OpenPolicy(nil).
	Policy Policy
	// Resolvers are the DNS servers questions are forwarded to. If empty,
	// those of ResolvConf are used, which is read again when it changes.
	Resolvers []netip.AddrPort
	// ResolvConf is a resolv.conf(5); "" is /etc/resolv.conf.
	ResolvConf string
	// Limits bound what the guest can make the network hold; zero fields
	// mean the defaults.
	Limits Limits
	Logger *slog.Logger // nil discards
}

// Limits bound the memory and descriptors one guest can take. A flow takes one
// descriptor. The memory of a TCP flow is bounded by the buffers of tcp.go.
type Limits struct {
	TCPFlows   int           // connections to the outside, those being opened included; default 1024
	UDPFlows   int           // the longest idle makes room for a new one; default 512
	PingFlows  int           // ICMP echo identifiers and destinations; default 32
	DNSQueries int           // questions being answered at a time; default 64
	UDPIdle    time.Duration // after which a UDP flow ends; default 2 minutes (RFC 4787, REQ-5)
	Dial       time.Duration // for a connection to the outside; default 30 seconds
}

func (l Limits) withDefaults() Limits {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&l.TCPFlows, 1024)
	def(&l.UDPFlows, 512)
	def(&l.PingFlows, 32)
	def(&l.DNSQueries, 64)
	if l.UDPIdle <= 0 {
		l.UDPIdle = 2 * time.Minute
	}
	if l.Dial <= 0 {
		l.Dial = 30 * time.Second
	}
	return l
}

// ErrClosed is returned by operations on a closed network.
var ErrClosed = errors.New("usernet: network closed")

const nicID = 1

// pendingRefusals are SYNs that may be waiting for a refusal while all TCPFlows
// are in use.
const pendingRefusals = 64

// Network is the network of one sandbox.
type Network struct {
	policy    Policy
	limits    Limits
	log       *slog.Logger
	denied    denialLog
	counters  counters
	link      *link
	stack     *stack.Stack
	forwarder *tcp.Forwarder
	syns      synTable
	tcpSlots  slots
	nat       natTable
	dns       *dnsServer

	ctx    context.Context // ends with the network
	cancel context.CancelCauseFunc

	closeOnce sync.Once
	mu        sync.Mutex
	closed    bool // guarded by mu
	wg        sync.WaitGroup
}

// New makes a network over cfg.Conn. It does no I/O; Run moves frames.
func New(cfg Config) (*Network, error) {
	if cfg.Conn == nil {
		return nil, errors.New("usernet: no connection")
	}
	if cfg.MTU == 0 {
		cfg.MTU = DefaultMTU
	}
	if cfg.MTU < MinMTU || cfg.MTU > MaxMTU {
		return nil, fmt.Errorf("usernet: MTU %d is not between %d and %d", cfg.MTU, MinMTU, MaxMTU)
	}
	if cfg.Policy == nil {
		cfg.Policy = OpenPolicy(nil)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Network{
		policy: cfg.Policy,
		limits: cfg.Limits.withDefaults(),
		log:    cfg.Logger.With("component", "usernet"),
	}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	n.tcpSlots.max = n.limits.TCPFlows
	n.syns.max = n.limits.TCPFlows + pendingRefusals
	n.dns = newDNSServer(cfg.Resolvers, cfg.ResolvConf, n.limits.DNSQueries)
	n.link = newLink(cfg.Conn, cfg.MTU, &n.counters)
	if err := n.newStack(); err != nil {
		return nil, fmt.Errorf("usernet: make stack: %w", err)
	}
	return n, nil
}

// newStack makes the stack that speaks TCP and reassembles datagrams. Its one
// interface takes packets for every address, and sends from every address.
func (n *Network) newStack() error {
	n.stack = stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			// Loopback addresses are judged by the policy like all others.
			ipv4.NewProtocolWithOptions(ipv4.Options{AllowExternalLoopbackTraffic: true}),
		},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	if err := n.setTCPOptions(); err != nil {
		return err
	}
	if err := n.stack.CreateNIC(nicID, n.link); err != nil {
		return tcpError(err)
	}
	for _, a := range []netip.Addr{GatewayAddr, DNSAddr} {
		pa := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{
			Address: tcpip.AddrFrom4(a.As4()), PrefixLen: Subnet.Bits()}}
		if err := n.stack.AddProtocolAddress(nicID, pa, stack.AddressProperties{}); err != nil {
			return tcpError(err)
		}
	}
	if err := n.stack.SetPromiscuousMode(nicID, true); err != nil {
		return tcpError(err)
	}
	if err := n.stack.SetSpoofing(nicID, true); err != nil {
		return tcpError(err)
	}
	n.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nicID}})
	n.forwarder = tcp.NewForwarder(n.stack, largeBuffer, n.syns.max, n.handleTCP)
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, n.handleSegment)
	n.stack.SetTransportProtocolHandler(udp.ProtocolNumber, n.handleUDP)
	return nil
}

// Run moves frames until the link ends, ctx is done or the network is closed;
// then it closes the network. It returns nil when the peer or Close ended the
// link between two frames. It must be called at most once.
func (n *Network) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { n.link.conn.Close() })
	defer stop()
	err := n.link.readFrames(n.ingress)
	closed := n.ctx.Err() != nil
	if failed := n.link.writeError(); failed != nil && errors.Is(err, net.ErrClosed) {
		err = failed // a failed write has closed the link
	}
	n.Close()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case closed || errors.Is(err, io.EOF):
		return nil
	}
	return fmt.Errorf("usernet: link: %w", err)
}

// Close ends the link and all flows, and returns when nothing of the network
// runs any more. It is idempotent.
func (n *Network) Close() error {
	n.closeOnce.Do(func() {
		n.mu.Lock()
		n.closed = true
		n.mu.Unlock()
		n.cancel(ErrClosed)
		n.link.conn.Close()
		n.nat.closeAll()
		done := make(chan struct{})
		go func() { n.wg.Wait(); close(done) }()
		// A handshake with the guest that begins while endpoints are being
		// aborted would be missed, hence the repetition.
		for waiting := true; waiting; {
			n.stack.Close()
			select {
			case <-done:
				waiting = false
			case <-time.After(20 * time.Millisecond):
			}
		}
		n.stack.Wait()
	})
	return nil
}

// begin registers a goroutine that Close waits for; it returns false when the
// network is closed. The goroutine calls end when it is done.
func (n *Network) begin() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.wg.Add(1)
	return true
}

func (n *Network) end() { n.wg.Done() }

// Dial connects to a TCP port of the guest, from the gateway's address. The
// guest's server must listen on its interface, not only on loopback.
func (n *Network) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if n.ctx.Err() != nil {
		return nil, ErrClosed
	}
	if err := n.link.findGuest(ctx, n.ctx); err != nil {
		return nil, fmt.Errorf("usernet: find guest: %w", err)
	}
	conn, err := gonet.DialTCPWithBind(ctx, n.stack,
		tcpip.FullAddress{NIC: nicID, Addr: stackAddr(GatewayAddr)},
		tcpip.FullAddress{NIC: nicID, Addr: stackAddr(GuestAddr), Port: port}, ipv4.ProtocolNumber)
	if err != nil {
		return nil, fmt.Errorf("usernet: dial guest port %d: %w", port, err)
	}
	return conn, nil
}

func stackAddr(a netip.Addr) tcpip.Address { return tcpip.AddrFrom4(a.As4()) }

func hostAddr(a tcpip.Address) netip.Addr { return netip.AddrFrom4(a.As4()) }

// tcpError makes an error of the stack's, which is none by type.
func tcpError(err tcpip.Error) error { return errors.New(err.String()) }

// slots is a counting semaphore that refuses instead of blocking.
type slots struct {
	mu        sync.Mutex
	used, max int // used guarded by mu
}

// take returns how many slots are in use, its own included, or false.
func (s *slots) take() (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used >= s.max {
		return 0, false
	}
	s.used++
	return s.used, true
}

func (s *slots) give() {
	s.mu.Lock()
	s.used--
	s.mu.Unlock()
}

func (s *slots) inUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}
