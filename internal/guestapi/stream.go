package guestapi

import (
	"context"
	"net"
	"time"

	"github.com/hashicorp/yamux"
)

// stream gives a yamux stream the manners of a TCP connection: yamux's Close
// only ends the sending direction and leaves a blocked Read blocked.
type stream struct{ *yamux.Stream }

// CloseWrite tells the peer that no more comes. If the peer does not end its
// direction within five minutes the stream is reset (yamux's
// StreamCloseTimeout), so that no peer can keep dead streams.
func (s stream) CloseWrite() error { return s.Stream.Close() }

// Close ends both directions and wakes blocked calls.
func (s stream) Close() error {
	err := s.Stream.Close()
	_ = s.SetDeadline(time.Unix(1, 0)) // never fails
	return err
}

type streamKey struct{}

// WithStream returns a context for work that is done for a stream; LinkLost
// tells from it why the stream has ended.
func WithStream(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, streamKey{}, conn)
}

// LinkLost reports whether the link of ctx's stream is down. A stream whose peer
// has closed it while the link is up lost its client; one whose link is down
// lost the host, which pauses, moves or restarts, and its client did not leave.
// It is final by the time the stream's reads and writes return.
func LinkLost(ctx context.Context) bool {
	s, ok := ctx.Value(streamKey{}).(stream)
	return ok && s.Session().IsClosed()
}
