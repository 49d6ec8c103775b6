//go:build linux

package disk_test

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"skerry.dev/skerry/internal/disk/disktest"
)

// noMode is a mode that is 0000 in the end; 0 itself stands for a usual mode.
const noMode = 0o10000

func file(name, data string) entry { return entry{Header: header{Name: name}, Data: data} }
func dir(name string) entry        { return entry{Header: header{Name: name + "/"}} }
func mode(e entry, m int64) entry  { e.Mode = m; return e }
func symlink(name, target string) entry {
	return entry{Header: header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}}
}
func hardlink(name, target string) entry {
	return entry{Header: header{Name: name, Typeflag: tar.TypeLink, Linkname: target}}
}
func xattr(e entry, name, value string) entry {
	if e.PAXRecords == nil {
		e.PAXRecords = map[string]string{}
	}
	e.PAXRecords["SCHILY.xattr."+name] = value
	return e
}
func at(e entry, t time.Time) entry { e.ModTime = t; return e }

type layer []entry

// capability is cap_net_raw+ep as setcap(8) stores it.
const capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

var long = strings.Repeat("n", 255)

// conformanceCases are layers, bottom first, and what the merged view holds
// below the root: "name type". What else is to be said of the files umoci's
// unpacked tree says, unless umoci is set: the reason why it is not to be had.
var conformanceCases = []struct {
	name   string
	layers []layer
	want   []string
	umoci  string
}{
	{"delete file", []layer{{dir("d"), file("d/a", "1"), file("d/b", "2")}, {file("d/.wh.a", "")}},
		[]string{"d dir", "d/b file"}, ""},
	{"delete directory", []layer{{dir("d"), file("d/a", "1")}, {file(".wh.d", "")}}, nil, ""},
	{"delete and add in a later layer", []layer{{dir("d"), file("d/a", "1")}, {file(".wh.d", "")}, {dir("d"), file("d/b", "2")}},
		[]string{"d dir", "d/b file"}, ""},
	{"whiteout before the same name", []layer{{file("a", "old"), dir("d"), file("d/x", "1")},
		{file(".wh.a", ""), file("a", "new"), file(".wh.d", ""), dir("d"), file("d/y", "2")}},
		[]string{"a file", "d dir", "d/y file"}, ""},
	{"whiteout after the same name", []layer{{file("a", "old"), dir("d"), file("d/x", "1")},
		{file("a", "new"), file(".wh.a", ""), dir("d"), file("d/y", "2"), file(".wh.d", "")}},
		[]string{"a file", "d dir", "d/y file"}, "it leaves the time of the whiteout on the directory"},
	{"whiteout as hard link", []layer{{file("a", "1"), file("b", "2"), file("c", "3")}, {file(".wh.a", ""), hardlink(".wh.b", ".wh.a")}},
		[]string{"c file"}, ""},
	{"whiteout of nothing", []layer{{dir("d")}, {file("d/.wh.x", ""), dir("e"), file("e/.wh.y", "")}},
		[]string{"d dir", "e dir"}, ""},
	{"whiteouts where no directory is", []layer{{file("f", "1"), dir("d"), file("d/a", "2")}, {file("x/y/.wh.b", ""), file("f/.wh.b", ""), file("d", "now a file"), file("d/.wh.a", ""), file("d/.wh..wh..opq", "")}},
		[]string{"d file", "f file"}, ""},
	{"opaque", []layer{{dir("d"), file("d/a", "1"), dir("d/sub"), file("d/sub/x", "2")}, {dir("d"), file("d/.wh..wh..opq", ""), file("d/b", "3")}},
		[]string{"d dir", "d/b file"}, ""},
	{"opaque before its directory", []layer{{dir("d"), file("d/a", "1")}, {file("d/.wh..wh..opq", ""), file("d/b", "3"), mode(dir("d"), 0o700)}},
		[]string{"d dir", "d/b file"}, ""},
	{"opaque with a whiteout inside", []layer{{dir("d"), file("d/a", "1")}, {file("d/.wh.a", ""), file("d/.wh..wh..opq", "")}},
		[]string{"d dir"}, ""},
	{"opaque below opaque", []layer{{dir("d"), dir("d/e"), file("d/e/a", "1")}, {dir("d"), dir("d/e"), file("d/e/.wh..wh..opq", ""), file("d/.wh..wh..opq", ""), file("d/e/b", "")}},
		[]string{"d dir", "d/e dir", "d/e/b file"}, ""},
	{"whiteout in a new directory of an opaque one", []layer{{dir("d"), dir("d/e"), file("d/e/a", "1")}, {file("d/e/.wh.a", ""), file("d/.wh..wh..opq", ""), dir("d/e")}},
		[]string{"d dir", "d/e dir"}, ""},
	{"aufs files", []layer{{file(".wh..wh.plnk/1", ""), file(".wh..wh.aufs", ""), file("a", "1")}}, []string{"a file"}, "it unpacks the first as a directory"},
	{"link to file", []layer{{dir("etc"), symlink("etc/mtab", "/proc/mounts")}, {file("etc/mtab", "file now")}},
		[]string{"etc dir", "etc/mtab file"}, ""},
	{"directory to link", []layer{{dir("lib"), file("lib/a", "1"), dir("usr")}, {symlink("lib", "usr")}},
		[]string{"lib link", "usr dir"}, ""},
	{"file to directory", []layer{{file("x", "1")}, {dir("x"), file("x/y", "2")}}, []string{"x dir", "x/y file"}, ""},
	{"directory to file", []layer{{dir("x"), file("x/y", "2")}, {file("x", "1")}}, []string{"x file"}, ""},
	{"directory, file, directory over three layers", []layer{{dir("x"), file("x/old", "1")}, {file("x", "f")}, {dir("x"), file("x/new", "2")}},
		[]string{"x dir", "x/new file"}, ""},
	{"directory, file, directory in one layer", []layer{{dir("x"), file("x/old", "1")}, {file("x", "f"), dir("x"), file("x/new", "2")}},
		[]string{"x dir", "x/new file"}, ""},
	{"same name twice", []layer{{file("a", "first"), file("a", "second"), dir("d"), file("d/x", "1"), file("d", "now a file")}},
		[]string{"a file", "d file"}, ""},
	{"directory twice keeps its content", []layer{{mode(dir("d"), 0o700), file("d/x", "1"), mode(dir("d"), 0o755)}},
		[]string{"d dir", "d/x file"}, ""},
	{"hard links", []layer{{file("a", "1"), hardlink("b", "a"), symlink("s", "a"), hardlink("t", "s"), file("a", "2")}},
		[]string{"a file", "b file", "s link", "t link"}, ""},
	{"hard link to a lower layer", []layer{{mode(dir("d"), 0o750), xattr(mode(file("d/a", "content"), 0o4711), "security.capability", capability), symlink("l", "d/a")},
		{hardlink("b", "d/a"), hardlink("c", "d/a"), hardlink("m", "l")}},
		[]string{"b file", "c file", "d dir", "d/a file", "l link", "m link"}, ""},
	{"modes", []layer{{mode(file("suid", "1"), 0o4755), mode(file("sgid", "1"), 0o2755), mode(dir("tmp"), 0o1777), mode(file("none", "x"), noMode), mode(dir("closed"), noMode)}},
		[]string{"closed dir", "none file", "sgid file", "suid file", "tmp dir"}, ""},
	{"devices", []layer{{
		entry{Header: header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666}},
		entry{Header: header{Name: "blk", Typeflag: tar.TypeBlock, Devmajor: 300, Devminor: 70000, Mode: 0o660}},
		entry{Header: header{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o600}}}},
		[]string{"blk block", "null char", "pipe fifo"}, ""},
	{"extended attributes", []layer{{xattr(file("ping", "elf"), "security.capability", capability), xattr(xattr(file("u", "x"), "user.big", strings.Repeat("v", 2000)), "user.a", "1"),
		xattr(dir("d"), "user.dir", "yes"), xattr(file("t", ""), "trusted.x", "\x00\xff")}},
		[]string{"d dir", "ping file", "t file", "u file"}, ""},
	{"long attribute", []layer{{xattr(file("a", strings.Repeat("data", 1200)), "user.long", strings.Repeat("L", 60000)), file("b", "after")}},
		[]string{"a file", "b file"}, "ext4 has no room for it"},
	{"overlay attributes are stripped", []layer{{file("secret", "1"), xattr(xattr(dir("d"), "trusted.overlay.redirect", "/secret"), "user.overlay.opaque", "y"), xattr(dir("e"), "trusted.overlay.opaque", "y")}},
		[]string{"d dir", "e dir", "secret file"}, "it keeps those of user.overlay"},
	{"names", []layer{{file(long, "255 bytes"), file("bad\xff\xfeutf8", "1"), file("new\nline", "2"), file(`back\slash`, "3"), file("!before dots", "4"),
		dir(strings.Repeat("p", 200)), dir(strings.Repeat("p", 200) + "/" + strings.Repeat("q", 200)), file(strings.Repeat("p", 200)+"/"+strings.Repeat("q", 200)+"/"+long, "deep")}},
		[]string{"!before dots file", `back\slash file`, "bad\xff\xfeutf8 file", "new\nline file", long + " file", strings.Repeat("p", 200) + " dir",
			strings.Repeat("p", 200) + "/" + strings.Repeat("q", 200) + " dir", strings.Repeat("p", 200) + "/" + strings.Repeat("q", 200) + "/" + long + " file"}, ""},
	{"owners", []layer{{entry{Header: header{Name: "o", Uid: 3000000000, Gid: 100000}}, entry{Header: header{Name: "p/", Uid: 65534, Gid: 4294967294}}}},
		[]string{"o file", "p dir"}, ""},
	{"times", []layer{{at(file("ns", ""), time.Unix(1700000000, 123456789)), at(file("1965", ""), time.Date(1965, 3, 4, 5, 6, 7, 5e8, time.UTC)),
		at(file("2100", ""), time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC))}},
		[]string{"1965 file", "2100 file", "ns file"}, ""},
	{"file below a linked parent", []layer{{dir("usr"), mode(dir("usr/lib"), 0o711), symlink("lib", "usr/lib"), symlink("abs", "/usr/lib")}, {file("lib/x", "1"), file("abs/y", "2")}},
		[]string{"abs link", "lib link", "usr dir", "usr/lib dir", "usr/lib/x file", "usr/lib/y file"}, ""},
	{"linked parent in the same layer", []layer{{dir("usr"), symlink("lib", "usr"), file("lib/x", "1"), symlink("up", "../../usr/./"), file("up/y", "2")}},
		[]string{"lib link", "up link", "usr dir", "usr/x file", "usr/y file"}, ""},
	{"whiteout below a linked parent", []layer{{dir("usr"), file("usr/a", "1"), symlink("lib", "usr")}, {file("lib/.wh.a", "")}},
		[]string{"lib link", "usr dir"}, ""},
	{"omitted parents keep lower attributes", []layer{{xattr(mode(dir("tmp"), 0o1777), "user.k", "v"), dir("tmp/a"), entry{Header: header{Name: "tmp/a/b/", Uid: 7, Gid: 8, Mode: 0o2750}}},
		{file("tmp/a/b/c", "1")}}, []string{"tmp dir", "tmp/a dir", "tmp/a/b dir", "tmp/a/b/c file"}, ""},
	{"omitted parents that are nowhere", []layer{{file("a/b/c", "1")}}, []string{"a dir", "a/b dir", "a/b/c file"}, ""},
	{"root entry", []layer{{mode(at(dir("."), time.Unix(1e9, 5)), 0o711), file("./a", "1")}, {file("b", "")}}, []string{"a file", "b file"}, ""},
	{"root entry in a later layer", []layer{{mode(dir("."), 0o711)}, {mode(dir("."), 0o750), file("./a", "1")}}, []string{"a file"}, ""},
	{"holes", []layer{{file("sparse", "head"+strings.Repeat("\x00", 1<<20)+"middle"+strings.Repeat("\x00", 3<<20)), file("zeros", strings.Repeat("\x00", 200000)), file("short", strings.Repeat("\x00", 5000)+"x")}},
		[]string{"short file", "sparse file", "zeros file"}, ""},
	{"sizes around blocks", []layer{sizes()}, []string{"s0 file", "s1 file", "s12288 file", "s2048 file", "s2049 file", "s4095 file", "s4096 file", "s4097 file", "s6144 file", "s6145 file"}, ""},
}

