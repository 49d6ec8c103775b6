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
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/disk/disktest"
	"skerry.dev/skerry/internal/disk/erofs"
	"skerry.dev/skerry/internal/tarfuzz"
)

type entry = disktest.Entry
type header = tar.Header

// build makes layer files of tars, bottom first, and checks each with fsck.erofs.
func build(t testing.TB, tars ...[]byte) (*disk.Tree, []disk.LayerStats) {
	t.Helper()
	dir := t.TempDir()
	var tree *disk.Tree
	var all []disk.LayerStats
	for i, b := range tars {
		next, stats, err := disk.BuildLayer(t.Context(), bytes.NewReader(b), int64(len(b)), tree,
			filepath.Join(dir, fmt.Sprintf("%d.erofs", i)), disk.Limits{})
		if err != nil {
			t.Fatalf("layer %d: %v", i, err)
		}
		tree, all = next, append(all, stats)
		fsck(t, tree.Layers[i])
	}
	return tree, all
}

func fsck(t testing.TB, path string) {
	t.Helper()
	tool, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Log("fsck.erofs is not installed: not checked")
		return
	}
	if out, err := exec.Command(tool, "--extract", path).CombinedOutput(); err != nil || strings.Contains(string(out), "<E>") {
		t.Errorf("fsck.erofs: %v: %s", err, out)
	}
}

func buildOne(t testing.TB, archive []byte, lower *disk.Tree, lim disk.Limits) error {
	t.Helper()
	dst := filepath.Join(t.TempDir(), "layer")
	_, _, err := disk.BuildLayer(t.Context(), bytes.NewReader(archive), int64(len(archive)), lower, dst, lim)
	if _, statErr := os.Stat(dst); (err == nil) != (statErr == nil) {
		t.Errorf("error is %v, but the layer file: %v", err, statErr)
	}
	return err
}

func TestRefusals(t *testing.T) {
	many := layer{}
	for i := range 20 {
		many = append(many, file(fmt.Sprintf("f%d", i), "12345"))
	}
	loop := layer{symlink("a", "b"), symlink("b", "a"), file("a/x", "")}
	for _, c := range []struct {
		name    string
		entries layer
		lim     disk.Limits
		code    skerry.Code
		says    string // in the message
	}{
		{"absolute name", layer{file("ok", ""), file("/etc/passwd", "x")}, disk.Limits{}, skerry.CodeInvalid, `"/etc/passwd"`},
		{"dots", layer{file("a/../../x", "x")}, disk.Limits{}, skerry.CodeInvalid, `"a/../../x"`},
		{"dots in a link's target", layer{file("x", ""), hardlink("y", "../x")}, disk.Limits{}, skerry.CodeInvalid, `"y"`},
		{"hard link to nothing", layer{hardlink("y", "a/x")}, disk.Limits{}, skerry.CodeInvalid, `"a/x"`},
		{"hard link to a deleted file", layer{file(".wh.base", ""), hardlink("y", "base")}, disk.Limits{}, skerry.CodeInvalid, `"base"`},
		{"hard link to a directory", layer{dir("d"), hardlink("y", "d")}, disk.Limits{}, skerry.CodeInvalid, "directory"},
		{"hard link to a lower directory", layer{hardlink("y", "basedir")}, disk.Limits{}, skerry.CodeInvalid, "directory"},
		{"link loop", loop, disk.Limits{}, skerry.CodeInvalid, "symbolic links"},
		{"root is a file", layer{file(".", "")}, disk.Limits{}, skerry.CodeInvalid, "root"},
		{"whiteout of nothing", layer{file(".wh.", "")}, disk.Limits{}, skerry.CodeInvalid, "whiteout"},
		{"whiteout of dots", layer{file(".wh...", "")}, disk.Limits{}, skerry.CodeInvalid, "whiteout"},
		{"whiteout as a directory", layer{file(".wh.x/y", "")}, disk.Limits{}, skerry.CodeInvalid, "whiteout"},
		{"device number", layer{{Header: header{Name: "c", Typeflag: tar.TypeChar, Devmajor: 5000}}}, disk.Limits{}, skerry.CodeInvalid, "5000"},
		{"owner", layer{{Header: header{Name: "c", Uid: 1 << 40}}}, disk.Limits{}, skerry.CodeInvalid, "owner"},
		{"name too long", layer{file(strings.Repeat("n", 256), "")}, disk.Limits{}, skerry.CodeTooLarge, "255"},
		{"path too long", layer{file(strings.Repeat("n/", 2100), "")}, disk.Limits{}, skerry.CodeTooLarge, "4096"},
		{"too deep", layer{file(strings.Repeat("n/", 600), "")}, disk.Limits{}, skerry.CodeTooLarge, "512"},
		{"too deep by a link", layer{dir(strings.Repeat("n/", 300)), symlink("l", strings.Repeat("n/", 300)), file("l/"+strings.Repeat("m/", 300), "")}, disk.Limits{}, skerry.CodeTooLarge, "512"},
		{"entries", many, disk.Limits{Entries: 19}, skerry.CodeTooLarge, "19"},
		{"implied directories", layer{file("a/b/c/d/e", "")}, disk.Limits{Entries: 3}, skerry.CodeTooLarge, "3"},
		{"data", many, disk.Limits{DataBytes: 99}, skerry.CodeTooLarge, "99"},
		{"names", many, disk.Limits{MetaBytes: 40}, skerry.CodeTooLarge, "40"},
		{"tar", many, disk.Limits{TarBytes: 1024}, skerry.CodeTooLarge, "1024"},
		{"attributes", layer{xattr(file("x", ""), "user.x", strings.Repeat("v", 200))}, disk.Limits{XattrBytes: 100}, skerry.CodeTooLarge, "100"},
		{"attribute value", layer{xattr(file("x", ""), "user.x", strings.Repeat("v", 65536))}, disk.Limits{}, skerry.CodeTooLarge, "65535"},
	} {
		t.Run(c.name, func(t *testing.T) {
			lower, _ := build(t, disktest.Tar(t, file("base", "1"), dir("basedir")))
			err := buildOne(t, disktest.Tar(t, c.entries...), lower, c.lim)
			if skerry.CodeOf(err) != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v (code %q), want code %q and %q", err, skerry.CodeOf(err), c.code, c.says)
			}
		})
	}
}

