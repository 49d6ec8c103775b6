package main

import (
	"context"
	"time"

	"golang.org/x/term"

	"skerry.dev/skerry"
)

// watchSize sends the new size whenever the terminal changes it; Windows has no
// signal for that. The second channel is closed when the watch has ended.
func watchSize(ctx context.Context, fd int) (<-chan skerry.Terminal, <-chan struct{}) {
	sizes, stopped := make(chan skerry.Terminal), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		var last skerry.Terminal
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			cols, rows, err := term.GetSize(fd)
			size := skerry.Terminal{Cols: cols, Rows: rows}
			if err != nil || size == last {
				continue
			}
			select {
			case sizes <- size:
				last = size
			case <-ctx.Done():
				return
			}
		}
	}()
	return sizes, stopped
}
