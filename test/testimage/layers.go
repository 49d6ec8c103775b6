package testimage

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// layers makes the image Layers: a layer that umoci finds by comparing trees,
// for each state of the tree, and one that is written by hand for what no tree
// comparison makes.
func (b *builder) layers() {
	bundle := filepath.Join(b.dir, "bundle-"+Layers)
	root := filepath.Join(bundle, "rootfs")
	b.run("umoci", "tag", "--image", b.ref(Shell), Layers)
	b.run("umoci", "unpack", "--image", b.ref(Layers), bundle)
	for _, change := range []func(root string){b.oddFiles, b.changes, b.comeBack} {
		if b.err == nil {
			change(root)
		}
		b.run("umoci", "repack", "--refresh-bundle", "--image", b.ref(Layers), bundle)
	}
	hand := filepath.Join(b.dir, "hand.tar")
	if b.err == nil {
		b.do(writeByHand(hand))
	}
	b.run("umoci", "raw", "add-layer", "--image", b.ref(Layers), hand)
	b.do(os.RemoveAll(bundle))
}

const work = "srv"

// oddFiles is everything a file can be.
func (b *builder) oddFiles(root string) {
	b.mkdir(root, work, 0o755)
	root = filepath.Join(root, work)
	b.write(root, "setuid", "#!/bin/sh\n", 0o755|os.ModeSetuid)
	b.write(root, "setgid", "x", 0o755|os.ModeSetgid)
	b.write(root, "mode-0000", "nobody reads this", 0)
	b.write(root, "owned", "of another", 0o640)
	b.owner(root, "owned", 12345, 54321)
	b.write(root, "big-owner", "beyond 21 bits", 0o600)
	b.owner(root, "big-owner", 3000000000, 3000000001)
	b.write(root, "empty", "", 0o644)
	b.write(root, "hard-1", "one inode", 0o644)
	b.do(os.Link(filepath.Join(root, "hard-1"), filepath.Join(root, "hard-2")))
	b.do(os.Link(filepath.Join(root, "hard-1"), filepath.Join(root, "hard-3")))
	b.symlink(root, "link-absolute", "/etc/passwd")
	b.symlink(root, "link-dangling", "no/such/place")
	b.symlink(root, "link-loop", "link-loop")
	for _, name := range []string{"with space", "new\nline", "tab\there", "ünïcode-Ω-漢", "quote'\"`$(x)", "-dash", "\xff\xfe-not-utf8", "back\\slash", strings.Repeat("n", 255)} {
		b.write(root, name, name, 0o644)
	}
	deep := strings.Repeat("d/", 60)
	b.do(os.MkdirAll(filepath.Join(root, deep), 0o755))
	b.write(root, deep+"bottom", "deep", 0o644)
	b.do(unix.Mkfifo(filepath.Join(root, "fifo"), 0o640))
	b.do(unix.Mknod(filepath.Join(root, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	b.do(unix.Mknod(filepath.Join(root, "loop"), unix.S_IFBLK|0o660, int(unix.Mkdev(7, 9))))
	b.write(root, "xattr", "x", 0o644)
	b.do(unix.Lsetxattr(filepath.Join(root, "xattr"), "user.comment", []byte("bytes \x00\xff"), 0))
	b.write(root, "capable", "x", 0o755)
	// VFS_CAP_REVISION_2 with CAP_NET_BIND_SERVICE (linux/capability.h).
	b.do(unix.Lsetxattr(filepath.Join(root, "capable"), "security.capability",
		[]byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0))
	sparse := filepath.Join(root, "sparse")
	f, err := os.Create(sparse)
	b.do(err)
	if err == nil {
		_, werr := f.WriteAt([]byte("end"), 32<<20)
		b.do(errors.Join(werr, f.Close()))
	}
	for _, dir := range []string{"sticky", "removed", "emptied", "replaced-by-link", "replaced-by-file"} {
		b.mkdir(root, dir, 0o755)
		b.write(root, dir+"/inside", dir, 0o644)
	}
	b.mode(root, "sticky", 0o777|os.ModeSticky|os.ModeSetgid)
	b.write(root, "file-to-dir", "was a file", 0o644)
	b.symlink(root, "link-to-file", "owned")
	b.write(root, "removed-file", "gone", 0o644)
	b.write(root, "returns", "first", 0o644)
	b.write(root, "chmod-only", "same content", 0o644)
}

// changes removes and replaces.
func (b *builder) changes(root string) {
	root = filepath.Join(root, work)
	for _, name := range []string{"removed", "emptied/inside", "replaced-by-link", "replaced-by-file", "file-to-dir",
		"link-to-file", "removed-file", "returns", "hard-2"} {
		b.do(os.RemoveAll(filepath.Join(root, name)))
	}
	b.symlink(root, "replaced-by-link", "sticky")
	b.write(root, "replaced-by-file", "a file now", 0o644)
	b.mkdir(root, "file-to-dir", 0o750)
	b.write(root, "file-to-dir/inside", "new", 0o644)
	b.write(root, "link-to-file", "a file of its own", 0o644)
	b.mode(root, "chmod-only", 0o400)
}

// comeBack makes again what the layer below has removed.
func (b *builder) comeBack(root string) {
	root = filepath.Join(root, work)
	b.write(root, "returns", "second", 0o600)
	b.mkdir(root, "removed", 0o711)
	b.write(root, "removed/other", "not what was inside", 0o644)
}

// writeByHand writes a layer with hard links to files of lower layers, parents
// that it does not name, and an opaque directory (OCI image specification,
// "Image Layer Filesystem Changeset").
func writeByHand(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	for _, hdr := range []*tar.Header{
		{Name: work + "/hard-across", Typeflag: tar.TypeLink, Linkname: work + "/chmod-only", Mode: 0o400},
		{Name: work + "/sticky/.wh..wh..opq", Typeflag: tar.TypeReg, Mode: 0o644},
		{Name: work + "/sticky/after-opaque", Typeflag: tar.TypeReg, Mode: 0o644, Uid: 7},
		{Name: work + "/no/parents/named", Typeflag: tar.TypeReg, Mode: 0o604},
		{Name: work + "/.wh.empty", Typeflag: tar.TypeReg, Mode: 0o644},
	} {
		if err := w.WriteHeader(hdr); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(w.Close(), f.Close())
}
