// Package ext4 reads ext4 file systems that something untrusted wrote: the
// scratch disks of sandboxes, while their file system is frozen or after it was
// unmounted.
//
// It reads the variant that package disk makes and Linux grows: 4 KiB blocks,
// extents, metadata checksums. Other variants are refused with ErrUnsupported,
// a journal that would have to be replayed with ErrNotClean, and whatever
// contradicts itself with ErrCorrupt; nothing is guessed or repaired. A Reader
// holds no state: whatever a disk says, reading one object costs a bounded
// amount of time and memory. Only a walk over many of them needs bounds of its
// own, because directories may form loops and files may share blocks.
//
// The format is that of Linux' Documentation/filesystems/ext4.
package ext4

import "errors"

var (
	// ErrCorrupt is in the chain of errors about a disk that contradicts
	// itself, its checksums, or its length.
	ErrCorrupt = errors.New("corrupt ext4 file system")
	// ErrUnsupported is in the chain of errors about features that scratch
	// disks do not have.
	ErrUnsupported = errors.New("unsupported ext4 feature")
	// ErrNotClean is in the chain of errors about a disk whose journal has
	// changes that are not yet where they belong.
	ErrNotClean = errors.New("ext4 journal needs recovery: the file system was neither frozen nor unmounted")
)
