//go:build !linux || !amd64

package procfork

import (
	"context"
	"errors"
	"os"
)

// Supported reports whether this package works on this system.
const Supported = false

// Parent is a process to be forked from.
type Parent struct{}

var errUnsupported = errors.New("processes are forked from outside on Linux with amd64 only")

// Freeze is not supported.
func Freeze(context.Context, int, *os.File, int) (*Parent, error) { return nil, errUnsupported }

// Fork is not supported.
func (*Parent) Fork(Request) (*os.Process, error) { return nil, errUnsupported }

// Own does nothing.
func (*Parent) Own([]uint64) {}

// Written is not supported.
func Written(int) ([]uint64, error) { return nil, errUnsupported }

// Close does nothing.
func (*Parent) Close() error { return nil }
