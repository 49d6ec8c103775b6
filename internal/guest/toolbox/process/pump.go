package process

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// When a process has ended, everything it wrote is in its pipes already. But a
// descendant may live on and hold a pipe open, so the end of the output is: end
// of file, or drainQuiet without any byte (for helpers such as the tee of a
// shell's >(tee …) that write a moment later), or drainMax and what a pipe can
// hold. What a descendant writes after that is read and dropped, so that it
// neither blocks nor dies of SIGPIPE.
const (
	drainQuiet = 100 * time.Millisecond
	drainMax   = time.Second
	pipeBytes  = 64 << 10 // capacity of a pipe, pipe(7)
)

const pumpBuffer = 32 << 10

var pumpBuffers = sync.Pool{New: func() any { return new([pumpBuffer]byte) }}

// pump moves one stream from a pipe or terminal to the log.
type pump struct {
	file    *os.File
	channel byte
	log     *Log

	endedAt   atomic.Pointer[time.Time] // when the process ended, nil before; monotonic, since the wall clock may be set
	sinceEnd  int                       // bytes read since then
	outputEnd func()
}

// processEnded makes the output end soon.
func (p *pump) processEnded() {
	now := time.Now()
	p.endedAt.Store(&now)
	// A deadline fails only on files that have none to begin with.
	_ = p.file.SetReadDeadline(now.Add(drainQuiet))
}

// run reads until the output has ended, reports that, and goes on reading until
// the last descendant has closed the stream or the file is closed.
func (p *pump) run() {
	buf := pumpBuffers.Get().(*[pumpBuffer]byte)
	open := p.copy(buf[:])
	pumpBuffers.Put(buf)
	p.outputEnd()
	if open {
		p.discard()
	}
	p.file.Close()
}

// copy reads until the output has ended; open says that the stream has not.
func (p *pump) copy(buf []byte) (open bool) {
	for {
		n, err := p.file.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// The deadline may have passed while the log was full: look once more.
			n, err = p.readNow(buf)
			if errors.Is(err, unix.EAGAIN) {
				return true
			}
		}
		if n > 0 {
			p.log.Append(p.channel, buf[:n])
			if p.drained(n) {
				return true
			}
			continue
		}
		if err != nil {
			return false // EOF; for terminals EIO
		}
	}
}

// drained counts what comes after the process's end.
func (p *pump) drained(n int) bool {
	endedAt := p.endedAt.Load()
	if endedAt == nil {
		return false
	}
	p.sinceEnd += n
	if p.sinceEnd >= pipeBytes && time.Since(*endedAt) > drainMax {
		return true
	}
	_ = p.file.SetReadDeadline(time.Now().Add(drainQuiet))
	return false
}

// readNow reads what is there, and returns EAGAIN if nothing is.
func (p *pump) readNow(buf []byte) (n int, err error) {
	if err := p.file.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	raw, err := p.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var readErr error
	err = raw.Read(func(fd uintptr) bool {
		n, readErr = unix.Read(int(fd), buf)
		return true
	})
	if err == nil {
		err = readErr
	}
	if n == 0 && err == nil {
		err = unix.EPIPE // end of file
	}
	return max(n, 0), err
}

func (p *pump) discard() {
	_ = p.file.SetReadDeadline(time.Time{})
	var buf [4 << 10]byte
	for {
		if _, err := p.file.Read(buf[:]); err != nil {
			return
		}
	}
}
