package qemu

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
)

// TestErrorCode: a full disk has its own code, whoever noticed it; a code that an
// error has already stays.
func TestErrorCode(t *testing.T) {
	conflict := skerry.Errorf(skerry.CodeConflict, "another copy: %w", unix.ENOSPC)
	for _, c := range []struct {
		err  error
		want skerry.Code
	}{
		{&os.PathError{Op: "write", Path: "ram", Err: unix.ENOSPC}, skerry.CodeExhausted},
		{unix.EDQUOT, skerry.CodeExhausted},
		{jobError("No space left on device"), skerry.CodeExhausted}, // as QEMU writes it
		{jobError("Input/output error"), skerry.CodeUnavailable},
		{unix.EIO, skerry.CodeUnavailable},
		{fmt.Errorf("begin: %w", conflict), skerry.CodeConflict},
	} {
		err := asError("copy scratch disk", c.err)
		if got := skerry.CodeOf(err); got != c.want || errors.Unwrap(err) == nil {
			t.Errorf("code of %v = %q, want %q", err, got, c.want)
		}
	}
}
