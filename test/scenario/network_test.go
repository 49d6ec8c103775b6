package scenario

import (
	"io"
	"net"
	"strings"
	"testing"

	"skerry.dev/skerry/client"
	"skerry.dev/skerry/test/testimage"
	"skerry.dev/skerry/test/testserver"
)

// greeter says "hello" to who connects.
func greeter(t *testing.T, addr string) string {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "hello")
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// TestNetworkClosed checks what is closed by default: the host, its networks,
// the address at which clouds keep secrets.
func TestNetworkClosed(t *testing.T) {
	sb := create(t, clientCreate(testimage.Shell))
	_, port, err := net.SplitHostPort(greeter(t, "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	_, any, err := net.SplitHostPort(greeter(t, "0.0.0.0:0"))
	if err != nil {
		t.Fatal(err)
	}
	targets := []string{"127.0.0.2:" + any, "10.0.2.2:" + port, "10.0.2.2:" + any, "10.0.2.3:" + any, "169.254.169.254:80",
		"10.1.2.3:80", "172.16.0.1:80", "192.168.1.1:80", "100.64.0.1:80", "0.0.0.0:" + any}
	for _, ip := range hostAddresses(t) {
		targets = append(targets, net.JoinHostPort(ip, any))
	}
	for _, target := range targets {
		got := sb.mustRoot(t, "probe", "dial", target)
		if !strings.HasPrefix(got, "denied") || strings.Contains(got, "timeout") {
			t.Errorf("%s: %q, want a quick refusal", target, got)
		}
	}
	if got := sb.mustRoot(t, "probe", "ping", "10.0.2.2"); got != "echo payload\n" {
		t.Errorf("echo to the gateway: %q", got)
	}
	// Both are told at once: "administratively prohibited" is EHOSTUNREACH.
	const prohibited = "denied no route to host\n"
	for _, ip := range append(hostAddresses(t), "169.254.169.254", "10.1.2.3") {
		if got := sb.mustRoot(t, "probe", "ping", ip); got != prohibited {
			t.Errorf("echo to %s: %q, want %q", ip, got, prohibited)
		}
		if got := sb.mustRoot(t, "probe", "datagram", ip+":80"); got != prohibited {
			t.Errorf("datagram to %s: %q, want %q", ip, got, prohibited)
		}
	}
}

// hostAddresses are the host's own addresses but the loopback's.
func hostAddresses(t *testing.T) []string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP; ip.To4() != nil && !ip.IsLoopback() {
			list = append(list, ip.String())
		}
	}
	return list
}

// TestNetworkAllowed opens one address on a server of its own, and leaves the
// next one closed. The guest's own loopback is 127.0.0.0/8, so the open address
// is one that is private to the host in another way.
func TestNetworkAllowed(t *testing.T) {
	addresses := hostAddresses(t)
	if len(addresses) == 0 {
		t.Fatal("the host has no address but the loopback's; give it one: ip addr add 198.18.0.1/32 dev lo")
	}
	other := startOther(t, testserver.Options{Args: []string{"--pool", "0", "--allow-egress", addresses[0] + "/32"}})
	sb, err := other.Client.CreateSandbox(t.Context(), client.CreateSandbox{Image: testimage.Shell})
	if err != nil {
		t.Fatal(err)
	}
	tb := runningToolbox(t, other, sb.ID)
	target := greeter(t, addresses[0]+":0")
	if got := execute(t, tb, "probe", "dial", target); got != "got hello\n" {
		t.Errorf("%s, which is allowed: %q", target, got)
	}
	if got := execute(t, tb, "probe", "dial", "169.254.169.254:80"); !strings.HasPrefix(got, "denied") {
		t.Errorf("the metadata address: %q", got)
	}
}

// TestDNS resolves a name that only the host's resolver knows of: every
// sandbox asks it through the platform.
func TestDNS(t *testing.T) {
	sb := create(t, clientCreate(testimage.Shell))
	if got := sb.shell(t, "cat /etc/resolv.conf"); got != "nameserver 10.0.2.3\n" {
		t.Errorf("resolv.conf is %q", got)
	}
	if got := sb.mustRoot(t, "probe", "resolve", "localhost"); !strings.Contains(got, "127.0.0.1") {
		t.Errorf("localhost is %q", got)
	}
	if got, want := sb.shell(t, "hostname -i"), "10.0.2.15"; !strings.Contains(got, want) {
		t.Errorf("the sandbox's own name is %q, want %s", got, want)
	}
}
