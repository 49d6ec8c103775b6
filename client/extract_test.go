package client_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skerry.dev/skerry/client"
	"skerry.dev/skerry/internal/tarfuzz"
)

type entry struct {
	name, link, body string
	kind             byte
	mode             int64
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		if e.mode == 0 {
			e.mode = 0o644
		}
		hdr := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: e.mode, Size: int64(len(e.body))}
		if err := w.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// target is a directory to unpack into, beside a file that must stay as it is.
func target(t testing.TB) (dir, outside string) {
	t.Helper()
	parent := t.TempDir()
	dir, outside = filepath.Join(parent, "in"), filepath.Join(parent, "outside")
	for _, err := range []error{os.Mkdir(dir, 0o755), os.Mkdir(outside, 0o755), os.WriteFile(filepath.Join(outside, "x"), []byte("mine"), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir, outside
}

// wantUntouched fails when anything but dir changed, or a link in dir leads out.
func wantUntouched(t testing.TB, dir, outside string) {
	t.Helper()
	if b, err := os.ReadFile(filepath.Join(outside, "x")); err != nil || string(b) != "mine" {
		t.Fatalf("the file outside is %q, %v", b, err)
	}
	for parent, want := range map[string]int{outside: 1, filepath.Dir(dir): 2} {
		if entries, err := os.ReadDir(parent); err != nil || len(entries) != want {
			t.Fatalf("%s holds %v, %v", parent, entries, err)
		}
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink == 0 {
			return nil // the walk may meet a directory of mode 0
		}
		if to, err := filepath.EvalSymlinks(name); err == nil && to != real && !strings.HasPrefix(to, real+"/") {
			t.Errorf("link %s leads to %s", name, to)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestExtractRefuses(t *testing.T) {
	dir, outside := target(t)
	tests := []struct {
		name    string
		refused string
		entries []entry
	}{
		{"absolute link", "l", []entry{{name: "l", link: outside, kind: tar.TypeSymlink}, {name: "l/x", body: "evil"}}},
		{"relative link out", "l", []entry{{name: "l", link: "../outside", kind: tar.TypeSymlink}, {name: "l/x", body: "evil"}}},
		{"link through a link", "e", []entry{{name: "d", link: ".", kind: tar.TypeSymlink}, {name: "e", link: "d/d/../../outside", kind: tar.TypeSymlink}}},
		{"name through a link", "s/s/l", []entry{{name: "s", link: ".", kind: tar.TypeSymlink}, {name: "s/s/l", link: "../../outside", kind: tar.TypeSymlink}}},
		{"dot dot", "../outside/x", []entry{{name: "../outside/x", body: "evil"}}},
		{"inner dot dot", "a/../../outside/x", []entry{{name: "a/../../outside/x", body: "evil"}}},
		{"absolute name", outside + "/x", []entry{{name: outside + "/x", body: "evil"}}},
		{"hard link out", "h", []entry{{name: "h", link: "../outside/x", kind: tar.TypeLink}, {name: "h", body: "evil"}}},
		{"hard link to a link", "h", []entry{{name: "m", link: "x", kind: tar.TypeSymlink}, {name: "h", link: "m", kind: tar.TypeLink}}},
		{"device", "null", []entry{{name: "null", kind: tar.TypeChar}}},
		{"pipe", "p", []entry{{name: "p", kind: tar.TypeFifo}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := client.Extract(dir, bytes.NewReader(archive(t, append(tt.entries, entry{name: "after " + tt.name, body: "good"})...)))
			var refused *client.RefusedError
			if !errors.As(err, &refused) || refused.Entries[0].Name != tt.refused || !strings.Contains(err.Error(), tt.refused) {
				t.Fatalf("got %v, want a refusal of %q", err, tt.refused)
			}
			if b, err := os.ReadFile(filepath.Join(dir, "after "+tt.name)); err != nil || string(b) != "good" {
				t.Errorf("the entry after the refused one: %q, %v", b, err)
			}
			wantUntouched(t, dir, outside)
		})
	}
}

func TestExtractPlantedLinks(t *testing.T) {
	dir, outside := target(t)
	for link, to := range map[string]string{"planted": filepath.Join(outside, "x"), "plantedDir": outside} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	err := client.Extract(dir, bytes.NewReader(archive(t, entry{name: "planted", body: "new"}, entry{name: "plantedDir/x", body: "evil"})))
	var refused *client.RefusedError
	if !errors.As(err, &refused) || refused.Count != 1 {
		t.Errorf("got %v, want one refusal", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "planted")); err != nil || string(b) != "new" {
		t.Errorf("planted = %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(outside, "x")); err != nil || string(b) != "mine" {
		t.Errorf("outside = %q, %v", b, err)
	}
}

func TestPackAndExtract(t *testing.T) {
	src, _ := target(t)
	write := func(name, body string, mode fs.FileMode) {
		t.Helper()
		name = filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(body), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("bin/tool", "#!/bin/sh\n", 0o755)
	write("deep/er/data", strings.Repeat("x", 100_000), 0o640)
	write("empty", "", 0o600)
	if err := os.Symlink("../deep/er/data", filepath.Join(src, "bin/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(src, "readonly"), 0o555); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := client.Pack(src, &b, nil); err != nil {
		t.Fatal(err)
	}
	dst, _ := target(t)
	if err := client.Extract(dst, &b); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{"bin/tool": 0o755, "deep/er/data": 0o640, "empty": 0o600, "readonly": 0o555 | fs.ModeDir} {
		info, err := os.Lstat(filepath.Join(dst, name))
		if err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v, want mode %v", name, info, err, mode)
		}
	}
	if got, err := os.ReadFile(filepath.Join(dst, "bin/link")); err != nil || len(got) != 100_000 {
		t.Errorf("through the link: %d bytes, %v", len(got), err)
	}
}

func TestExtractBrokenStream(t *testing.T) {
	dir, _ := target(t)
	whole := archive(t, entry{name: "f", body: strings.Repeat("x", 5000)})
	if err := client.Extract(dir, bytes.NewReader(whole[:3000])); err == nil {
		t.Error("a cut stream was taken for a whole one")
	}
	if _, err := os.Lstat(filepath.Join(dir, "f")); err == nil {
		t.Error("half a file was left")
	}
}

func FuzzExtract(f *testing.F) {
	f.Add(archive(f, entry{name: "l", link: "/etc", kind: tar.TypeSymlink}, entry{name: "l/x", body: "evil"}))
	f.Add(archive(f, entry{name: "s", link: ".", kind: tar.TypeSymlink}, entry{name: "s/s/l", link: "../../outside", kind: tar.TypeSymlink}))
	f.Add(archive(f, entry{name: "d/", kind: tar.TypeDir, mode: 0o755}, entry{name: "d/h", link: "d/f", kind: tar.TypeLink}, entry{name: "../x"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir, outside := target(t)
		_ = client.Extract(dir, bytes.NewReader(tarfuzz.Fix(data)))
		_ = os.Chmod(dir, 0o755)
		wantUntouched(t, dir, outside)
	})
}
