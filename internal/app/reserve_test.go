package app

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReserve: room is held back while there is much, given up when there is
// none, and taken again when there is much.
func TestReserve(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("skerry-test", dir, "tmpfs", 0, "size=160m"); errors.Is(err, unix.EPERM) {
		t.Skip("mounting a small file system needs root")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	r := &reserve{filepath.Join(dir, "reserve"), slog.New(slog.DiscardHandler)}
	filler := filepath.Join(dir, "filler")
	for _, step := range []struct {
		what string
		fill int64 // bytes of what else is on the disk
		want int64 // bytes that are held back then
	}{
		{"empty", 0, reserveBytes},
		{"half full", 100 << 20, reserveBytes},
		{"full", 128 << 20, 0},
		{"full but for what was held back", 129 << 20, 0},
		{"half full again", 100 << 20, 0},
		{"empty again", 0, reserveBytes},
	} {
		if err := os.WriteFile(filler, make([]byte, step.fill), 0o600); err != nil {
			t.Fatal(err)
		}
		err := r.look()
		for errors.Is(err, unix.EINTR) {
			err = r.look()
		}
		info, statErr := os.Stat(r.path)
		if err != nil || statErr != nil || info.Size() != step.want {
			t.Errorf("%s: got %v, %v, %+v, want %d bytes", step.what, err, statErr, info, step.want)
		}
	}
}
