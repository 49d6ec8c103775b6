// Package erofs writes and reads uncompressed EROFS file systems, the read-only
// format in which image layers reach the guest kernel (Linux,
// Documentation/filesystems/erofs.rst and fs/erofs/erofs_fs.h).
//
// The writer stores file data as it streams by and the rest at the end, so an
// image is written front to back:
//
//	block 0              superblock at byte 1024
//	block 1 …            file data, whole blocks
//	inode area           inodes, each followed by its extended attributes and
//	                     a short tail of data or a chunk map
//	directory blocks     sorted entries, those that did not fit as tails
//
// It uses what Linux 5.15 and later mount: extended inodes (32-bit owners, 64-bit
// signed nanosecond times), the plain and inline-tail layouts, and, for files
// with holes, chunk maps whose null entries are the holes. The same tree gives
// the same bytes.
//
// The reader is for layers this package wrote. It survives any other bytes: they
// give errors, never a panic or unbounded memory.
package erofs
