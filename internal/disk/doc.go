// Package disk makes the disks of a sandbox: the read-only image disk and the
// writable scratch disk.
//
// BuildLayer turns the tar of one OCI layer into an EROFS file that serves as a
// lower directory of overlayfs. ComposeImage describes one disk of many such
// files: a GPT in front, the layers as partitions, nothing copied. Scratch makes
// sparse ext4 disks from a cached template.
//
// A layer is applied as the OCI image specification says (layer.md, "Applying
// Changesets"): entry by entry, in the order of the tar, to the tree below it.
// What that tree was matters to the result, see LayerStats.DependsOnLower.
package disk
