package process

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

// ErrStdinClosed says that the process reads its standard input no more: it
// closed it, has ended, had none, or the caller ended it.
var ErrStdinClosed = errors.New("standard input is closed")

// stdin is the writing end of a process's standard input.
type stdin struct {
	file *os.File

	turn chan struct{} // holds a token while nobody writes

	mu     sync.Mutex
	closed bool
}

func newStdin(file *os.File) *stdin {
	s := &stdin{file: file, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// write writes all of b, blocking for as long as the process does not read. It
// returns how much was written, and ErrStdinClosed or ctx's error.
func (s *stdin) write(ctx context.Context, b []byte) (int, error) {
	select {
	case <-s.turn:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { s.turn <- struct{}{} }()
	if err := s.file.SetWriteDeadline(time.Time{}); err != nil {
		return 0, ErrStdinClosed
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = s.file.SetWriteDeadline(time.Unix(1, 0)) // fails when closed, which ends the write too
	})
	n, err := s.file.Write(b)
	if !stop() {
		<-interrupted
	}
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, syscall.EPIPE), errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EIO):
		s.close()
		return n, ErrStdinClosed
	case ctx.Err() != nil:
		return n, ctx.Err()
	}
	return n, err
}

// close gives the process an end of file. It interrupts a write.
func (s *stdin) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.file.Close()
	}
}
