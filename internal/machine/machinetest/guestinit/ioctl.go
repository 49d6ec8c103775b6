package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// blkDiscard frees a range of bytes of a block device (BLKDISCARD).
func blkDiscard(fd int, byteRange [2]uint64) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKDISCARD, uintptr(unsafe.Pointer(&byteRange)))
	if errno != 0 {
		return errno
	}
	return nil
}