func sizes() layer {
	var l layer
	for _, n := range []int{0, 1, 2048, 2049, 4095, 4096, 4097, 6144, 6145, 12288} {
		l = append(l, file(fmt.Sprintf("s%d", n), strings.Repeat("0123456789abcde\n", n/16+1)[:n]))
	}
	return l
}

func TestConformance(t *testing.T) {
	for _, c := range conformanceCases {
		t.Run(c.name, func(t *testing.T) {
			var tars [][]byte
			for _, l := range c.layers {
				tars = append(tars, disktest.Tar(t, l...))
			}
			tree, _ := build(t, tars...)
			got := list(t, disktest.MountOverlay(t, tree.Layers...))
			want := slices.Sorted(slices.Values(append([]string{". dir"}, c.want...)))
			if diff := cmp.Diff(want, namesAndTypes(t, got)); diff != "" {
				t.Errorf("merged view (-want +got):\n%s", diff)
			}
			if c.umoci != "" {
				t.Logf("not compared with umoci: %s", c.umoci)
				return
			}
			compareViews(t, list(t, umociUnpack(t, tars)), got)
		})
	}
}

func list(t testing.TB, root string) []string {
	t.Helper()
	lines, err := disktest.List(root)
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

var lineStart = regexp.MustCompile(`^("(?:[^"\\]|\\.)*") (\w+) `)

func namesAndTypes(t testing.TB, lines []string) []string {
	var out []string
	for _, line := range lines {
		m := lineStart.FindStringSubmatch(line)
		var name string
		if _, err := fmt.Sscanf(m[1], "%q", &name); err != nil {
			t.Fatal(err)
		}
		out = append(out, name+" "+m[2])
	}
	slices.Sort(out)
	return out
}

// inventedTime is the time of directories that no layer describes: ours are of
// 1970, umoci's of now.
var inventedTime = regexp.MustCompile(`^("(?:[^"\\]|\\.)*" dir \d+ \d+:\d+ )(0\.0{9})`)

// compareViews compares the unpacked tree of another tool with a merged view.
func compareViews(t testing.TB, want, got []string) {
	t.Helper()
	invented := map[string]bool{}
	anyTime := regexp.MustCompile(`^("(?:[^"\\]|\\.)*" dir \d+ \d+:\d+ )(-?\d+\.\d{9})`)
	blank := func(lines []string) []string {
		out := slices.Clone(lines)
		for i, line := range out {
			if m := anyTime.FindStringSubmatch(line); m != nil && invented[lineStart.FindStringSubmatch(line)[1]] {
				out[i] = m[1] + "any time" + line[len(m[0]):]
			}
		}
		return out
	}
	for _, line := range got {
		if inventedTime.MatchString(line) {
			invented[lineStart.FindStringSubmatch(line)[1]] = true
		}
	}
	if diff := cmp.Diff(blank(want), blank(got)); diff != "" {
		t.Errorf("merged view differs from the unpacked one (-unpacked +merged):\n%s", diff)
	}
}

// umociUnpack makes an image of layers and unpacks it, both with umoci.
func umociUnpack(t testing.TB, tars [][]byte) string {
	t.Helper()
	if _, err := exec.LookPath("umoci"); err != nil {
		t.Skip("umoci is not installed")
	}
	base := t.TempDir()
	oci := filepath.Join(base, "oci")
	run(t, "umoci", "init", "--layout", oci)
	run(t, "umoci", "new", "--image", oci+":x")
	for i, b := range tars {
		path := filepath.Join(base, fmt.Sprint(i))
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, "umoci", "raw", "add-layer", "--image", oci+":x", path)
	}
	rootfs := filepath.Join(base, "rootfs")
	run(t, "umoci", "raw", "unpack", "--image", oci+":x", rootfs)
	return rootfs
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// TestImageOfUmoci converts an image whose layers umoci made of real trees: a
// part of this system, then changes of all kinds.
func TestImageOfUmoci(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to unpack and mount")
	}
	if _, err := exec.LookPath("umoci"); err != nil {
		t.Skip("umoci is not installed")
	}
	base := t.TempDir()
	oci, bundle := filepath.Join(base, "oci"), filepath.Join(base, "bundle")
	root := filepath.Join(bundle, "rootfs")
	run(t, "umoci", "init", "--layout", oci)
	run(t, "umoci", "new", "--image", oci+":x")
	run(t, "umoci", "unpack", "--image", oci+":x", bundle)
	for _, script := range []string{
		"mkdir -p usr/share usr/lib && cp -a /etc etc && cp -a /usr/lib/udev /usr/lib/systemd usr/lib/ && cp -a /usr/share/perl5 usr/share/ && ln -s usr/lib lib && mkdir -m 1777 tmp",
		"cp /bin/cat usr/cat && chmod 4755 usr/cat && cp /bin/ls usr/ls && setcap cap_net_raw+ep usr/ls && ln usr/cat usr/cat2 && mknod null c 1 3 && for i in $(seq 3000); do echo $i > tmp/$i; done",
		"rm -r usr/share/perl5 etc/apt && mkdir etc/apt && echo new > etc/apt/new && rm etc/passwd && ln -s shadow etc/passwd && rm -r etc/init.d && echo file > etc/init.d && rm etc/issue && mkdir etc/issue && rm tmp/1* && touch -d 1965-01-01 etc/hosts && truncate -s 50M sparse",
		"mkdir -p usr/share/perl5/again && echo 1 > usr/share/perl5/again/file && chmod 700 etc && chown 12:34 tmp/2 && mv tmp/3 tmp/three && ln usr/cat usr/cat3",
	} {
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		run(t, "umoci", "repack", "--refresh-bundle", "--image", oci+":x", bundle)
	}
	var tars [][]byte
	for _, path := range layerBlobs(t, oci) {
		out, err := exec.Command("gzip", "-dc", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		tars = append(tars, out)
	}
	tree, stats := build(t, tars...)
	t.Logf("%+v", stats)
	unpacked := filepath.Join(base, "unpacked")
	run(t, "umoci", "raw", "unpack", "--image", oci+":x", unpacked)
	got := list(t, disktest.MountOverlay(t, tree.Layers...))
	t.Logf("%d files", len(got))
	compareViews(t, list(t, unpacked), got)
}

// layerBlobs returns the paths of the layers of an OCI layout's only image.
func layerBlobs(t testing.TB, oci string) []string {
	t.Helper()
	var index struct{ Manifests []struct{ Digest string } }
	readJSON(t, filepath.Join(oci, "index.json"), &index)
	blob := func(digest string) string {
		return filepath.Join(oci, "blobs", strings.Replace(digest, ":", "/", 1))
	}
	var manifest struct{ Layers []struct{ Digest string } }
	readJSON(t, blob(index.Manifests[0].Digest), &manifest)
	var paths []string
	for _, l := range manifest.Layers {
		paths = append(paths, blob(l.Digest))
	}
	return paths
}

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}
