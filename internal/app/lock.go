package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
)

// lockDir makes sure that only one server works in a data directory. The lock
// goes with the process, however it ends.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "server.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path) // for the message only
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, skerry.Errorf(skerry.CodeConflict, "another server (process %s) uses the data directory %s; stop it, or use --data-dir",
				strings.TrimSpace(string(holder)), dir)
		}
		return nil, err
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := fmt.Fprintln(f, os.Getpid()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
