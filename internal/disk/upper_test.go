//go:build linux

package disk_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/disk/disktest"
)

func newScratch(t *testing.T, mib int64) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "scratch")
	if err := disk.NewScratch(t.TempDir()).Create(t.Context(), file, disk.ScratchOptions{MiB: mib, Journal: true}); err != nil {
		t.Fatal(err)
	}
	return file
}

func upperLayer(t *testing.T, file string, lim disk.Limits) ([]byte, disk.UpperStats, error) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b bytes.Buffer
	stats, err := disk.WriteUpperLayer(t.Context(), &b, f, lim)
	return b.Bytes(), stats, err
}

// inOverlay calls change with the root of an overlay like a guest's: a layer
// below, the scratch disk above.
func inOverlay(t *testing.T, layer, scratch string, change func(root string)) {
	t.Helper()
	lower := disktest.MountLayer(t, layer)
	disktest.WithScratch(t, scratch, func(s string) {
		for _, name := range []string{"upper", "work", "docker"} {
			if err := os.MkdirAll(filepath.Join(s, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		merged := t.TempDir()
		run(t, "mount", "-t", "overlay", "-o", fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work,redirect_dir=off,metacopy=off,index=off",
			lower, s, s), "overlay", merged)
		defer run(t, "umount", merged)
		change(merged)
	}, nil)
}

func shell(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// without leaves out what no layer can hold.
func without(lines []string, parts ...string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(line, part) })
	})
}

// A sandbox's changes are what the sandbox saw, when the layer is put on the same
// image: by umoci, and by our own converter under overlayfs.
func TestUpperLayerIsWhatTheGuestSaw(t *testing.T) {
	base := disktest.Tar(t, mode(dir("tmp"), 0o1777), dir("etc"), file("etc/passwd", "root"), file("etc/issue", "x"), dir("keep"), file("keep/a", "1"), file("keep/b", "2"),
		dir("gone"), file("gone/a", "1"), dir("again"), file("again/old", "1"), dir("again/sub"), file("again/sub/x", ""), dir("move"), file("move/x", "1"),
		dir("to-file"), file("to-file/x", "1"), file("to-dir", "x"), symlink("to-real", "keep"), file("linked", "base"), xattr(mode(file("suid", "elf"), 0o4755), "security.capability", capability))
	tree, _ := build(t, base)
	scratch := newScratch(t, 512)
	var want []string
	inOverlay(t, tree.Layers[0], scratch, func(root string) {
		shell(t, root, `
			rm keep/a etc/issue; rm -r gone
			rm -r again; mkdir again; echo new > again/new
			cp -a move moved && rm -r move
			rm -r to-file; echo file > to-file
			rm to-dir; mkdir to-dir; echo in > to-dir/in
			rm to-real; mkdir to-real
			ln linked linked2; echo more >> etc/passwd
			chmod 700 keep; chown 5:6 suid; touch -d 2001-02-03 tmp
			echo hidden > .wh.linked; mkdir .wh..wh.dir; echo x > .wh..wh.dir/x; echo > keep/.wh..wh..opq
			mkdir -p var/lib/docker; : > etc/hostname; : > etc/machine-id; echo 1.1.1.1 > etc/resolv.conf
		`)
		if err := os.Mkdir(filepath.Join(root, "new"), 0o755); err != nil {
			t.Fatal(err)
		}
		disktest.Populate(t, filepath.Join(root, "new"), 64<<20)
		// Names that readers of layers would take for whiteouts are left out, with sockets and the agent's
		// mount points.
		want = without(list(t, root), `".wh.`, `/.wh.`, " socket ", `"etc/hostname"`, `"etc/machine-id"`)
		// Without an index, overlayfs gives two names of a file of a lower layer two inode numbers.
		for i := range want {
			want[i] = strings.Replace(want[i], `links=2 "linked2"`, `links=2 "linked"`, 1)
		}
	})
	layer, stats, err := upperLayer(t, scratch, disk.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", stats)
	if stats.Sockets != 1 || stats.ReservedNames != 3 || stats.MountPoints != 2 || stats.HardLinks != 4 || stats.DroppedXattrs != 0 || stats.DockerData {
		t.Errorf("stats %+v", stats)
	}
	if stats.TarBytes != int64(len(layer)) {
		t.Errorf("%d bytes, stats say %d", len(layer), stats.TarBytes)
	}
	checkEntries(t, layer)
	again, _, err := upperLayer(t, scratch, disk.Limits{})
	if err != nil || !bytes.Equal(layer, again) {
		t.Errorf("written twice the layer differs: %v", err)
	}
	t.Run("umoci", func(t *testing.T) {
		got := list(t, umociUnpack(t, [][]byte{base, layer}))
		// umoci drops attributes without a value, and has no times after 2262.
		want := without(want, `"new/t2446"`)
		for i := range want {
			want[i] = strings.Replace(want[i], ` user.empty=""`, "", 1)
		}
		if diff := cmp.Diff(want, without(got, `"new/t2446"`)); diff != "" {
			t.Errorf("the sandbox's tree (-) and umoci's (+):\n%s", diff)
		}
	})
	t.Run("erofs", func(t *testing.T) {
		tree, _ := build(t, base, layer)
		got := list(t, disktest.MountOverlay(t, tree.Layers...))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the sandbox's tree (-) and the next one's (+):\n%s", diff)
		}
	})
}

