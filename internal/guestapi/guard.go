package guestapi

import (
	"encoding/binary"
	"fmt"
	"net"
)

// streamWindow is yamux's initial window, the most a frame may carry.
const streamWindow = 256 << 10

// The parts of a yamux header that the guard looks at (yamux spec.md).
const (
	yamuxHeaderLen = 12

	yamuxData   = 0
	yamuxWindow = 1
	yamuxGoAway = 3

	yamuxSYN = 1
)

// guard checks the frames a guest sends before yamux sees them. yamux starts a
// goroutine for each ping and buffers streams that its peer opens; a guest
// that floods either would fill the host's memory. Our guests do neither.
type guard struct {
	net.Conn
	head  [yamuxHeaderLen]byte
	nhead int
	body  uint32 // bytes of the current frame still to come
	pre   []byte // bytes read with the handshake
}

func (g *guard) Read(p []byte) (int, error) {
	if len(g.pre) > 0 {
		n := copy(p, g.pre)
		g.pre = g.pre[n:]
		return n, g.check(p[:n])
	}
	n, err := g.Conn.Read(p)
	if cerr := g.check(p[:n]); cerr != nil {
		return 0, cerr
	}
	return n, err
}

func (g *guard) check(p []byte) error {
	for len(p) > 0 {
		if g.body > 0 {
			n := min(uint32(len(p)), g.body)
			g.body -= n
			p = p[n:]
			continue
		}
		n := copy(g.head[g.nhead:], p)
		g.nhead += n
		p = p[n:]
		if g.nhead < yamuxHeaderLen {
			return nil
		}
		g.nhead = 0
		if err := g.checkHeader(); err != nil {
			return err
		}
	}
	return nil
}

func (g *guard) checkHeader() error {
	version, kind := g.head[0], g.head[1]
	flags := binary.BigEndian.Uint16(g.head[2:])
	length := binary.BigEndian.Uint32(g.head[8:])
	switch {
	case version != 0:
		return fmt.Errorf("guest broke the protocol: frame version %d", version)
	case flags&yamuxSYN != 0:
		return fmt.Errorf("guest broke the protocol: frame type %d opens a stream", kind)
	case kind == yamuxData && length > streamWindow:
		return fmt.Errorf("guest broke the protocol: frame of %d bytes", length)
	case kind == yamuxData:
		g.body = length
	case kind != yamuxWindow && kind != yamuxGoAway:
		return fmt.Errorf("guest broke the protocol: frame type %d", kind)
	}
	return nil
}
