//go:build linux

package disktest

import (
	"archive/tar"
	"bytes"
	"testing"
	"time"
)

// Entry is one entry of a hand-made layer. Zero fields of the header get usual
// values: type from the name's trailing slash, mode 0644 or 0755, a time in
// 2020.
type Entry struct {
	tar.Header
	Data string
}

// Tar returns a layer of entries.
func Tar(t testing.TB, entries ...Entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		hdr := e.Header
		if hdr.Typeflag == 0 {
			hdr.Typeflag = tar.TypeReg
			if hdr.Name[len(hdr.Name)-1] == '/' {
				hdr.Typeflag = tar.TypeDir
			}
		}
		if hdr.Mode == 0 {
			hdr.Mode = 0o644
			if hdr.Typeflag == tar.TypeDir {
				hdr.Mode = 0o755
			}
		}
		if hdr.ModTime.IsZero() {
			hdr.ModTime = time.Unix(1577836800, 0)
		}
		hdr.Size = int64(len(e.Data))
		hdr.Format = tar.FormatPAX
		if err := w.WriteHeader(&hdr); err != nil {
			t.Fatalf("entry %q: %v", hdr.Name, err)
		}
		if _, err := w.Write([]byte(e.Data)); err != nil {
			t.Fatalf("entry %q: %v", hdr.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
