package usernet

import (
	"fmt"
	"io"
	"net"
	"testing"
)

// BenchmarkTCP measures one connection in one direction, the second stack that
// plays the guest included.
func BenchmarkTCP(b *testing.B) {
	const chunk = 1 << 20
	buf := make([]byte, chunk)
	for _, mtu := range []int{1500, 16000, DefaultMTU} {
		b.Run(fmt.Sprintf("to the guest/mtu=%d", mtu), func(b *testing.B) {
			g, _ := newGuest(b, Config{MTU: mtu})
			c := g.dialTCP(listenTCP(b, func(c *net.TCPConn) {
				for range b.N {
					c.Write(buf)
				}
			}))
			b.SetBytes(chunk)
			n, err := io.Copy(io.Discard, c)
			if err != nil || n != int64(b.N)*chunk {
				b.Fatalf("%d bytes, %v", n, err)
			}
			c.Close()
		})
		b.Run(fmt.Sprintf("from the guest/mtu=%d", mtu), func(b *testing.B) {
			g, _ := newGuest(b, Config{MTU: mtu})
			done := make(chan struct{})
			c := g.dialTCP(listenTCP(b, func(c *net.TCPConn) { io.Copy(io.Discard, c); close(done) }))
			b.SetBytes(chunk)
			for range b.N {
				if _, err := c.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
			c.Close()
			<-done
		})
	}
}

// BenchmarkNew is what a sandbox pays at its start.
func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for range b.N {
		host, peer := socketPair(b)
		n, err := New(Config{Conn: host})
		if err != nil {
			b.Fatal(err)
		}
		n.Close()
		peer.Close()
	}
}
