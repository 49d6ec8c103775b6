package process

import "sync/atomic"

// budget is the memory that all logs share.
type budget struct {
	used    atomic.Int64
	reclaim func() // drops logs of ended processes until used is in bounds, if it can
}

func (b *budget) add(bytes int) { b.used.Add(int64(bytes)) }

func (b *budget) exceeded() bool { return b.used.Load() > totalLogBytes }

// limit returns how much one log may have now.
func (b *budget) limit() int {
	if !b.exceeded() {
		return maxLogBytes
	}
	b.reclaim()
	if !b.exceeded() {
		return maxLogBytes
	}
	return liveLogBytes
}
