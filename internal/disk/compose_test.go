//go:build linux

package disk_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/disk/disktest"
)

// vmdkDescriptor names extents as one disk. A blank line before the first extent
// would make QEMU count it twice.
func vmdkDescriptor(extents []disk.Extent) string {
	var b strings.Builder
	b.WriteString("# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"twoGbMaxExtentFlat\"\n")
	for _, e := range extents {
		fmt.Fprintf(&b, "RW %d FLAT \"%s\" 0\n", e.Sectors, e.Path)
	}
	b.WriteString("ddb.virtualHWVersion = \"4\"\nddb.geometry.cylinders = \"1\"\nddb.geometry.heads = \"16\"\nddb.geometry.sectors = \"63\"\nddb.adapterType = \"ide\"\n")
	return b.String()
}

// layerFiles makes n layer files of random-looking, different content.
func layerFiles(t *testing.T, n int) []string {
	t.Helper()
	dir := t.TempDir()
	var paths []string
	for i := range n {
		path := filepath.Join(dir, fmt.Sprintf("sha256-%064x.erofs", 0xabc000+i))
		if err := os.WriteFile(path, bytes.Repeat([]byte{byte(i), byte(i >> 8), 7, 9}, (i%5+1)*1024), 0o444); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// flatten returns the disk that extents describe.
func flatten(t *testing.T, extents []disk.Extent) []byte {
	t.Helper()
	var all []byte
	for _, e := range extents {
		b, err := os.ReadFile(e.Path)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(b)) != e.Sectors*512 {
			t.Fatalf("%s has %d bytes, not %d sectors", e.Path, len(b), e.Sectors)
		}
		all = append(all, b...)
	}
	return all
}

type gptPart struct {
	first, last uint64
	name        string
}

// readGPT checks one header and its entry array and returns the partitions.
func readGPT(t *testing.T, image []byte, lba uint64) []gptPart {
	t.Helper()
	le := binary.LittleEndian
	h := bytes.Clone(image[lba*512:][:92])
	sum := le.Uint32(h[16:])
	le.PutUint32(h[16:], 0)
	if string(h[:8]) != "EFI PART" || crc32.ChecksumIEEE(h) != sum || le.Uint64(h[24:]) != lba {
		t.Fatalf("bad header at sector %d", lba)
	}
	entries := image[le.Uint64(h[72:])*512:][:le.Uint32(h[80:])*le.Uint32(h[84:])]
	if crc32.ChecksumIEEE(entries) != le.Uint32(h[88:]) {
		t.Fatalf("bad entries of the header at sector %d", lba)
	}
	var parts []gptPart
	for e := entries; len(e) >= 128 && le.Uint64(e[32:]) != 0; e = e[128:] {
		p := gptPart{first: le.Uint64(e[32:]), last: le.Uint64(e[40:])}
		var name []uint16
		for i := 56; i < 128 && le.Uint16(e[i:]) != 0; i += 2 {
			name = append(name, le.Uint16(e[i:]))
		}
		p.name = string(utf16.Decode(name))
		if p.first < le.Uint64(h[40:]) || p.last > le.Uint64(h[48:]) {
			t.Errorf("partition %+v is not in the usable part", p)
		}
		parts = append(parts, p)
	}
	return parts
}

func TestComposeImage(t *testing.T) {
	for _, n := range []int{1, 4, 254} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			files := layerFiles(t, n+1)
			dir := t.TempDir()
			c, err := disk.ComposeImage(dir, files[:n], files[n])
			if err != nil {
				t.Fatal(err)
			}
			image := flatten(t, c.Extents)
			last := uint64(len(image)/512 - 1)
			primary, backup := readGPT(t, image, 1), readGPT(t, image, last)
			if diff := cmp.Diff(primary, backup, cmp.AllowUnexported(gptPart{})); diff != "" {
				t.Errorf("backup differs: %s", diff)
			}
			if len(primary) != n+1 || len(c.Layers) != n || c.Layers[0] != 1 || c.Layers[n-1] != n || c.Platform != n+1 {
				t.Fatalf("%d partitions, layers %v, platform %d", len(primary), c.Layers, c.Platform)
			}
			for i, p := range primary {
				want, err := os.ReadFile(files[i])
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(image[p.first*512:(p.last+1)*512], want) || p.first%8 != 0 {
					t.Errorf("partition %d is not %s", i+1, files[i])
				}
				if digest := strings.TrimPrefix(filepath.Base(files[i]), "sha256-")[:36]; p.name != digest {
					t.Errorf("partition %d has name %q, want %q", i+1, p.name, digest)
				}
			}
			again, err := disk.ComposeImage(dir, files[:n], files[n])
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(image, flatten(t, again.Extents)) {
				t.Error("the same files gave another disk")
			}
			compareQEMU(t, c.Extents, image)
			comparePartx(t, image, primary)
		})
	}
}

