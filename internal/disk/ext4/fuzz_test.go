package ext4

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// smallImage makes a file system with a bit of everything, without root.
func smallImage(t testing.TB) []byte {
	t.Helper()
	tool := "/sbin/mke2fs"
	if _, err := os.Stat(tool); err != nil {
		t.Skip("mke2fs is not installed on this machine (apt-get install e2fsprogs)")
	}
	tree, file := t.TempDir(), filepath.Join(t.TempDir(), "image")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, content string) { must(os.WriteFile(filepath.Join(tree, name), []byte(content), 0o644)) }
	must(os.MkdirAll(filepath.Join(tree, "a/b"), 0o755))
	write("a/b/file", "content")
	must(os.Link(filepath.Join(tree, "a/b/file"), filepath.Join(tree, "a/hard")))
	must(os.Symlink("a/b", filepath.Join(tree, "fast")))
	must(os.Symlink(strings.Repeat("slow/", 20), filepath.Join(tree, "slow")))
	must(unix.Mkfifo(filepath.Join(tree, "fifo"), 0o600))
	for i := range 200 { // two blocks of names
		write("a/"+strings.Repeat("n", 20)+string(rune('a'+i%26))+string(rune('a'+i/26)), "")
	}
	holes, err := os.Create(filepath.Join(tree, "holes"))
	must(err)
	for i := range int64(6) {
		_, err := holes.WriteAt([]byte{1}, i*9000)
		must(err)
	}
	must(holes.Close())
	for name, size := range map[string]int{"user.small": 3, "user.large": 2000} {
		if err := unix.Setxattr(filepath.Join(tree, "holes"), name, make([]byte, size), 0); err != nil {
			t.Logf("without extended attributes: %v", err)
		}
	}
	cmd := exec.Command(tool, "-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-N", "300", "-d", tree, "-O",
		"none,extent,flex_bg,filetype,dir_index,dir_nlink,extra_isize,sparse_super,meta_bg,large_file,huge_file,metadata_csum,64bit,ext_attr", file, "512K")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mke2fs: %v: %s", err, out)
	}
	image, err := os.ReadFile(file)
	must(err)
	return image
}

// walkBudget is what a walk of a damaged file system may find before it stops.
type walkBudget struct{ files, bytes int64 }

var errBudget = errors.New("enough")

func (w *walkBudget) walk(r *Reader, n *Inode, depth int) error {
	if w.files--; w.files < 0 || depth > 50 {
		return errBudget
	}
	if _, err := r.Xattrs(n); err != nil {
		return err
	}
	switch n.Type() {
	case TypeSymlink:
		_, err := r.Readlink(n)
		return err
	case TypeRegular:
		return w.read(r.Open(n))
	case TypeDir:
		return r.ReadDir(n, func(d Dirent) error {
			child, err := r.Inode(d.Inode)
			if err != nil {
				return err
			}
			return w.walk(r, child, depth+1)
		})
	}
	return nil
}

func (w *walkBudget) read(f *File) error {
	buf := make([]byte, 10_000)
	for off := int64(0); ; {
		start, end, err := f.NextData(off)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if start < off || end <= start {
			return errors.New("data goes backwards")
		}
		if w.bytes -= end - start; w.bytes < 0 {
			return errBudget
		}
		for off = start; off < end; {
			n, err := f.ReadAt(buf[:min(end-off, int64(len(buf)))], off)
			if err != nil {
				return err
			}
			off += int64(n)
		}
	}
}

func walkImage(image []byte, unchecked bool) error {
	r, err := newReader(bytes.NewReader(image), unchecked)
	if err != nil {
		return err
	}
	root, err := r.Root()
	if err != nil {
		return err
	}
	return (&walkBudget{files: 2000, bytes: 4 << 20}).walk(r, root, 0)
}

// FuzzReader changes bytes of a file system: a patch is a list of places (three
// bytes, in units of 2) and 16-bit values. Checksums are not checked, as a guest
// can make right ones.
func FuzzReader(f *testing.F) {
	image := smallImage(f)
	if err := walkImage(image, false); err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{})
	f.Add([]byte{0, 2, 12, 255, 255}) // feature bits of the superblock
	// Values in each used 16-bit field of the first inodes, one at a time.
	for at := range len(image) / 2 {
		if v := binary.LittleEndian.Uint16(image[2*at:]); v != 0 && at%61 == 0 && at < 1<<24 {
			f.Add([]byte{byte(at >> 16), byte(at >> 8), byte(at), byte(v + 1), byte(v >> 8)})
		}
	}
	f.Fuzz(func(t *testing.T, patch []byte) {
		b := bytes.Clone(image)
		for ; len(patch) >= 5; patch = patch[5:] {
			at := 2 * (int(patch[0])<<16 | int(patch[1])<<8 | int(patch[2]))
			copy(b[at%len(b):], patch[3:5])
		}
		err := walkImage(b, true)
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrNotClean) && !errors.Is(err, errBudget) {
			t.Error(err)
		}
	})
}

// Every byte of metadata is covered by a checksum, or does not matter: whatever
// one changed byte does, it does not show another tree.
func TestChangedByteIsNoticed(t *testing.T) {
	image := smallImage(t)
	noticed := 0
	for at := superAt; at < len(image); at += 499 {
		b := bytes.Clone(image)
		b[at] ^= 0x10
		err := walkImage(b, false)
		if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnsupported) {
			t.Errorf("byte %d: %v", at, err)
		}
		if err != nil {
			noticed++
		}
	}
	if noticed < 100 {
		t.Errorf("only %d changes were noticed", noticed)
	}
}

// Every length of a disk that was cut off gives an error, but no other fault.
func TestCutImage(t *testing.T) {
	image := smallImage(t)
	for size := 0; size < len(image); size += 4096 - 13 {
		if err := walkImage(image[:size], false); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}
