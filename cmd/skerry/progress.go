package main

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"skerry.dev/skerry"
)

// bar is a progress bar on stderr. Where that is no terminal it is nil and does
// nothing.
type bar struct {
	progress *mpb.Progress
	bar      *mpb.Bar
	phase    atomic.Value // string
}

func (c *cli) newBar(name string, total int64) *bar {
	if !term.IsTerminal(int(c.stderr.Fd())) {
		return nil
	}
	b := &bar{progress: mpb.New(mpb.WithOutput(c.stderr), mpb.WithWidth(64))}
	b.phase.Store("")
	b.bar = b.progress.AddBar(total,
		mpb.PrependDecorators(decor.Name(oneLine(name)+" "), decor.Any(func(decor.Statistics) string { return b.phase.Load().(string) })),
		mpb.AppendDecorators(decor.CountersKibiByte("% .1f / % .1f")),
		mpb.BarRemoveOnComplete())
	return b
}

// say shows on a terminal's stderr what is being waited for, until clear is
// called.
func (c *cli) say(doing string) (clear func()) {
	if !term.IsTerminal(int(c.stderr.Fd())) {
		return func() {}
	}
	fmt.Fprintf(c.stderr, "\r%s…", oneLine(doing))
	return func() { fmt.Fprint(c.stderr, "\r\x1b[K") } // to the end of the line, ECMA-48 EL
}

// reader counts what is read from r.
func (b *bar) reader(r io.Reader) io.Reader {
	if b == nil {
		return r
	}
	counted, err := b.bar.ProxyReader(r)
	if err != nil {
		return r // the bar is over; what is read matters more
	}
	return counted
}

// image shows how far an image has come.
func (b *bar) image(img skerry.Image) {
	if b == nil || img.Progress == nil {
		return
	}
	b.phase.Store(oneLine(img.Progress.Phase))
	b.bar.SetTotal(img.Progress.TotalBytes, false)
	b.bar.SetCurrent(img.Progress.DoneBytes)
}

// push shows how far the push of an image has come.
func (b *bar) push(img skerry.Image) {
	if b == nil || img.Push == nil {
		return
	}
	b.bar.SetTotal(img.Push.TotalBytes, false)
	b.bar.SetCurrent(img.Push.DoneBytes)
}

// close removes the bar and gives the line back.
func (b *bar) close() {
	if b == nil {
		return
	}
	b.bar.Abort(true)
	b.progress.Wait()
}
