package usernet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// upstream asks the resolvers of the host. Their search domains are not used:
// a guest's names are complete.
type upstream struct {
	static []netip.AddrPort // used instead of path, if any
	path   string           // of a resolv.conf(5)

	mu      sync.Mutex
	read    fs.FileInfo // guarded by mu: the file that servers come from
	servers []string    // guarded by mu
}

const (
	upstreamAttempts = 2               // rounds over the servers
	upstreamTimeout  = 3 * time.Second // for one server over UDP or TCP
)

var errNoResolver = errors.New("no resolver configured")

// exchange asks one server after the other until one gives an answer that is
// not its own failure, over TCP if it is too long for UDP.
func (u *upstream) exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	servers, err := u.resolvers()
	if err != nil {
		return nil, err
	}
	err = errNoResolver
	var failed *dns.Msg
	for range upstreamAttempts {
		for _, server := range servers {
			reply, askErr := ask(ctx, server, q)
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case askErr != nil:
				err = askErr
			case reply.Rcode == dns.RcodeServerFailure, reply.Rcode == dns.RcodeNotImplemented, reply.Rcode == dns.RcodeRefused:
				failed = reply
			default:
				return reply, nil
			}
		}
		if failed != nil {
			return failed, nil
		}
	}
	return nil, err
}

// ask asks one server.
func ask(ctx context.Context, server string, q *dns.Msg) (*dns.Msg, error) {
	reply, err := askOver(ctx, "udp", server, q)
	if err == nil && reply.Rcode == dns.RcodeFormatError && reply.IsEdns0() == nil && q.IsEdns0() != nil {
		// A server from before EDNS (RFC 6891, 6.2.2).
		plain := q.Copy()
		plain.Extra = nil
		q = plain
		reply, err = askOver(ctx, "udp", server, q)
	}
	if err == nil && reply.Truncated {
		return askOver(ctx, "tcp", server, q)
	}
	return reply, err
}

func askOver(ctx context.Context, network, server string, q *dns.Msg) (*dns.Msg, error) {
	client := dns.Client{Net: network, Timeout: upstreamTimeout}
	reply, _, err := client.ExchangeContext(ctx, q, server)
	if err != nil {
		return nil, fmt.Errorf("ask %s over %s: %w", server, network, err)
	}
	if len(reply.Question) != 1 || !strings.EqualFold(reply.Question[0].Name, q.Question[0].Name) || reply.Question[0].Qtype != q.Question[0].Qtype {
		return nil, fmt.Errorf("ask %s over %s: the reply is to another question", server, network)
	}
	return reply, nil
}

// resolvers returns host:port of each server. The file is read again when it
// is another one than the last time.
func (u *upstream) resolvers() ([]string, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.static) > 0 {
		if u.servers == nil {
			for _, s := range u.static {
				u.servers = append(u.servers, s.String())
			}
		}
		return u.servers, nil
	}
	info, err := os.Stat(u.path)
	if err != nil {
		return nil, fmt.Errorf("read resolvers: %w", err)
	}
	if u.read != nil && os.SameFile(u.read, info) && u.read.ModTime().Equal(info.ModTime()) && u.read.Size() == info.Size() {
		return u.servers, nil
	}
	cfg, err := dns.ClientConfigFromFile(u.path)
	if err != nil {
		return nil, fmt.Errorf("read resolvers: %w", err)
	}
	servers := make([]string, 0, len(cfg.Servers))
	for _, s := range cfg.Servers {
		servers = append(servers, net.JoinHostPort(s, cfg.Port))
	}
	if len(servers) == 0 {
		servers = []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(dnsPort))} // resolv.conf(5)
	}
	u.read, u.servers = info, servers
	return servers, nil
}
