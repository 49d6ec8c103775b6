package usernet

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	lengthSize = 4 // of the length before each frame
	// maxFrame is the largest frame QEMU hands on (NET_BUFSIZE in
	// include/net/net.h). A larger length is no length: the framing is lost.
	maxFrame   = 4096 + 65536
	readBuffer = 64 << 10
)

// errFraming says that the stream is not one of frames.
var errFraming = errors.New("broken framing")

// link is the stack's link layer: frames on a stream. It writes in the
// caller's goroutine and blocks while the peer does not read, which is the
// back pressure that keeps queues short.
//
// There is one peer, so addresses are not resolved: frames go to the address
// the last good frame came from. That also follows a guest whose address was
// changed after a restore.
type link struct {
	conn     net.Conn
	mtu      uint32
	counters *counters

	writeMu sync.Mutex
	frames  net.Buffers // guarded by writeMu; kept for its memory
	failed  error       // guarded by writeMu: why writing ended, or nil

	mu         sync.Mutex
	dispatcher stack.NetworkDispatcher // guarded by mu
	guestMAC   tcpip.LinkAddress       // guarded by mu; "" until known
	guestKnown chan struct{}           // closed when guestMAC is known
}

func newLink(conn net.Conn, mtu int, c *counters) *link {
	return &link{conn: conn, mtu: uint32(mtu), counters: c, guestKnown: make(chan struct{})}
}

// readFrames calls handle with each frame, which then owns it. It returns
// io.EOF when the stream ends between two frames.
func (l *link) readFrames(handle func(*buffer.View)) error {
	r := bufio.NewReaderSize(l.conn, readBuffer)
	var length [lengthSize]byte
	for {
		if n, err := io.ReadFull(r, length[:]); err != nil {
			return endOfStream(err, n == 0)
		}
		size := int64(binary.BigEndian.Uint32(length[:]))
		if size > maxFrame {
			return fmt.Errorf("%w: frame of %d bytes", errFraming, size)
		}
		if size > int64(l.mtu)+header.EthernetMinimumSize || size < header.EthernetMinimumSize {
			l.counters.rxMalformed.Add(1)
			if _, err := io.CopyN(io.Discard, r, size); err != nil {
				return endOfStream(err, false)
			}
			continue
		}
		view := buffer.NewViewSize(int(size))
		if _, err := io.ReadFull(r, view.AsSlice()); err != nil {
			view.Release()
			return endOfStream(err, false)
		}
		l.counters.rxFrames.Add(1)
		l.counters.rxBytes.Add(uint64(size))
		handle(view)
	}
}

// endOfStream sorts the error of a read. A peer that closed without reading
// everything is seen as a reset.
func endOfStream(err error, betweenFrames bool) error {
	ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET)
	switch {
	case ended && betweenFrames:
		return io.EOF
	case ended:
		return fmt.Errorf("%w: the stream ends within a frame", errFraming)
	}
	return err
}

// learn notes the guest's hardware address.
func (l *link) learn(mac tcpip.LinkAddress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.guestMAC == mac {
		return
	}
	if l.guestMAC == "" {
		close(l.guestKnown)
	}
	l.guestMAC = mac
}

// findGuest asks the guest for its address and waits until one is known. It
// asks even if one is: the answer of a guest that got another one since comes
// before its answer to what is sent next.
func (l *link) findGuest(ctx, closed context.Context) error {
	for {
		if err := l.writeARPRequest(); err != nil {
			return err
		}
		select {
		case <-l.guestKnown:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-closed.Done():
			return ErrClosed
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// deliver hands an IPv4 packet, without its Ethernet header, to the stack.
func (l *link) deliver(packet *buffer.View) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(packet)})
	defer pkt.DecRef()
	l.mu.Lock()
	d := l.dispatcher
	l.mu.Unlock()
	if d != nil {
		d.DeliverNetworkPacket(header.IPv4ProtocolNumber, pkt)
	}
}

// writeFrame sends one frame, its length included in b.
func (l *link) writeFrame(b []byte) error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	l.frames = append(l.frames[:0], b)
	return l.flushLocked(1, len(b))
}

// flushLocked writes l.frames, which hold n frames of size bytes in all.
func (l *link) flushLocked(n, size int) error {
	frames := l.frames // WriteTo consumes the slice it is called on
	_, err := frames.WriteTo(l.conn)
	clear(l.frames)
	if err != nil {
		// A frame may be cut short: nothing may follow it.
		if l.failed == nil {
			l.failed = err
		}
		l.conn.Close()
		return err
	}
	l.counters.txFrames.Add(uint64(n))
	l.counters.txBytes.Add(uint64(size - n*lengthSize))
	return nil
}

// writeError returns why writing ended, io.EOF if the peer was gone.
func (l *link) writeError() error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	if errors.Is(l.failed, unix.EPIPE) || errors.Is(l.failed, unix.ECONNRESET) {
		return io.EOF
	}
	return l.failed
}

// WritePackets implements stack.LinkWriter.
func (l *link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	l.frames = l.frames[:0]
	size := 0
	for _, pkt := range pkts.AsSlice() {
		l.frames = append(l.frames, pkt.AsSlices()...)
		size += pkt.Size()
	}
	if err := l.flushLocked(pkts.Len(), size); err != nil {
		return 0, &tcpip.ErrClosedForSend{}
	}
	return pkts.Len(), nil
}

// AddHeader implements stack.NetworkLinkEndpoint: it puts the length and the
// Ethernet header before a packet.
func (l *link) AddHeader(pkt *stack.PacketBuffer) {
	size := pkt.Size() + header.EthernetMinimumSize
	b := pkt.LinkHeader().Push(lengthSize + header.EthernetMinimumSize)
	binary.BigEndian.PutUint32(b, uint32(size))
	l.mu.Lock()
	dst := l.guestMAC
	l.mu.Unlock()
	if dst == "" {
		dst = header.EthernetBroadcastAddress
	}
	header.Ethernet(b[lengthSize:]).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(GatewayMAC), DstAddr: dst, Type: pkt.NetworkProtocolNumber})
}

// The rest of stack.LinkEndpoint.

// MTU returns the largest IP packet in bytes.
func (l *link) MTU() uint32 { return l.mtu }

// MaxHeaderLength returns the room AddHeader needs.
func (l *link) MaxHeaderLength() uint16 { return lengthSize + header.EthernetMinimumSize }

// LinkAddress returns the gateway's hardware address.
func (l *link) LinkAddress() tcpip.LinkAddress { return tcpip.LinkAddress(GatewayMAC) }

// Capabilities says that checksums of received packets are not verified: the
// stream is reliable, and a guest that sends wrong ones harms itself only.
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload
}

// Attach sets or, with nil, removes the receiver of packets.
func (l *link) Attach(d stack.NetworkDispatcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dispatcher = d
}

// IsAttached tells whether there is a receiver of packets.
func (l *link) IsAttached() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dispatcher != nil
}

// ARPHardwareType is none: ingress.go answers ARP.
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }

// ParseHeader has nothing to do: deliver passes packets without one.
func (l *link) ParseHeader(*stack.PacketBuffer) bool { return true }

// Wait returns at once, since the link has no goroutines.
func (l *link) Wait() {}

// Close does nothing: the network owns the connection.
func (l *link) Close() {}

// SetMTU, SetLinkAddress and SetOnCloseAction are not used.
func (l *link) SetMTU(uint32)                    {}
func (l *link) SetLinkAddress(tcpip.LinkAddress) {}
func (l *link) SetOnCloseAction(func())          {}
