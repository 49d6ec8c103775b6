package erofs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"skerry.dev/skerry/internal/disk/erofs"
)

func newDir() *erofs.Node {
	return &erofs.Node{Attr: erofs.Attr{Mode: erofs.TypeDir | 0o755}}
}

func newFile(size int64) *erofs.Node {
	return &erofs.Node{Attr: erofs.Attr{Mode: erofs.TypeRegular | 0o644}, Size: size}
}

// writeImage writes what fill makes and returns the image's path.
func writeImage(t testing.TB, fill func(w *erofs.Writer, root *erofs.Node)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, root := erofs.NewWriter(f), newDir()
	fill(w, root)
	n, err := w.Finish(root)
	if err == nil {
		err = errors.Join(f.Truncate(n), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if tool, err := exec.LookPath("fsck.erofs"); err != nil {
		t.Log("fsck.erofs is not installed: not checked")
	} else if out, err := exec.Command(tool, path).CombinedOutput(); err != nil {
		t.Errorf("fsck.erofs: %v: %s", err, out)
	}
	return path
}

func store(t testing.TB, w *erofs.Writer, n *erofs.Node, r io.Reader) *erofs.Node {
	t.Helper()
	if err := w.WriteFile(n, r); err != nil {
		t.Fatal(err)
	}
	return n
}

func openImage(t testing.TB, path string) (*erofs.Reader, *erofs.Inode) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	r, err := erofs.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	root, err := r.Root()
	if err != nil {
		t.Fatal(err)
	}
	return r, root
}

// mounted mounts an image, or returns "" where that is not possible.
func mounted(t testing.TB, path string) string {
	t.Helper()
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil || os.Geteuid() != 0 || !strings.Contains(string(known), "\terofs\n") {
		t.Log("needs root and a kernel with erofs to mount: not mounted")
		return ""
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "erofs", "-o", "loop,ro", path, dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

func TestLargeDirectory(t *testing.T) {
	const n = 200_000
	path := writeImage(t, func(_ *erofs.Writer, root *erofs.Node) {
		for i := range n {
			root.SetChild(fmt.Sprintf("entry-%d", i), newFile(0))
		}
	})
	r, root := openImage(t, path)
	entries, err := r.ReadDir(root)
	if err != nil || len(entries) != n {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for i := 0; i < n; i += 997 {
		if _, err := r.Lookup(root, fmt.Sprintf("entry-%d", i)); err != nil {
			t.Errorf("entry %d: %v", i, err)
		}
	}
	if _, err := r.Lookup(root, "entry-x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a name that is not there: %v", err)
	}
	if dir := mounted(t, path); dir != "" {
		for _, name := range []string{"entry-0", "entry-99999", "entry-199999"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				t.Error(err)
			}
		}
		names, err := os.ReadDir(dir)
		if err != nil || len(names) != n {
			t.Errorf("the kernel lists %d entries, %v", len(names), err)
		}
	}
}

// TestLargeFile stores 5 GiB of which little is data, in all kinds of places.
func TestLargeFile(t *testing.T) {
	const size = 5<<30 + 12345
	marks := map[int64]string{0: "start", 1<<20 - 3: "across", 4<<30 - 2: "four GiB", size - 3: "end"}
	path := writeImage(t, func(w *erofs.Writer, root *erofs.Node) {
		root.SetChild("big", store(t, w, newFile(size), &markReader{marks: marks, size: size}))
		root.SetChild("after", store(t, w, newFile(5000), strings.NewReader(strings.Repeat("x", 5000))))
	})
	info, err := os.Stat(path)
	if err != nil || info.Size() > 4<<20 {
		t.Errorf("image of %d bytes, %v", info.Size(), err)
	}
	r, root := openImage(t, path)
	n, err := r.Lookup(root, "big")
	if err != nil {
		t.Fatal(err)
	}
	readers := map[string]io.ReaderAt{"own": r.Open(n)}
	if dir := mounted(t, path); dir != "" {
		f, err := os.Open(filepath.Join(dir, "big"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		readers["kernel"] = f
	}
	for name, f := range readers {
		for off, want := range marks {
			got := make([]byte, len(want))
			if _, err := f.ReadAt(got, off); err != nil && err != io.EOF || string(got) != want {
				t.Errorf("%s at %d: %q, %v; want %q", name, off, got, err, want)
			}
		}
		between := make([]byte, 1<<20)
		if _, err := f.ReadAt(between, 3<<30); err != nil || !bytes.Equal(between, make([]byte, 1<<20)) {
			t.Errorf("%s: the hole is not zeros: %v", name, err)
		}
	}
}

// markReader gives zeros but for some strings.
type markReader struct {
	marks     map[int64]string
	pos, size int64
}

func (m *markReader) Read(p []byte) (int, error) {
	p = p[:min(int64(len(p)), m.size-m.pos)]
	clear(p)
	for off, s := range m.marks {
		for i := range s {
			if at := off + int64(i) - m.pos; at >= 0 && at < int64(len(p)) {
				p[at] = s[i]
			}
		}
	}
	m.pos += int64(len(p))
	if len(p) == 0 {
		return 0, io.EOF
	}
	return len(p), nil
}

// TestTailsAndAttributes places tails behind attributes of every awkward size.
func TestTailsAndAttributes(t *testing.T) {
	type sample struct{ xattr, tail, target int }
	var samples []sample
	for _, x := range []int{0, 1, 1900, 2000, 4000, 4010, 4050, 5000, 65535} {
		for _, n := range []int{0, 1, 1000, 2048, 2049, 4095} {
			samples = append(samples, sample{x, n, max(n, 1)})
		}
	}
	content := func(n int) string { return strings.Repeat("abcdefgh", n/8+1)[:n] }
	path := writeImage(t, func(w *erofs.Writer, root *erofs.Node) {
		for i, s := range samples {
			f := store(t, w, newFile(int64(s.tail)+8192), strings.NewReader(content(s.tail+8192)))
			l := &erofs.Node{Attr: erofs.Attr{Mode: erofs.TypeSymlink | 0o777}, Target: content(s.target)}
			d := newDir()
			d.SetChild(content(s.tail%255+1), newFile(0))
			for _, n := range []*erofs.Node{f, l, d} {
				if s.xattr > 0 {
					n.SetXattr("trusted.z", "last")
					n.SetXattr("trusted.x", content(s.xattr))
				}
			}
			root.SetChild(fmt.Sprintf("f%d", i), f)
			root.SetChild(fmt.Sprintf("l%d", i), l)
			root.SetChild(fmt.Sprintf("d%d", i), d)
		}
	})
	r, root := openImage(t, path)
	dir := mounted(t, path)
	for i, s := range samples {
		f, err := r.Lookup(root, fmt.Sprintf("f%d", i))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r.Open(f))
		value, _ := f.Xattr("trusted.x")
		if err != nil || string(got) != content(s.tail+8192) || value != content(s.xattr) {
			t.Errorf("%+v: %d bytes, %v", s, len(got), err)
		}
		l, err := r.Lookup(root, fmt.Sprintf("l%d", i))
		if err != nil {
			t.Fatal(err)
		}
		if target, err := r.Readlink(l); err != nil || target != content(s.target) {
			t.Errorf("%+v: target of %d bytes, %v", s, len(target), err)
		}
		if dir == "" {
			continue
		}
		if got, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("f%d", i))); err != nil || string(got) != content(s.tail+8192) {
			t.Errorf("%+v: the kernel reads %d bytes, %v", s, len(got), err)
		}
		if got, err := os.Readlink(filepath.Join(dir, fmt.Sprintf("l%d", i))); err != nil || got != content(s.target) {
			t.Errorf("%+v: the kernel's target has %d bytes, %v", s, len(got), err)
		}
		if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("d%d", i), content(s.tail%255+1))); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestFinishRefuses(t *testing.T) {
	socket := &erofs.Node{Attr: erofs.Attr{Mode: 0o140644}}
	twice := newDir()
	long := newFile(0)
	for i := range 5 {
		long.SetXattr(fmt.Sprintf("user.%d", i), strings.Repeat("x", 65000))
	}
	foreign := newFile(0)
	foreign.SetXattr("com.apple.x", "")
	for name, fill := range map[string]func(root *erofs.Node){
		"socket":            func(root *erofs.Node) { root.SetChild("s", socket) },
		"slash":             func(root *erofs.Node) { root.SetChild("a/b", newFile(0)) },
		"dots":              func(root *erofs.Node) { root.SetChild("..", newFile(0)) },
		"long name":         func(root *erofs.Node) { root.SetChild(strings.Repeat("x", 256), newFile(0)) },
		"no data":           func(root *erofs.Node) { root.SetChild("f", newFile(1)) },
		"directory twice":   func(root *erofs.Node) { root.SetChild("a", twice); root.SetChild("b", twice) },
		"long attributes":   func(root *erofs.Node) { root.SetChild("f", long) },
		"foreign attribute": func(root *erofs.Node) { root.SetChild("f", foreign) },
		"empty target":      func(root *erofs.Node) { root.SetChild("l", &erofs.Node{Attr: erofs.Attr{Mode: erofs.TypeSymlink}}) },
	} {
		f, err := os.Create(filepath.Join(t.TempDir(), "image"))
		if err != nil {
			t.Fatal(err)
		}
		root := newDir()
		fill(root)
		if _, err := erofs.NewWriter(f).Finish(root); err == nil {
			t.Errorf("%s: accepted", name)
		}
		f.Close()
	}
}

func FuzzReader(f *testing.F) {
	path := writeImage(f, func(w *erofs.Writer, root *erofs.Node) {
		d := newDir()
		d.SetXattr("user.a", "b")
		root.SetChild("d", d)
		d.SetChild("l", &erofs.Node{Attr: erofs.Attr{Mode: erofs.TypeSymlink | 0o777}, Target: "x"})
		d.SetChild("holes", store(f, w, newFile(200_000), &markReader{marks: map[int64]string{150_000: "x"}, size: 200_000}))
		root.SetChild("f", store(f, w, newFile(5000), strings.NewReader(strings.Repeat("y", 5000))))
	})
	image, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(4096), []byte{1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, at uint32, patch []byte) {
		b := bytes.Clone(image)
		copy(b[int(at)%len(b):], patch)
		r, err := erofs.NewReader(bytes.NewReader(b))
		if err != nil {
			return
		}
		root, err := r.Root()
		if err != nil {
			return
		}
		visit(r, root, 0)
	})
}

func visit(r *erofs.Reader, dir *erofs.Inode, depth int) {
	entries, err := r.ReadDir(dir)
	if err != nil || depth > 3 {
		return
	}
	for _, e := range entries[:min(len(entries), 50)] {
		n, err := r.Lookup(dir, e.Name)
		if err != nil {
			continue
		}
		if n.IsDir() {
			visit(r, n, depth+1)
		}
		r.Readlink(n)
		io.Copy(io.Discard, io.LimitReader(r.Open(n), 64<<10))
	}
}
