package kernel

import (
	"bytes"
	"io"
	"testing"

	"github.com/ulikunitz/xz"
)

func xzText(t testing.TB, text string) string {
	t.Helper()
	var out bytes.Buffer
	w, err := xz.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
