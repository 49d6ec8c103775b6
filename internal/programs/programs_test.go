package programs

import (
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"
	"testing/fstest"
)

func TestProgram(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte("\x7fELF")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{"bin/skerry-guest-arm64.gz": {Data: packed.Bytes()}}
	got, err := program(files, "skerry-guest-arm64")
	if err != nil || string(got) != "\x7fELF" {
		t.Errorf("program = %q, %v; want ELF", got, err)
	}
	_, err = program(files, "skerry-guest-amd64")
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "make") {
		t.Errorf("program for another architecture: error = %v, want one that says what to type", err)
	}
}
