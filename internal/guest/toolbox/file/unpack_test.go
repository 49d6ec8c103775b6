package file

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skerry.dev/skerry/internal/guest/toolbox/account"
	"skerry.dev/skerry/internal/tarfuzz"
)

// Whatever an archive holds, nothing happens outside the target.
func FuzzUnpack(f *testing.F) {
	var seed bytes.Buffer
	w := tar.NewWriter(&seed)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755},
		{Name: "d/f", Mode: 0o644, Size: 3},
		{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../outside"},
		{Typeflag: tar.TypeLink, Name: "h", Linkname: "d/f"},
		{Name: "l/x", Mode: 0o644},
		{Name: "../outside/x", Mode: 0o644},
	} {
		w.WriteHeader(&h)
		w.Write([]byte("abc")[:h.Size])
	}
	w.Close()
	f.Add(seed.Bytes())
	f.Add(seed.Bytes()[:2000])
	f.Fuzz(func(t *testing.T, data []byte) {
		top := t.TempDir()
		files := &Files{User: account.User{Name: "me", UID: uint32(os.Getuid()), Home: top}}
		_ = files.Unpack(filepath.Join(top, "target"), bytes.NewReader(tarfuzz.Fix(data))) // must stay inside, whatever it says
		entries, err := os.ReadDir(top)
		if err != nil || len(entries) > 1 {
			t.Fatalf("outside the target: %v, %v", entries, err)
		}
		filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if d != nil && d.IsDir() {
				os.Chmod(path, 0o755)
			}
			if strings.Contains(path, "/"+tempPrefix) {
				t.Errorf("left behind: %s", path)
			}
			return nil
		})
	})
}

func FuzzParseMode(f *testing.F) {
	for _, s := range []string{"", "644", "0o755", "7777", "10000", "8", "-1", "0o"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		mode, err := ParseMode(s, 0o644)
		if err == nil && modeOf(bitsOf(mode)) != mode {
			t.Errorf("%q: %v", s, mode)
		}
	})
}
