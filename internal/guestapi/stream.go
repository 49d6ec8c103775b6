package guestapi

import (
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
