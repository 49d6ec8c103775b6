// Package procfork forks a process from outside, with all its threads.
//
// fork(2) copies only the thread that calls it. A process that is traced can
// be copied whole: its threads are stopped, the first is made to fork, and in
// the child each of the others is made anew with the registers that it had
// (ptrace(2)). The program takes no part in it and need not know of it. The
// child shares all files with its parent but those that it is given.
package procfork

import (
	"errors"
	"os"
)

// ErrClosed is what Fork returns after Close.
var ErrClosed = errors.New("closed")

// Request says how a child differs from its parent.
type Request struct {
	// Files are what the child has open in place of what its parent has under
	// these numbers. All else that is open they share, but for eventfds, of
	// which each process has its own.
	Files map[int]*os.File
	// Tracer is a process that may trace the child where the kernel restricts
	// that (prctl(2), PR_SET_PTRACER), or 0.
	Tracer int
	// Hide keeps other processes of the same user from reading the child
	// (prctl(2), PR_SET_DUMPABLE); it cannot open files of its own in /proc
	// any more.
	Hide bool
	// Confine keeps the child from making processes and from reaching others
	// with signals, limits or tracing.
	Confine bool
}