// checkEntries checks what no reader of the layer may meet.
func checkEntries(t *testing.T, layer []byte) {
	t.Helper()
	tr := tar.NewReader(bytes.NewReader(layer))
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if hdr.Typeflag == tar.TypeChar && hdr.Devmajor == 0 && hdr.Devminor == 0 {
			t.Errorf("%q: raw whiteout", hdr.Name)
		}
		for key := range hdr.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse") || strings.Contains(key, ".overlay.") {
				t.Errorf("%q: record %s", hdr.Name, key)
			}
		}
	}
}

func TestUpperLayerLimits(t *testing.T) {
	scratch := newScratch(t, 64)
	disktest.WithScratch(t, scratch, func(root string) {
		shell(t, root, "mkdir upper && cd upper && truncate -s 1T huge && mkdir -p a/b/c/d && touch 1 2 3 4 5 6 7 8 9")
	}, nil)
	for name, lim := range map[string]disk.Limits{"bytes": {}, "entries": {Entries: 5, TarBytes: 2 << 40}, "depth": {Depth: 3, TarBytes: 2 << 40}, "path": {PathBytes: 3, TarBytes: 2 << 40}} {
		if _, _, err := upperLayer(t, scratch, lim); skerry.CodeOf(err) != skerry.CodeTooLarge {
			t.Errorf("%s: %v, want %s", name, err, skerry.CodeTooLarge)
		}
	}
}

func TestUpperLayerOfOtherDisks(t *testing.T) {
	scratch := newScratch(t, 64)
	if _, _, err := upperLayer(t, scratch, disk.Limits{}); skerry.CodeOf(err) != skerry.CodeInvalid {
		t.Errorf("unused disk: %v", err)
	}
	if _, err := disk.WriteUpperLayer(t.Context(), io.Discard, strings.NewReader("no disk"), disk.Limits{}); skerry.CodeOf(err) != skerry.CodeInvalid {
		t.Errorf("no disk: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, err := os.Open(scratch)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := disk.WriteUpperLayer(ctx, io.Discard, f, disk.Limits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// A guest whose root sets overlayfs' own attributes must not make a layer that
// lacks content, or shows other files.
func TestUpperLayerOfHostileAttributes(t *testing.T) {
	for name, want := range map[string]skerry.Code{"redirect": skerry.CodeInvalid, "metacopy": skerry.CodeInvalid, "origin": ""} {
		scratch := newScratch(t, 64)
		disktest.WithScratch(t, scratch, func(root string) {
			dir := filepath.Join(root, "upper/d")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for name, value := range map[string]string{"trusted.overlay." + name: "/etc", "user.overlay.opaque": "y"} {
				if err := unix.Setxattr(dir, name, []byte(value), 0); err != nil {
					t.Fatal(err)
				}
			}
		}, nil)
		layer, stats, err := upperLayer(t, scratch, disk.Limits{})
		if got := skerry.CodeOf(err); got != want {
			t.Errorf("%s: code %q, want %q: %v", name, got, want, err)
		}
		if err == nil {
			checkEntries(t, layer)
			if stats.DroppedXattrs != 1 {
				t.Errorf("%+v", stats)
			}
		}
	}
}

// Directories that a guest's root made into a loop, or gave two names.
func TestUpperLayerOfLoops(t *testing.T) {
	for name, link := range map[string]string{"loop": "ln upper/a upper/a/b/loop", "to the top": "ln upper upper/a/up", "two names": "ln upper/a upper/z", "outside": "ln work upper/work"} {
		scratch := newScratch(t, 64)
		disktest.WithScratch(t, scratch, func(root string) { shell(t, root, "mkdir -p upper/a/b work/work") }, nil)
		run(t, "/sbin/debugfs", "-w", "-R", link, scratch)
		layer, _, err := upperLayer(t, scratch, disk.Limits{})
		want := skerry.CodeInvalid
		if name == "outside" { // is no harm: it is the guest's own disk
			want = ""
		}
		if got := skerry.CodeOf(err); got != want {
			t.Errorf("%s: code %q, want %q: %v", name, got, want, err)
		}
		if len(layer) > 1<<20 {
			t.Errorf("%s: %d bytes were written", name, len(layer))
		}
	}
}
