package qemu

import (
	"context"
	"hash/maphash"
)

// pageSource is memory of a machine, in pages of pageBytes.
type pageSource interface {
	// runs calls f for each run of pages that may hold something of their
	// own, in order; all others are as they were at the start.
	runs(f func(from, to int64) error) error
	// read reads whole pages.
	read(buf []byte, page int64) error
}

// pageSink is where the pages go.
type pageSink interface {
	// put stores a page, which may have been stored before.
	put(page int64, data []byte) error
	// drop forgets a page that was stored: it is as it was at the start.
	drop(page int64) error
}

// pageCopy copies a source whose pages change meanwhile, in passes: each
// stores only what has changed since the one before, so that the last, with the
// machine at rest, stores little. Changes are found by a 64-bit hash of each
// page, since no way to be told of them is there on every kernel for memory of
// another process (soft-dirty bits, userfaultfd).
type pageCopy struct {
	src    pageSource
	seed   maphash.Seed
	blocks map[int64]*pageBlock
	passes uint8
	buf    []byte
}

// pageBlock is what is known of blockPages pages.
type pageBlock struct {
	sums [blockPages]uint64
	pass [blockPages]uint8 // the last pass that saw the page; 0: it is not stored
}

const blockPages = 512

// chunkPages is how many pages are read at once: they fit in a cache.
const chunkPages = 64

func newPageCopy(src pageSource) *pageCopy {
	return &pageCopy{src: src, seed: maphash.MakeSeed(), blocks: map[int64]*pageBlock{}, buf: make([]byte, chunkPages*pageBytes)}
}

// pass stores what has changed and returns how many pages that were.
func (c *pageCopy) pass(ctx context.Context, to pageSink) (changed int64, err error) {
	c.passes++
	err = c.src.runs(func(from, end int64) error {
		for from < end {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			n := min(end-from, chunkPages)
			buf := c.buf[:n*pageBytes]
			if err := c.src.read(buf, from); err != nil {
				return err
			}
			k, err := c.store(to, from, buf)
			changed += k
			if err != nil {
				return err
			}
			from += n
		}
		return nil
	})
	if err != nil {
		return changed, err
	}
	n, err := c.forget(to)
	return changed + n, err
}

// store stores those of the pages from page on that have changed.
func (c *pageCopy) store(to pageSink, page int64, buf []byte) (changed int64, err error) {
	for ; len(buf) > 0; buf, page = buf[pageBytes:], page+1 {
		b := c.blocks[page/blockPages]
		if b == nil {
			b = &pageBlock{}
			c.blocks[page/blockPages] = b
		}
		i := page % blockPages
		sum := maphash.Bytes(c.seed, buf[:pageBytes])
		known := b.pass[i] != 0 && b.sums[i] == sum
		b.sums[i], b.pass[i] = sum, c.passes
		if known {
			continue
		}
		changed++
		if err := to.put(page, buf[:pageBytes]); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// forget drops the pages that this pass did not see: the guest gave them back.
func (c *pageCopy) forget(to pageSink) (dropped int64, err error) {
	for number, b := range c.blocks {
		for i := range b.pass {
			if b.pass[i] == 0 || b.pass[i] == c.passes {
				continue
			}
			b.pass[i] = 0
			dropped++
			if err := to.drop(number*blockPages + int64(i)); err != nil {
				return dropped, err
			}
		}
	}
	return dropped, nil
}

// heldPages takes pages while the machine stands still and gives them to the
// sink when it runs again: a file may make its writer wait. It holds at most
// limit bytes; a guest that changes more than that between two passes stands
// still until it is written.
type heldPages struct {
	to    pageSink
	limit int
	pages []heldPage
	data  []byte
}

type heldPage struct {
	number  int64
	dropped bool
}

const maxHeldBytes = 64 << 20

func (h *heldPages) put(page int64, data []byte) error {
	if len(h.data)+len(data) > h.limit {
		if err := h.release(); err != nil {
			return err
		}
	}
	h.pages = append(h.pages, heldPage{number: page})
	h.data = append(h.data, data...)
	return nil
}

func (h *heldPages) drop(page int64) error {
	h.pages = append(h.pages, heldPage{number: page, dropped: true})
	return nil
}

// release gives all held pages to the sink.
func (h *heldPages) release() error {
	rest := h.data
	for _, p := range h.pages {
		if p.dropped {
			if err := h.to.drop(p.number); err != nil {
				return err
			}
			continue
		}
		if err := h.to.put(p.number, rest[:pageBytes]); err != nil {
			return err
		}
		rest = rest[pageBytes:]
	}
	h.pages, h.data = h.pages[:0], h.data[:0]
	return nil
}
