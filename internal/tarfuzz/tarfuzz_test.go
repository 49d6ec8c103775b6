package tarfuzz_test

import (
	"archive/tar"
	"bytes"
	"testing"

	"skerry.dev/skerry/internal/tarfuzz"
)

func TestFix(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"first", "second"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: 600, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(bytes.Repeat([]byte("x"), 600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := tarfuzz.Fix(b.Bytes()); !bytes.Equal(got, b.Bytes()) {
		t.Error("a good archive was changed")
	}
	changed := b.Bytes()
	changed[0], changed[512+1024] = 'F', 'S'
	r := tar.NewReader(bytes.NewReader(tarfuzz.Fix(changed)))
	for _, want := range []string{"First", "Second"} {
		h, err := r.Next()
		if err != nil || h.Name != want {
			t.Fatalf("entry %+v, %v, want %s", h, err, want)
		}
	}
}
