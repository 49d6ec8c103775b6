package usernet

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// TestSoak makes thousands of flows, most of which end in different ways, and
// checks that goroutines, descriptors and memory come back.
func TestSoak(t *testing.T) {
	const rounds, workers, perRound = 5, 20, 20
	resolver := startResolver(t, zone)
	tcp := echoServer(t)
	udp := listenUDP(t, bytes.Clone)
	closed := closedPort(t)
	g, n := newGuest(t, Config{Resolvers: []netip.AddrPort{resolver}, Limits: Limits{UDPFlows: 64}})
	query, err := question("www.test.", dns.TypeA, 0).Pack()
	if err != nil {
		t.Fatal(err)
	}
	worker := func(k int) {
		for i := range perRound {
			switch i % 4 {
			case 0, 1: // an end by FIN, an end by the guest's close with data on the way
				c := g.dialTCP(tcp)
				c.Write(make([]byte, 10000))
				if i%4 == 0 {
					c.CloseWrite()
					if _, err := c.Read(make([]byte, 1)); err != nil {
						t.Errorf("read: %v", err)
					}
				}
				c.Close()
			case 2:
				if _, err := g.tryTCP(closed); err == nil || !strings.Contains(err.Error(), "refused") {
					t.Errorf("dial of a closed port: %v", err)
				}
			case 3:
				for addr, payload := range map[netip.AddrPort][]byte{udp: {byte(k)}, dnsServerAddr: query} {
					c := g.dialUDP(addr)
					c.Write(payload)
					if _, err := c.Read(make([]byte, 512)); err != nil {
						t.Errorf("%v: %v", addr, err)
					}
				}
			}
		}
	}
	var goroutines, files int
	var heap uint64
	for round := range rounds {
		var wg sync.WaitGroup
		for k := range workers {
			wg.Go(func() { worker(k) })
		}
		wg.Wait()
		eventually(t, "the connections to end", func() bool { return n.Stats().TCPOpen == 0 })
		if round == 0 { // pools are filled now
			eventually(t, "all UDP flows", func() bool { return n.Stats().UDPOpen == 64 })
			goroutines, files, heap = runtime.NumGoroutine(), openFiles(t), heapInUse()
		}
	}
	s := n.Stats()
	if s.TCPOpened != rounds*workers*perRound/2 || s.TCPFailed != rounds*workers*perRound/4 || s.TCPLimited != 0 || s.UDPOpen != 64 {
		t.Errorf("stats %+v", s)
	}
	eventually(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= goroutines+5 })
	eventually(t, "descriptors to be closed", func() bool { return openFiles(t) <= files+5 })
	eventually(t, "memory to come back", func() bool { return heapInUse() < heap+4<<20 })
}

func closedPort(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // the first only moves pools to their victims
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
