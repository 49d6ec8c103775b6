package qemu

import (
	"io"
	"os"
	"strings"
	"sync"
)

// maxLogBytes bounds one log file. A log that is full is renamed to .1 and
// begun anew, so the newest maxLogBytes are always there and never more than
// twice that, however much a guest writes.
const maxLogBytes = 1 << 20

// tailBytes is how much of the end is kept for error messages.
const tailBytes = 2048

// boundedLog is a log file of bounded size. It never fails: a full host disk
// must not stop the guest that writes to it.
type boundedLog struct {
	path string

	mu   sync.Mutex
	file *os.File // or nil: could not be made
	size int64
	last []byte // the newest tailBytes
}

func newBoundedLog(path string) *boundedLog {
	l := &boundedLog{path: path}
	l.open()
	return l
}

func (l *boundedLog) open() {
	l.file, _ = os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	l.size = 0
}

// Write implements io.Writer; it reports success always.
func (l *boundedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(p)
	l.last = append(l.last, p[max(0, n-tailBytes):]...)
	l.last = append(l.last[:0], l.last[max(0, len(l.last)-tailBytes):]...)
	for len(p) > 0 {
		if l.size == maxLogBytes {
			l.rotate()
		}
		part := p[:min(int64(len(p)), maxLogBytes-l.size)]
		if l.file != nil {
			_, _ = l.file.Write(part) // see the type's comment
		}
		l.size += int64(len(part))
		p = p[len(part):]
	}
	return n, nil
}

func (l *boundedLog) rotate() {
	if l.file != nil {
		l.file.Close()
	}
	_ = os.Rename(l.path, l.path+".1")
	l.open()
}

// expectedNoise is in lines that QEMU writes whenever the guest frees memory of
// its template, which is sealed so that this fails.
const expectedNoise = "ram_block_discard_range"

// tail is the end of what was written, in one line, without what is expected.
func (l *boundedLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var words []string
	for line := range strings.Lines(string(l.last)) {
		if !strings.Contains(line, expectedNoise) {
			words = append(words, strings.Fields(line)...)
		}
	}
	return strings.Join(words, " ")
}

func (l *boundedLog) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

// outputPump copies from one of QEMU's outputs to its log until the end.
type outputPump struct {
	from io.ReadCloser
	to   *boundedLog
	done chan struct{}
}

func (p *outputPump) start() {
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		_, _ = io.Copy(p.to, p.from) // ends with QEMU, the only writer
	}()
}

func (p *outputPump) wait() {
	<-p.done
	p.from.Close()
	p.to.Close()
}
