package usernet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

// copyBuffers are the buffers of data in transit. A flow holds one per
// direction, and only while data moves.
var copyBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// errGuestReset says that the guest's end is gone without a FIN.
var errGuestReset = errors.New("guest connection reset")

// tcpFlow joins a connection with the guest to one with the outside. A FIN is
// passed on as a FIN and leaves the other direction open; a reset as a reset.
type tcpFlow struct {
	guest tcpip.Endpoint
	queue *waiter.Queue
	host  *net.TCPConn

	inboundFIN atomic.Bool // the outside's FIN was seen
}

// run copies until both directions have ended, one of them has failed or ctx is
// done. It returns when the guest's end has left the stack, so that a flow
// counts as open for as long as it takes memory.
func (f *tcpFlow) run(ctx context.Context) {
	ended := newWaiter(f.queue, waiter.EventHUp)
	defer ended.stop()
	stop := context.AfterFunc(ctx, f.abort)
	defer stop()

	inbound := make(chan struct{})
	go func() {
		defer close(inbound)
		if err := f.hostToGuest(); err != nil {
			f.abort()
		}
	}()
	if err := f.guestToHost(); err != nil {
		f.abort()
	}
	f.awaitInbound(inbound, ended)
	f.host.Close()
	f.guest.Close()
	waitEnded(f.guest, f.queue)
}

// awaitInbound waits until the copy from the outside has ended. If the guest's
// end is gone before, the outside would be waited for in vain and is reset.
func (f *tcpFlow) awaitInbound(inbound <-chan struct{}, ended eventWaiter) {
	for {
		select {
		case <-inbound:
			return
		case <-ended.ch:
		}
		if f.guest.Readiness(waiter.EventHUp) != 0 && !f.inboundFIN.Load() {
			abortHost(f.host)
			<-inbound
			return
		}
	}
}

// abort resets both ends. It may be called more than once.
func (f *tcpFlow) abort() {
	abortHost(f.host)
	f.guest.Abort()
}

// abortHost closes a connection with a reset.
func abortHost(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

// guestToHost copies until the guest's FIN, which it passes on.
func (f *tcpFlow) guestToHost() error {
	readable := newWaiter(f.queue, waiter.ReadableEvents)
	defer readable.stop()
	for {
		err := f.copyFromGuest()
		switch err.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			<-readable.ch
		case *tcpip.ErrClosedForReceive:
			// The outside may have closed already.
			if err := f.host.CloseWrite(); err != nil && !errors.Is(err, unix.ENOTCONN) {
				return err
			}
			return nil
		default:
			return errGuestReset
		}
	}
}

// copyFromGuest copies what there is, at most one buffer. An error of the
// outside is shown as a broken connection.
func (f *tcpFlow) copyFromGuest() tcpip.Error {
	if f.guest.Readiness(waiter.ReadableEvents) == 0 {
		return &tcpip.ErrWouldBlock{}
	}
	buf := copyBuffers.Get().(*[32 << 10]byte)
	defer copyBuffers.Put(buf)
	w := tcpip.SliceWriter(buf[:])
	res, err := f.guest.Read(&w, tcpip.ReadOptions{})
	if err != nil {
		return err
	}
	if _, err := f.host.Write(buf[:res.Count]); err != nil {
		return &tcpip.ErrConnectionReset{}
	}
	return nil
}

// hostToGuest copies until the outside's FIN, which it passes on.
func (f *tcpFlow) hostToGuest() error {
	raw, err := f.host.SyscallConn()
	if err != nil {
		return err
	}
	writable := newWaiter(f.queue, waiter.WritableEvents)
	defer writable.stop()
	for {
		buf, n, err := readWhenReady(raw.Read)
		if err == nil && n > 0 {
			err = f.writeToGuest(buf[:n], writable)
		}
		if buf != nil {
			copyBuffers.Put(buf)
		}
		if err != nil {
			return err
		}
		if n == 0 {
			f.inboundFIN.Store(true)
			f.guest.Shutdown(tcpip.ShutdownWrite)
			return nil
		}
	}
}

// readWhenReady waits for data and reads it into a buffer, which is taken only
// then; n is 0 at the end. The caller gives the buffer back, nil or not.
func readWhenReady(wait func(func(fd uintptr) bool) error) (buf *[32 << 10]byte, n int, err error) {
	waitErr := wait(func(fd uintptr) bool {
		buf = copyBuffers.Get().(*[32 << 10]byte)
		for {
			n, err = unix.Read(int(fd), buf[:])
			if err != unix.EINTR {
				break
			}
		}
		if err == unix.EAGAIN {
			copyBuffers.Put(buf)
			buf = nil
			return false
		}
		return true
	})
	if waitErr != nil {
		return buf, 0, waitErr
	}
	return buf, max(n, 0), err
}

// writeToGuest writes all of b, waiting for room in the guest's window.
func (f *tcpFlow) writeToGuest(b []byte, writable eventWaiter) error {
	r := bytes.NewReader(b)
	for r.Len() > 0 {
		_, err := f.guest.Write(r, tcpip.WriteOptions{})
		switch err.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			<-writable.ch
		default:
			return io.ErrClosedPipe
		}
	}
	return nil
}

// eventWaiter gets a token in ch whenever an event may have happened.
type eventWaiter struct {
	queue *waiter.Queue
	entry *waiter.Entry
	ch    chan struct{}
}

func newWaiter(q *waiter.Queue, mask waiter.EventMask) eventWaiter {
	entry, ch := waiter.NewChannelEntry(mask)
	w := eventWaiter{queue: q, entry: &entry, ch: ch}
	q.EventRegister(w.entry)
	return w
}

func (w eventWaiter) stop() { w.queue.EventUnregister(w.entry) }

// waitEnded waits until a closed endpoint has left the stack, or waits for
// late segments only. Until then it repeats what the guest has not confirmed.
func waitEnded(ep tcpip.Endpoint, q *waiter.Queue) {
	hup := newWaiter(q, waiter.EventHUp)
	defer hup.stop()
	for ep.Readiness(waiter.EventHUp) == 0 {
		<-hup.ch
	}
}
