//go:build linux

package disktest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Populate fills a directory of an ext4 file system with one of everything that
// a file can be, among it a sparse one of many bytes. The caller must be root.
func Populate(t testing.TB, root string, sparse int64) {
	t.Helper()
	p := populator{t, root}
	p.names()
	p.data(sparse)
	p.special()
	p.attributes()
	PopulateMany(t, filepath.Join(root, "many"), 3000)
}

// PopulateMany makes a directory with n empty files, of which every seventh is
// gone again: that leaves gaps in the directory and its hash tree.
func PopulateMany(t testing.TB, dir string, n int) {
	t.Helper()
	p := populator{t, dir}
	p.must(os.Mkdir(dir, 0o755))
	for i := range n {
		p.file(fmt.Sprintf("file-%06d", i), nil)
	}
	for i := 0; i < n; i += 7 {
		p.must(os.Remove(p.path(fmt.Sprintf("file-%06d", i))))
	}
}

type populator struct {
	t    testing.TB
	root string
}

func (p populator) path(name string) string { return filepath.Join(p.root, name) }

func (p populator) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p populator) file(name string, data []byte) string {
	p.t.Helper()
	p.must(os.WriteFile(p.path(name), data, 0o644))
	return p.path(name)
}

func (p populator) names() {
	p.t.Helper()
	for _, name := range []string{strings.Repeat("n", 255), "not \xff\xfe utf-8", "new\nline", `back\slash`, " ", "-rf", "ünïcode", "a=b"} {
		p.file(name, []byte(name))
	}
	deep := p.path(strings.Repeat("deep/", 200))
	p.must(os.MkdirAll(deep, 0o750))
	p.must(os.WriteFile(filepath.Join(deep, "bottom"), []byte("here"), 0o600))
	p.file("hard-a", []byte("linked"))
	p.must(os.Link(p.path("hard-a"), p.path("hard-b")))
	p.must(os.Link(p.path("hard-a"), p.path("deep/hard-c")))
	p.must(os.Symlink("hard-a", p.path("link-a")))
	p.must(os.Link(p.path("link-a"), p.path("link-b")))
	for _, n := range []int{1, 59, 60, 61, 1000, 4095} {
		p.must(os.Symlink(strings.Repeat("t", n), p.path(fmt.Sprintf("link-%04d", n))))
	}
}

func (p populator) data(size int64) {
	p.t.Helper()
	random := make([]byte, 3<<20+17)
	rand.NewChaCha8([32]byte{3}).Read(random)
	p.file("random", random)
	p.file("empty", nil)
	p.file("zeros", make([]byte, 100_000))

	sparse, err := os.Create(p.path("sparse"))
	p.must(err)
	defer sparse.Close()
	for _, at := range []int64{5000, size / 3, size - 4} {
		_, err := sparse.WriteAt([]byte("data"), at)
		p.must(err)
	}
	// Reserved blocks hold what was there before, but read as zeros.
	p.must(unix.Fallocate(int(sparse.Fd()), 0, size/2, 2<<20))
	p.must(unix.Fallocate(int(sparse.Fd()), unix.FALLOC_FL_KEEP_SIZE, 2*size, 1<<20))

	// Every other block is written: more extents than two levels of a tree hold.
	holes, err := os.Create(p.path("holes"))
	p.must(err)
	defer holes.Close()
	for i := range int64(1000) {
		_, err := holes.WriteAt(bytes.Repeat([]byte{byte(i)}, 4096), i*8192)
		p.must(err)
	}
}

func (p populator) special() {
	p.t.Helper()
	for _, dev := range []struct {
		name  string
		mode  uint32
		major uint32
		minor uint32
	}{
		{"char", unix.S_IFCHR | 0o666, 1, 3}, {"block", unix.S_IFBLK | 0o660, 300, 70000},
		{"block-old", unix.S_IFBLK | 0o660, 8, 255}, {"char-max", unix.S_IFCHR | 0o600, 4095, 1<<20 - 1},
		{"fifo", unix.S_IFIFO | 0o600, 0, 0}, {"socket", unix.S_IFSOCK | 0o755, 0, 0},
	} {
		p.must(unix.Mknod(p.path(dev.name), dev.mode, int(unix.Mkdev(dev.major, dev.minor))))
	}
	for name, mode := range map[string]uint32{"setuid": 0o4755, "setgid": 0o2755, "sticky": 0o1777, "closed": 0} {
		p.file(name, []byte(name))
		p.must(unix.Chmod(p.path(name), mode))
	}
	p.must(os.Mkdir(p.path("tmp"), 0o755))
	p.must(unix.Chmod(p.path("tmp"), 0o1777))
	p.must(os.Lchown(p.file("big-owner", nil), 3_000_000_000, 100_000))
	p.must(os.Lchown(p.path("link-a"), 1000, 1001))
}

func (p populator) attributes() {
	p.t.Helper()
	capability := []byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	acl := []byte("\x02\x00\x00\x00" + "\x01\x00\x06\x00\xff\xff\xff\xff" + "\x02\x00\x04\x00\xe8\x03\x00\x00" +
		"\x04\x00\x04\x00\xff\xff\xff\xff" + "\x10\x00\x04\x00\xff\xff\xff\xff" + "\x20\x00\x04\x00\xff\xff\xff\xff")
	p.file("attrs", []byte("x"))
	p.file("attrs-acl", []byte("x"))
	p.must(os.Mkdir(p.path("attrs-dir"), 0o755))
	for _, a := range []struct {
		file, name string
		value      []byte
	}{
		{"attrs", "security.capability", capability},
		{"attrs", "user.small", []byte("1")},
		{"attrs", "user.empty", nil},
		{"attrs", "user.binary", []byte{0, 255, '\n', 0}},
		{"attrs", "user.block", bytes.Repeat([]byte("v"), 3000)},
		{"attrs", "trusted.mine", []byte("root's")},
		{"attrs-acl", "system.posix_acl_access", acl},
		{"attrs-dir", "system.posix_acl_default", acl},
		{"attrs-dir", "user.dir", bytes.Repeat([]byte("d"), 500)},
	} {
		p.must(unix.Lsetxattr(p.path(a.file), a.name, a.value, 0))
	}
	for year, name := range map[int]string{1901: "t1902", 1965: "t1965", 1970: "t1970", 2038: "t2038", 2100: "t2100", 2446: "t2446"} {
		p.file(name, nil)
		at := time.Date(year, 12, 30, 1, 2, 3, 987654321, time.UTC)
		if year == 2446 { // the last that two bits of epoch reach
			at = time.Date(2446, 5, 10, 22, 38, 55, 1, time.UTC)
		}
		ts := unix.NsecToTimespec(0)
		ts.Sec, ts.Nsec = at.Unix(), int64(at.Nanosecond())
		p.must(unix.UtimesNanoAt(unix.AT_FDCWD, p.path(name), []unix.Timespec{ts, ts}, 0))
	}
}
