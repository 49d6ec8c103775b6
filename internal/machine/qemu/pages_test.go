package qemu

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"testing"
)

// memoryMap is memory, by page, as a source.
type memoryMap map[int64]byte

func (m memoryMap) runs(f func(from, to int64) error) error {
	for page := range int64(2 * blockPages) {
		if _, ok := m[page]; ok {
			if err := f(page, page+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m memoryMap) read(buf []byte, page int64) error {
	copy(buf, pageOf(m[page]))
	return nil
}

// recorder is a sink that knows what it was told.
type recorder struct {
	pages map[int64]byte
	calls int
}

func (r *recorder) put(page int64, data []byte) error {
	r.calls++
	r.pages[page] = data[0]
	return nil
}

func (r *recorder) drop(page int64) error {
	r.calls++
	delete(r.pages, page)
	return nil
}

// TestPageCopy: after each pass the sink has what the source has, and was told
// only of what changed.
func TestPageCopy(t *testing.T) {
	src := memoryMap{0: 'a', 1: 'b', 600: 'c'}
	sink := &recorder{pages: map[int64]byte{}}
	c := newPageCopy(src)
	for _, step := range []struct {
		name   string
		change func()
		want   int64
	}{
		{"first", func() {}, 3},
		{"nothing changes", func() {}, 0},
		{"one changes", func() { src[1] = 'B' }, 1},
		{"one comes, one goes", func() { src[7] = 'x'; delete(src, 600) }, 2},
		{"gone stays gone", func() {}, 0},
		{"back as it was", func() { src[600] = 'c' }, 1},
	} {
		step.change()
		before := sink.calls
		held := &heldPages{to: sink, limit: maxHeldBytes}
		got, err := c.pass(t.Context(), held)
		if err != nil || got != step.want {
			t.Errorf("%s: got %d changes, %v; want %d", step.name, got, err, step.want)
		}
		if sink.calls != before {
			t.Errorf("%s: held pages reached the sink", step.name)
		}
		if err := held.release(); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(sink.pages, src) {
			t.Errorf("%s: got %v, want %v", step.name, sink.pages, src)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.pass(ctx, sink); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}

// TestHeldPagesBound: more than fits is passed on in between.
func TestHeldPagesBound(t *testing.T) {
	sink := &recorder{pages: map[int64]byte{}}
	const limit = 8 * pageBytes
	h := &heldPages{to: sink, limit: limit}
	const pages = limit/pageBytes + 3
	data := pageOf('z')
	for page := range int64(pages) {
		if err := h.put(page, data); err != nil {
			t.Fatal(err)
		}
	}
	if sink.calls != pages-3 || cap(h.data) > 2*limit {
		t.Errorf("got %d pages passed on and %d bytes of room", sink.calls, cap(h.data))
	}
	if err := h.release(); err != nil || sink.calls != pages {
		t.Errorf("after release: got %d pages, %v; want %d", sink.calls, err, pages)
	}
}

// TestFileMemory: runs are what is no hole.
func TestFileMemory(t *testing.T) {
	f, err := newMemfd("m", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, page := range []int64{3, 4, 255} {
		if _, err := f.WriteAt(pageOf('f'), page*pageBytes); err != nil {
			t.Fatal(err)
		}
	}
	sink := &recorder{pages: map[int64]byte{}}
	if _, err := newPageCopy(fileMemory{f, 1 << 20}).pass(t.Context(), sink); err != nil {
		t.Fatal(err)
	}
	if want := map[int64]byte{3: 'f', 4: 'f', 255: 'f'}; !maps.Equal(sink.pages, want) {
		t.Errorf("got %v, want %v", sink.pages, want)
	}
	if !bytes.Equal(zeroPage[:], make([]byte, pageBytes)) {
		t.Error("the zero page was written to")
	}
}
