package kernel

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/u-root/u-root/pkg/cpio"
)

// tree makes a small kernel: an image that looks bootable and modules that are
// files with an index.
func tree(t *testing.T) *Kernel {
	t.Helper()
	dir := t.TempDir()
	image := make([]byte, 0x400)
	copy(image[0x202:], "HdrS")
	files := map[string]string{
		"boot/vmlinuz-6.1.0":                string(image),
		"lib/modules/6.1.0/modules.builtin": "kernel/fs/ext4/ext4.ko\n",
		"lib/modules/6.1.0/modules.dep": `kernel/virtio_pci.ko: kernel/virtio-ring.ko
kernel/virtio-ring.ko:
kernel/virtio_blk.ko: kernel/virtio.ko kernel/virtio-ring.ko
kernel/virtio.ko: kernel/virtio-ring.ko
kernel/virtio_console.ko:
kernel/virtio_net.ko:
kernel/virtio_balloon.ko:
kernel/virtio_mem.ko:
kernel/erofs.ko.xz:
kernel/overlay.ko:
`,
	}
	for _, name := range []string{"virtio_pci", "virtio-ring", "virtio_blk", "virtio", "virtio_console", "virtio_net", "virtio_balloon", "virtio_mem", "overlay"} {
		files["lib/modules/6.1.0/kernel/"+name+".ko"] = "module " + name
	}
	// "module erofs", as xz makes it.
	files["lib/modules/6.1.0/kernel/erofs.ko.xz"] = xzText(t, "module erofs")
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	k, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestInitramfs(t *testing.T) {
	k := tree(t)
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := BuildInitramfs(k, []byte("agent"), out); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two builds differ")
	}
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(first.Bytes())))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range records {
		got = append(got, r.Name)
		if strings.HasSuffix(r.Name, "erofs.ko") {
			content, err := io.ReadAll(io.NewSectionReader(r, 0, int64(r.FileSize)))
			if err != nil || string(content) != "module erofs" {
				t.Errorf("erofs = %q, %v; want it decompressed", content, err)
			}
		}
	}
	want := []string{
		"dev", "dev/console", "dev/null", "init", "modules",
		"modules/00-virtio_ring.ko", "modules/01-virtio_pci.ko", "modules/02-virtio.ko",
		"modules/03-virtio_blk.ko", "modules/04-virtio_console.ko", "modules/05-virtio_net.ko",
		"modules/06-virtio_balloon.ko", "modules/07-virtio_mem.ko", "modules/08-erofs.ko",
		"modules/09-overlay.ko", // ext4 is built in
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPlatformTar(t *testing.T) {
	k := tree(t)
	var out bytes.Buffer
	if err := WritePlatformTar(k, &out); err != nil {
		t.Fatal(err)
	}
	entries := make(map[string]string)
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		entries[h.Name] = fmt.Sprintf("%c %o %s", h.Typeflag, h.Mode, h.Linkname)
	}
	for name, want := range map[string]string{
		"a/tmp/":                              "5 1777 ",
		"b/proc/":                             "5 755 ",
		"a/etc/hosts":                         "0 644 ",
		"b/etc/machine-id":                    "0 644 ",
		"a/lib/modules/6.1.0/modules.dep":     "0 644 ",
		"b/usr/lib/modules/6.1.0/modules.dep": "1 644 a/lib/modules/6.1.0/modules.dep",
		"b/usr/lib/modules/6.1.0/kernel/":     "5 755 ",
	} {
		if got := entries[name]; got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if _, ok := entries["b/lib/"]; ok {
		t.Error("variant b has a directory lib, which would clash with an image's symlink")
	}
}

func TestOpenRefuses(t *testing.T) {
	tests := []struct {
		name, file, content, want string
	}{
		{"no kernel", "boot/vmlinuz-6.1.0", strings.Repeat("x", 0x400), errNotBootable.Error()},
		{"short kernel", "boot/vmlinuz-6.1.0", "x", "EOF"},
		{"module missing", "lib/modules/6.1.0/modules.dep", "kernel/virtio_pci.ko:\n", "virtio_blk"},
		{"bad index", "lib/modules/6.1.0/modules.dep", "nonsense\n", "without colon"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Dir(filepath.Dir(tree(t).ImagePath))
			if err := os.WriteFile(filepath.Join(dir, tt.file), []byte(tt.content), 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want %q", err, tt.want)
			}
		})
	}
}

// deb makes a package of members.
func deb(members ...string) []byte {
	out := []byte("!<arch>\n")
	for i := 0; i < len(members); i += 2 {
		out = fmt.Appendf(out, "%-16s%-12d%-6d%-6d%-8o%-10d`\n%s", members[i], 0, 0, 0, 0o100644, len(members[i+1]), members[i+1])
		if len(members[i+1])%2 == 1 {
			out = append(out, '\n')
		}
	}
	return out
}

func tarText(t testing.TB, entries ...*tar.Header) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range entries {
		h.Size = int64(len(h.Name))
		if h.Typeflag != tar.TypeReg {
			h.Size = 0
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, h.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestUnpackDeb(t *testing.T) {
	content := tarText(t,
		&tar.Header{Typeflag: tar.TypeReg, Name: "./boot/vmlinuz-6.1.0"},
		&tar.Header{Typeflag: tar.TypeReg, Name: "./usr/lib/modules/6.1.0/kernel/a.ko"},
		&tar.Header{Typeflag: tar.TypeReg, Name: "./lib/modules/6.1.0/../../../../escape"},
		&tar.Header{Typeflag: tar.TypeReg, Name: "./boot/config-6.1.0"},
		&tar.Header{Typeflag: tar.TypeSymlink, Name: "./lib/modules/link", Linkname: "/"},
	)
	dir := t.TempDir()
	file := filepath.Join(dir, "k.deb")
	if err := os.WriteFile(file, deb("debian-binary", "2.0\n", "control.tar", "odd", "data.tar.xz", xzText(t, content)), 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unpackDeb(t.Context(), file, out); err != nil {
		t.Fatal(err)
	}
	var got []string
	err := filepath.WalkDir(out, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(out, path)
			got = append(got, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"boot/vmlinuz-6.1.0", "lib/modules/6.1.0/kernel/a.ko"}, got); diff != "" {
		t.Error(diff)
	}
}

// FuzzFindData: no file makes the search for a package's content run wild.
func FuzzFindData(f *testing.F) {
	f.Add(deb("debian-binary", "2.0\n", "data.tar", "content"))
	f.Add([]byte("!<arch>\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		name, r, err := findData(bytes.NewReader(file))
		if err != nil {
			return
		}
		if n, err := io.Copy(io.Discard, r); err != nil || n > int64(len(file)) || !strings.HasPrefix(name, "data.tar") {
			t.Fatalf("%s: %d bytes, %v", name, n, err)
		}
	})
}