// compareQEMU lets QEMU read the disk through a descriptor.
func compareQEMU(t *testing.T, extents []disk.Extent, want []byte) {
	t.Helper()
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Log("qemu-img is not installed: not compared")
		return
	}
	dir := t.TempDir()
	vmdk, raw := filepath.Join(dir, "c.vmdk"), filepath.Join(dir, "raw")
	if err := os.WriteFile(vmdk, []byte(vmdkDescriptor(extents)), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "qemu-img", "convert", "-f", "vmdk", "-O", "raw", vmdk, raw)
	got, err := os.ReadFile(raw)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("QEMU reads %d other bytes, want %d", len(got), len(want))
	}
}

// comparePartx lets libblkid, which udev uses, find the partitions.
func comparePartx(t *testing.T, image []byte, want []gptPart) {
	t.Helper()
	if _, err := exec.LookPath("partx"); err != nil {
		t.Log("partx is not installed: not compared")
		return
	}
	path := filepath.Join(t.TempDir(), "raw")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("partx", "--show", "--noheadings", "--output", "START,END,NAME", path).Output()
	if err != nil {
		t.Fatalf("partx: %v", err)
	}
	var got []gptPart
	for line := range strings.Lines(string(out)) {
		var p gptPart
		if _, err := fmt.Sscan(line, &p.first, &p.last, &p.name); err != nil {
			t.Fatalf("partx says %q: %v", line, err)
		}
		got = append(got, p)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(gptPart{})); diff != "" {
		t.Errorf("partx sees other partitions (-want +got):\n%s", diff)
	}
}

func TestComposeRefusals(t *testing.T) {
	files := layerFiles(t, 256)
	odd := filepath.Join(t.TempDir(), "odd")
	if err := os.WriteFile(odd, make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		layers []string
		code   skerry.Code
	}{
		{"none", nil, skerry.CodeInvalid},
		{"255", files[:255], skerry.CodeTooLarge},
		{"odd length", []string{odd}, skerry.CodeInternal},
		{"missing", []string{odd + "?"}, skerry.CodeInternal},
	} {
		_, err := disk.ComposeImage(t.TempDir(), c.layers, files[255])
		if skerry.CodeOf(err) != c.code {
			t.Errorf("%s: got %v, want code %s", c.name, err, c.code)
		}
	}
}

// TestComposedLayersMount mounts layers through the partitions of the disk.
func TestComposedLayersMount(t *testing.T) {
	tree, _ := build(t, disktest.Tar(t, file("a", "1")), disktest.Tar(t, file("b", "2")))
	c, err := disk.ComposeImage(t.TempDir(), tree.Layers, tree.Layers[0])
	if err != nil {
		t.Fatal(err)
	}
	image := flatten(t, c.Extents)
	parts := readGPT(t, image, 1)
	path := filepath.Join(t.TempDir(), "part")
	if err := os.WriteFile(path, image[parts[1].first*512:(parts[1].last+1)*512], 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(disktest.MountLayer(t, path), "b"))
	if err != nil || string(got) != "2" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(disktest.MountLayer(t, path), "a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("second layer has the first one's file: %v", err)
	}
}
