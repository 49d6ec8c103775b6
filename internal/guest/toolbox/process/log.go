package process

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"skerry.dev/skerry"
)

// Bounds of the output that is kept, in memory only. A frame counts with
// frameOverhead. When all logs together pass totalLogBytes, those of ended
// processes are dropped, longest ended first; if that is not enough, the ones
// that still grow are cut to liveLogBytes.
const (
	maxLogBytes   = 2 << 20  // of one process
	totalLogBytes = 16 << 20 // of all
	liveLogBytes  = 128 << 10
	frameOverhead = 96
)

// FollowPatience is how long a follower that reads nothing may hold up the
// process before frames are dropped for it.
const FollowPatience = 5 * time.Second

// ErrExpired says that frames after the wanted position are dropped already.
var ErrExpired = errors.New("output at this cursor is no longer kept")

// Frame is a piece of output.
type Frame struct {
	Seq     int64 // 1 is the first
	Channel byte  // skerry.RunStdout, RunStderr, RunPTY
	Time    time.Time
	wire    []byte // as skerry.AppendRunFrame makes it
}

// Data is the output itself. It must not be changed.
func (f Frame) Data() []byte { return f.wire[skerry.RunHeader:] }

// Wire is the frame as in POST /processes/run.
func (f Frame) Wire() []byte { return f.wire }

// Message is the frame as in a WebSocket: the channel and the data.
func (f Frame) Message() []byte { return f.wire[skerry.RunHeader-1:] }

func (f Frame) cost() int { return len(f.wire) + frameOverhead }

// Log keeps the last part of a process's output and hands all of it to
// followers. Positions count frames: position n is after the nth.
type Log struct {
	budget *budget
	keep   bool // frames stay after they were followed

	mu        sync.Mutex
	changed   sync.Cond // on mu: a frame, the end, a follower moved or left
	frames    []Frame
	bytes     int
	next      int64 // Seq of the next frame
	ended     bool
	followers []*Follower
}

func newLog(b *budget, keep bool) *Log {
	l := &Log{budget: b, keep: keep, next: 1}
	l.changed.L = &l.mu
	return l
}

// Append adds output. It blocks while a follower that must not lose anything,
// or has been behind for less than its patience, still needs what would have to
// be dropped to make room.
func (l *Log) Append(channel byte, data []byte) {
	f := Frame{Channel: channel, Time: time.Now(),
		wire: skerry.AppendRunFrame(make([]byte, 0, len(data)+skerry.RunHeader), channel, data)}
	limit := l.budget.limit()
	l.mu.Lock()
	freed := l.makeRoomLocked(limit - f.cost())
	f.Seq = l.next
	l.next++
	if l.keep || len(l.followers) > 0 {
		l.frames = append(l.frames, f)
		l.bytes += f.cost()
		freed -= f.cost()
	}
	l.changed.Broadcast()
	l.mu.Unlock()
	l.budget.add(-freed)
}

// makeRoomLocked drops frames until at most limit bytes are kept, and returns
// the bytes freed. It may give up the lock for a while.
func (l *Log) makeRoomLocked(limit int) (freed int) {
	for l.bytes > max(limit, 0) && len(l.frames) > 0 {
		if blocker := l.blockerLocked(); blocker != nil {
			l.waitForLocked(blocker)
			continue
		}
		freed += l.dropHeadLocked()
	}
	return freed
}

// blockerLocked returns a follower that still needs the first frame.
func (l *Log) blockerLocked() *Follower {
	for _, f := range l.followers {
		if !f.lossy && f.position < l.frames[0].Seq {
			return f
		}
	}
	return nil
}

// waitForLocked waits until something changes, at most the follower's patience.
func (l *Log) waitForLocked(f *Follower) {
	if f.patience == 0 {
		l.changed.Wait()
		return
	}
	if f.behindSince.IsZero() {
		f.behindSince = time.Now()
	}
	left := f.patience - time.Since(f.behindSince)
	if left <= 0 {
		f.lossy = true
		return
	}
	timer := time.AfterFunc(left, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})
	l.changed.Wait()
	timer.Stop()
}

func (l *Log) dropHeadLocked() int {
	cost := l.frames[0].cost()
	l.frames[0] = Frame{} // the slice's array lives on
	l.frames = l.frames[1:]
	l.bytes -= cost
	return cost
}

// end says that no frame will follow.
func (l *Log) end() {
	l.mu.Lock()
	l.ended = true
	freed := l.dropFollowedLocked()
	l.changed.Broadcast()
	l.mu.Unlock()
	l.budget.add(-freed)
}