func TestCutOff(t *testing.T) {
	whole := disktest.Tar(t, file("a", strings.Repeat("x", 5000)), xattr(file("b", "y"), "user.a", "b"))
	for _, n := range []int{100, 512, 600, 3000, 6700} {
		if err := buildOne(t, whole[:n], nil, disk.Limits{}); skerry.CodeOf(err) != skerry.CodeInvalid {
			t.Errorf("%d bytes of the tar: %v", n, err)
		}
	}
	if err := buildOne(t, bytes.Repeat([]byte("no tar "), 1000), nil, disk.Limits{}); skerry.CodeOf(err) != skerry.CodeInvalid {
		t.Errorf("not a tar: %v", err)
	}
	if err := buildOne(t, nil, nil, disk.Limits{}); err != nil {
		t.Errorf("an empty layer: %v", err)
	}
}

func TestDependsOnLower(t *testing.T) {
	root := dir(".")
	for _, c := range []struct {
		name    string
		entries layer
		want    bool
	}{
		{"complete", layer{root, dir("etc"), file("etc/x", "1"), symlink("lib", "etc"), file("lib/y", "2"), hardlink("z", "etc/x")}, false},
		{"opaque", layer{root, dir("etc"), file("etc/.wh..wh..opq", ""), file("etc/d/x", "1")}, false},
		{"no root", layer{dir("etc")}, true},
		{"no parent", layer{root, file("etc/x", "1")}, true},
		{"whiteout", layer{root, file(".wh.etc", "")}, true},
		{"hard link", layer{root, hardlink("x", "base")}, true},
	} {
		_, stats := build(t, disktest.Tar(t, root, file("base", "1"), dir("etc")), disktest.Tar(t, c.entries...))
		if stats[1].DependsOnLower != c.want {
			t.Errorf("%s: got %v, want %v", c.name, stats[1].DependsOnLower, c.want)
		}
	}
}

func TestDeterministic(t *testing.T) {
	for _, c := range conformanceCases {
		var tars [][]byte
		for _, l := range c.layers {
			tars = append(tars, disktest.Tar(t, l...))
		}
		one, _ := build(t, tars...)
		two, _ := build(t, tars...)
		for i := range one.Layers {
			a, errA := os.ReadFile(one.Layers[i])
			b, errB := os.ReadFile(two.Layers[i])
			if errA != nil || errB != nil || !bytes.Equal(a, b) {
				t.Errorf("%s: layer %d differs from its second making (%v, %v)", c.name, i, errA, errB)
			}
		}
	}
}

func TestBuildLayerDiskFull(t *testing.T) {
	full := smallDisk(t)
	archive := disktest.Tar(t, file("a", strings.Repeat("x", 1<<20)))
	dst := filepath.Join(full, "layer")
	_, _, err := disk.BuildLayer(t.Context(), bytes.NewReader(archive), int64(len(archive)), nil, dst, disk.Limits{})
	if skerry.CodeOf(err) != skerry.CodeExhausted {
		t.Errorf("got %v, want code exhausted", err)
	}
	if _, err := os.Stat(dst); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half a layer is left: %v", err)
	}
}

func TestBuildLayerCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dst := filepath.Join(t.TempDir(), "layer")
	_, _, err := disk.BuildLayer(ctx, bytes.NewReader(nil), 0, nil, dst, disk.Limits{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
}

// TestCorruptLowerLayer damages a layer file: a clear error or a right answer,
// never a panic.
func TestCorruptLowerLayer(t *testing.T) {
	lower, _ := build(t, disktest.Tar(t, dir("d"), file("d/x", strings.Repeat("1", 5000)), symlink("l", "d")))
	good, err := os.ReadFile(lower.Layers[0])
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "bad")
	archive := disktest.Tar(t, file("l/y", "1"), hardlink("h", "d/x"), file("d/.wh.x", ""))
	refused := 0
	for i := 0; i < len(good); i += 41 {
		b := bytes.Clone(good)
		b[i] ^= 0xff
		if err := os.WriteFile(bad, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := buildOne(t, archive, &disk.Tree{Layers: []string{bad}}, disk.Limits{}); err != nil {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no damage was noticed")
	}
	if err := os.WriteFile(bad, good[:3000], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := buildOne(t, archive, &disk.Tree{Layers: []string{bad}}, disk.Limits{}); !errors.Is(err, erofs.ErrCorrupt) {
		t.Errorf("cut off: %v", err)
	}
}

// TestTarFormats converts what tar(1) makes of one tree in all its formats,
// sparse files in all their versions.
func TestTarFormats(t *testing.T) {
	if _, err := exec.LookPath("tar"); err != nil {
		t.Skip("tar is not installed")
	}
	src := t.TempDir()
	name := strings.Repeat("long", 60)
	deep := filepath.Join(src, name, name)
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(strings.Repeat("t/", 120), filepath.Join(deep, "link")); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(src, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 { // more pieces than a header has room for
		if _, err := f.WriteAt(bytes.Repeat([]byte{byte(i + 1)}, 5000), int64(i)<<22+4096); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Truncate(1<<28+1), f.Close()); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--format=gnu"}, {"--format=posix"}, {"--format=gnu", "--sparse"},
		{"--format=posix", "--sparse", "--sparse-version=0.0"},
		{"--format=posix", "--sparse", "--sparse-version=0.1"},
		{"--format=posix", "--sparse", "--sparse-version=1.0"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tar")
			run(t, "tar", append(args, "-cf", path, "-C", src, ".")...)
			archive, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			tree, stats := build(t, archive)
			if stats[0].ImageBytes > 2<<20 {
				t.Errorf("layer of %d bytes: holes were filled", stats[0].ImageBytes)
			}
			want, got := list(t, src), list(t, disktest.MountLayer(t, tree.Layers[0]))
			if slices.Contains(args, "--format=gnu") { // whole seconds only
				want, got = noFractions(want), noFractions(got)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("layer differs from its source (-source +layer):\n%s", diff)
			}
		})
	}
}

func noFractions(lines []string) []string {
	fraction := regexp.MustCompile(`\.\d{9}`)
	var out []string
	for _, line := range lines {
		out = append(out, fraction.ReplaceAllString(line, ""))
	}
	return out
}

func FuzzBuildLayer(f *testing.F) {
	for _, c := range conformanceCases {
		f.Add(disktest.Tar(f, c.layers[len(c.layers)-1]...))
	}
	lower, _ := build(f, disktest.Tar(f, dir("d"), file("d/a", "1"), symlink("lib", "usr/lib"), dir("usr"), dir("usr/lib"), file("a", "2")))
	out := filepath.Join(memoryDir(f), fmt.Sprintf("layer-%d", os.Getpid()))
	lim := disk.Limits{TarBytes: 1 << 20, Entries: 1000, DataBytes: 16 << 20, MetaBytes: 1 << 20}
	f.Fuzz(func(t *testing.T, archive []byte) {
		archive = tarfuzz.Fix(archive)
		tree, stats, err := disk.BuildLayer(context.Background(), bytes.NewReader(archive), int64(len(archive)), lower, out, lim)
		if err != nil {
			return
		}
		defer os.Remove(out)
		if stats.DataBytes > lim.DataBytes || stats.ImageBytes%erofs.BlockSize != 0 {
			t.Errorf("%+v", stats)
		}
		// What was written can be read, as a lower layer and otherwise.
		if err := readAll(out); err != nil {
			t.Errorf("layer cannot be read: %v", err)
		}
		empty := disktest.Tar(t)
		over := out + ".over"
		if _, _, err := disk.BuildLayer(context.Background(), bytes.NewReader(empty), int64(len(empty)), tree, over, lim); err != nil {
			t.Errorf("layer above: %v", err)
		}
		os.Remove(over)
	})
}

// memoryDir returns a temporary directory, if possible where a sync is free.
func memoryDir(f *testing.F) string {
	dir, err := os.MkdirTemp("/dev/shm", "fuzz")
	if err != nil {
		return f.TempDir()
	}
	f.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// readAll reads every byte of a layer file with our own reader.
func readAll(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := erofs.NewReader(f)
	if err != nil {
		return err
	}
	root, err := r.Root()
	if err != nil {
		return err
	}
	return readDir(r, root)
}

func readDir(r *erofs.Reader, dir *erofs.Inode) error {
	entries, err := r.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		n, err := r.Lookup(dir, e.Name)
		if err != nil {
			return fmt.Errorf("%q: %w", e.Name, err)
		}
		switch n.Type() {
		case erofs.TypeDir:
			err = readDir(r, n)
		case erofs.TypeSymlink:
			_, err = r.Readlink(n)
		case erofs.TypeRegular:
			_, err = io.Copy(io.Discard, r.Open(n))
		}
		if err != nil {
			return fmt.Errorf("%q: %w", e.Name, err)
		}
	}
	return nil
}
