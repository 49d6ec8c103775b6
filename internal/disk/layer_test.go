//go:build linux

package disk_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/disk/disktest"
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

func TestSimple(t *testing.T) {
	tree, stats := build(t, disktest.Tar(t,
		entry{Header: header{Name: "./"}},
		entry{Header: header{Name: "etc/"}},
		entry{Header: header{Name: "etc/passwd", Uid: 3000000000, Gid: 100000, PAXRecords: map[string]string{"SCHILY.xattr.user.x": "y"}}, Data: "root:x:0:0::/:/bin/sh\n"},
		entry{Header: header{Name: "big"}, Data: strings.Repeat("x", 10000)},
		entry{Header: header{Name: "holes"}, Data: "a" + strings.Repeat("\x00", 300000) + "b"},
		entry{Header: header{Name: "lib", Typeflag: tar.TypeSymlink, Linkname: "usr/lib"}},
		entry{Header: header{Name: "lib/x"}, Data: "below a link"},
	))
	t.Logf("%+v", stats)
	dir := disktest.MountLayer(t, tree.Layers[0])
	lines, err := disktest.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(strings.Join(lines, "\n"))
	b, err := os.ReadFile(dir + "/holes")
	if err != nil || string(b) != "a"+strings.Repeat("\x00", 300000)+"b" {
		t.Error("content of holes differs", err)
	}
}
