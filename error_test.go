package skerry_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"

	"skerry.dev/skerry"
)

func TestCodeOf(t *testing.T) {
	conflict := skerry.Errorf(skerry.CodeConflict, "name is taken: %w", io.EOF)
	tests := []struct {
		err  error
		want skerry.Code
	}{
		{nil, ""}, {io.EOF, skerry.CodeInternal}, {conflict, skerry.CodeConflict}, {fmt.Errorf("create: %w", conflict), skerry.CodeConflict},
		{fmt.Errorf("save: %w", &os.PathError{Op: "write", Path: "ram", Err: syscall.ENOSPC}), skerry.CodeExhausted}, {syscall.EDQUOT, skerry.CodeExhausted}, {syscall.EIO, skerry.CodeInternal},
		{errors.Join(io.EOF, conflict), skerry.CodeConflict}, {skerry.Unsupported("ports", "not yet"), skerry.CodeUnsupported},
	}
	for _, tt := range tests {
		if got := skerry.CodeOf(tt.err); got != tt.want {
			t.Errorf("code of %v = %q, want %q", tt.err, got, tt.want)
		}
	}
	if !errors.Is(conflict, io.EOF) || conflict.Error() != "name is taken: EOF" {
		t.Errorf("cause or text lost: %v", conflict)
	}
}

func TestInvalid(t *testing.T) {
	e := skerry.Invalid("resources.memory", "max", "32 GiB", "must be at most %s", "32 GiB")
	if e.Code != skerry.CodeInvalid || e.Message != "resources.memory: must be at most 32 GiB" || e.Field != "resources.memory" || e.Rule != "max" || e.Bound != "32 GiB" {
		t.Errorf("got %+v", e)
	}
}
