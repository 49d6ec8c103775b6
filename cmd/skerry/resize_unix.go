//go:build !windows

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"skerry.dev/skerry"
)

// watchSize sends the new size whenever the terminal changes it. The second
// channel is closed when the watch has ended.
func watchSize(ctx context.Context, fd int) (<-chan skerry.Terminal, <-chan struct{}) {
	sizes, stopped := make(chan skerry.Terminal), make(chan struct{})
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	go func() {
		defer close(stopped)
		defer signal.Stop(changes)
		for {
			select {
			case <-changes:
			case <-ctx.Done():
				return
			}
			cols, rows, err := term.GetSize(fd)
			if err != nil || cols <= 0 || rows <= 0 {
				continue
			}
			select {
			case sizes <- skerry.Terminal{Cols: cols, Rows: rows}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return sizes, stopped
}
