//go:build linux

package ext4_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/disk/disktest"
	"skerry.dev/skerry/internal/disk/ext4"
)

func newScratch(t *testing.T, mib int64, journal bool) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "scratch")
	err := disk.NewScratch(t.TempDir()).Create(t.Context(), file, disk.ScratchOptions{MiB: mib, Journal: journal})
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func openDisk(t *testing.T, file string) *ext4.Reader {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	r, err := ext4.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Everything that Linux writes reads as Linux shows it, while the file system is
// frozen and after it was unmounted, with a journal and without.
func TestReadsWhatLinuxWrites(t *testing.T) {
	for _, journal := range []bool{false, true} {
		t.Run(fmt.Sprintf("journal %v", journal), func(t *testing.T) {
			file := newScratch(t, 512, journal)
			var want []string
			t.Run("frozen", func(t *testing.T) {
				disktest.WithScratch(t, file, func(root string) { disktest.Populate(t, root, 1<<30) }, func(root string) {
					want = listMounted(t, root)
					compare(t, want, openDisk(t, file))
				})
			})
			if want == nil {
				t.Skip("nothing was written, see above")
			}
			compare(t, want, openDisk(t, file))
		})
	}
}

// A directory of 100,000 names has a hash tree of two levels.
func TestLargeDirectory(t *testing.T) {
	file := newScratch(t, 2048, false)
	var want []string
	disktest.WithScratch(t, file, func(root string) {
		disktest.PopulateMany(t, filepath.Join(root, "many"), 100_000)
		want = listMounted(t, root)
	}, func(string) { compare(t, want, openDisk(t, file)) })
}

// A disk that grew has groups whose descriptors lie elsewhere. Linux lets only
// the machine's own root grow a mounted one, so this one is not mounted.
func TestGrownDisk(t *testing.T) {
	file := newScratch(t, 64, false)
	disktest.WithScratch(t, file, func(root string) {
		if err := os.WriteFile(filepath.Join(root, "before"), []byte("small"), 0o644); err != nil {
			t.Fatal(err)
		}
	}, nil)
	if err := os.Truncate(file, 20<<30); err != nil { // 160 groups: more than one block of descriptors
		t.Fatal(err)
	}
	runTool(t, "/sbin/e2fsck", "-f", "-p", file)
	runTool(t, "/sbin/resize2fs", file)
	disktest.WithScratch(t, file, func(root string) {
		// Linux spreads directories over the groups.
		for i := range 300 {
			dir := filepath.Join(root, fmt.Sprintf("dir-%d", i))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "file"), []byte(dir), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}, func(root string) { compare(t, listMounted(t, root), openDisk(t, file)) })
}

func runTool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

func TestRefusesADiskThatNeedsRecovery(t *testing.T) {
	file := newScratch(t, 64, true)
	disktest.WithScratch(t, file, func(root string) {
		if err := os.WriteFile(filepath.Join(root, "x"), []byte("y"), 0o644); err != nil {
			t.Fatal(err)
		}
		unix.Sync()
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := ext4.NewReader(f); !errors.Is(err, ext4.ErrNotClean) {
			t.Errorf("mounted disk: %v, want %v", err, ext4.ErrNotClean)
		}
	}, nil)
}

func TestRefusesOtherVariants(t *testing.T) {
	mke2fs := "/sbin/mke2fs"
	for _, args := range [][]string{
		{"-t", "ext2"}, {"-t", "ext4", "-b", "1024"}, {"-t", "ext4", "-O", "inline_data"},
		{"-t", "ext4", "-O", "^metadata_csum"}, {"-t", "ext4", "-O", "^64bit"}, {"-t", "ext4", "-O", "ea_inode"}, {"-t", "ext4", "-I", "128"},
	} {
		file := filepath.Join(t.TempDir(), "disk")
		runTool(t, mke2fs, append(append([]string{"-q", "-F"}, args...), file, "16M")...)
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ext4.NewReader(f); !errors.Is(err, ext4.ErrUnsupported) && !errors.Is(err, ext4.ErrCorrupt) {
			t.Errorf("%v: %v", args, err)
		}
		f.Close()
	}
}

// Holes and blocks that were reserved but not written are no data.
func TestNextData(t *testing.T) {
	file := newScratch(t, 64, false)
	disktest.WithScratch(t, file, func(root string) {
		f, err := os.Create(filepath.Join(root, "sparse"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte("x"), 8192); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fallocate(int(f.Fd()), 0, 16384, 4096); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("yz"), 1<<30); err != nil {
			t.Fatal(err)
		}
	}, func(string) {
		r := openDisk(t, file)
		content := r.Open(lookup(t, r, "sparse"))
		for _, c := range []struct{ off, start, end int64 }{
			{0, 8192, 12288}, {8193, 8193, 12288}, {12288, 1 << 30, 1<<30 + 2}, {1<<30 + 1, 1<<30 + 1, 1<<30 + 2},
		} {
			start, end, err := content.NextData(c.off)
			if start != c.start || end != c.end || err != nil {
				t.Errorf("from %d: %d to %d, %v; want %d to %d", c.off, start, end, err, c.start, c.end)
			}
		}
		if _, _, err := content.NextData(1<<30 + 2); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
	})
}

func lookup(t *testing.T, r *ext4.Reader, name string) *ext4.Inode {
	t.Helper()
	root, err := r.Root()
	if err != nil {
		t.Fatal(err)
	}
	var found *ext4.Inode
	err = r.ReadDir(root, func(d ext4.Dirent) (err error) {
		if d.Name == name {
			found, err = r.Inode(d.Inode)
		}
		return err
	})
	if err != nil || found == nil {
		t.Fatalf("look up %s: %v", name, err)
	}
	return found
}

func listMounted(t *testing.T, root string) []string {
	t.Helper()
	list, err := disktest.List(root)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return list
}

func compare(t *testing.T, want []string, r *ext4.Reader) {
	t.Helper()
	root, err := r.Root()
	if err != nil {
		t.Fatal(err)
	}
	l := lister{r: r, first: make(map[uint32]string)}
	if err := l.list(".", root); err != nil {
		t.Fatal(err)
	}
	slices.Sort(l.lines)
	if diff := cmp.Diff(want, l.lines); diff != "" {
		t.Errorf("mounted (-) and read (+):\n%s", diff)
	}
}

// lister describes files as disktest.List does.
type lister struct {
	r     *ext4.Reader
	first map[uint32]string
	lines []string
}

var typeNames = map[uint32]string{ext4.TypeRegular: "file", ext4.TypeDir: "dir", ext4.TypeSymlink: "link",
	ext4.TypeChar: "char", ext4.TypeBlock: "block", ext4.TypeFIFO: "fifo", ext4.TypeSocket: "socket"}

func (l *lister) list(name string, n *ext4.Inode) error {
	var line strings.Builder
	fmt.Fprintf(&line, "%q %s %04o %d:%d %d.%09d", name, typeNames[n.Type()], n.Mode&0o7777, n.UID, n.GID, n.Mtime, n.MtimeNsec)
	if n.Type() == ext4.TypeChar || n.Type() == ext4.TypeBlock {
		fmt.Fprintf(&line, " %d,%d", n.Major, n.Minor)
	}
	if !n.IsDir() && n.Links > 1 {
		if _, ok := l.first[n.Number]; !ok {
			l.first[n.Number] = name
		}
		fmt.Fprintf(&line, " links=%d %q", n.Links, l.first[n.Number])
	}
	switch n.Type() {
	case ext4.TypeRegular:
		h := sha256.New()
		if _, err := io.Copy(h, io.NewSectionReader(l.r.Open(n), 0, n.Size)); err != nil {
			return err
		}
		fmt.Fprintf(&line, " %d %x", n.Size, h.Sum(nil)[:12])
	case ext4.TypeSymlink:
		target, err := l.r.Readlink(n)
		if err != nil {
			return err
		}
		fmt.Fprintf(&line, " -> %q", target)
	}
	xattrs, err := l.r.Xattrs(n)
	if err != nil {
		return err
	}
	for _, x := range xattrs {
		if len(x.Value) > 64 {
			fmt.Fprintf(&line, " %s=%d:%x", x.Name, len(x.Value), sha256.Sum256([]byte(x.Value)))
			continue
		}
		fmt.Fprintf(&line, " %s=%q", x.Name, x.Value)
	}
	l.lines = append(l.lines, line.String())
	if !n.IsDir() {
		return nil
	}
	return l.children(name, n)
}

func (l *lister) children(name string, dir *ext4.Inode) error {
	var entries []ext4.Dirent
	err := l.r.ReadDir(dir, func(d ext4.Dirent) error { entries = append(entries, d); return nil })
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b ext4.Dirent) int { return strings.Compare(a.Name, b.Name) })
	for _, d := range entries {
		n, err := l.r.Inode(d.Inode)
		if err != nil {
			return err
		}
		if err := l.list(path.Join(name, d.Name), n); err != nil {
			return err
		}
	}
	return nil
}