// Drop forgets the frames, except what present followers still need.
func (l *Log) Drop() {
	l.mu.Lock()
	l.keep = false
	freed := l.dropFollowedLocked()
	l.mu.Unlock()
	l.budget.add(-freed)
}

// dropFollowedLocked drops frames that nobody needs, unless they are kept.
func (l *Log) dropFollowedLocked() (freed int) {
	for !l.keep && len(l.frames) > 0 && l.blockerLocked() == nil {
		freed += l.dropHeadLocked()
	}
	return freed
}

// firstLocked is the position before the first frame that is kept.
func (l *Log) firstLocked() int64 {
	if len(l.frames) == 0 {
		return l.next - 1
	}
	return l.frames[0].Seq - 1
}

// bounds returns the first and the last position that can be read from.
func (l *Log) bounds() (first, last int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.firstLocked(), l.next - 1
}

// Page is part of a Log.
type Page struct {
	Frames      []Frame
	Next        int64 // position after the last frame
	First       int64 // first position that is kept
	EOF         bool  // the process has ended and Next is its end
	BeyondLimit bool  // never more than this log has; the position is not of it
}

// Read returns up to limit frames after position.
func (l *Log) Read(position int64, limit int) (Page, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.firstLocked()
	switch {
	case position < first:
		return Page{First: first}, ErrExpired
	case position >= l.next:
		return Page{First: first, BeyondLimit: true}, nil
	}
	from := int(position - first)
	to := min(from+limit, len(l.frames))
	p := Page{Frames: slices.Clone(l.frames[from:to]), First: first, Next: position + int64(to-from)}
	p.EOF = l.ended && p.Next == l.next-1
	return p, nil
}

// Follow returns a follower that reads from position on. With patience 0 it
// never loses a frame and holds up the process for as long as it is behind.
func (l *Log) Follow(position int64, patience time.Duration) (*Follower, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if position < l.firstLocked() {
		return nil, ErrExpired
	}
	f := &Follower{log: l, position: min(position, l.next-1), patience: patience}
	l.followers = append(l.followers, f)
	return f, nil
}

// Follower reads a Log as it grows. It is for one goroutine, which must Close
// it.
type Follower struct {
	log      *Log
	patience time.Duration

	// Guarded by log.mu.
	position    int64
	behindSince time.Time // when it first held up the process; zero if it does not
	lossy       bool      // its patience is used up until it has caught up
}

// LostError says that a follower was too slow: the frames up to First were
// dropped before it read them. It goes on after them.
type LostError struct {
	First int64 // position where it goes on
	Lost  int64 // frames
}

func (e *LostError) Error() string { return "output was dropped: the reader is too slow" }

// Next returns the next frame. It returns io.EOF after the last, a *LostError
// (once) where frames are missing, and ctx's error.
func (f *Follower) Next(ctx context.Context) (Frame, error) {
	l := f.log
	stop := func() bool { return true }
	defer func() { stop() }()
	l.mu.Lock()
	defer l.mu.Unlock()
	for waiting := false; ; waiting = true {
		if err := ctx.Err(); err != nil {
			return Frame{}, err
		}
		if first := l.firstLocked(); f.position < first {
			lost := &LostError{First: first, Lost: first - f.position}
			f.position = first
			return Frame{}, lost
		}
		if f.position < l.next-1 {
			return f.takeLocked(), nil
		}
		f.lossy, f.behindSince = false, time.Time{}
		if l.ended {
			return Frame{}, io.EOF
		}
		if !waiting {
			stop = context.AfterFunc(ctx, func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.changed.Broadcast()
			})
		}
		l.changed.Wait()
	}
}

func (f *Follower) takeLocked() Frame {
	l := f.log
	frame := l.frames[f.position-l.firstLocked()]
	f.position = frame.Seq
	f.behindSince = time.Time{}
	if freed := l.dropFollowedLocked(); freed > 0 {
		l.budget.add(-freed)
	}
	l.changed.Broadcast()
	return frame
}

// More reports whether Next would not block.
func (f *Follower) More() bool {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	return f.position < f.log.next-1 || f.log.ended
}

// Position is where the follower is.
func (f *Follower) Position() int64 {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	return f.position
}

// Close lets go of the process.
func (f *Follower) Close() {
	l := f.log
	l.mu.Lock()
	l.followers = slices.DeleteFunc(l.followers, func(o *Follower) bool { return o == f })
	freed := l.dropFollowedLocked()
	l.changed.Broadcast()
	l.mu.Unlock()
	l.budget.add(-freed)
}
