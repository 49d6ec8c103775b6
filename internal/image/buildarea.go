package image

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"skerry.dev/skerry"
)

// buildArea is where mmdebstrap builds a root file system: a directory of this
// store, outside of it because a user namespace must reach it, and with the same
// name every time, so that the next build finds what a crash left.
type buildArea struct {
	dir  string
	mode string // of mmdebstrap
}

// newBuildArea makes an empty build area. It lies in /var/tmp, which unlike /tmp
// is never memory.
func (s *Store) newBuildArea(ctx context.Context, mode string) (*buildArea, error) {
	abs, err := filepath.Abs(s.opt.Dir)
	if err != nil {
		return nil, err
	}
	a := &buildArea{mode: mode, dir: "/var/tmp/skerry-build-" + digestOf([]byte(abs)).Hex[:16]}
	if err := a.remove(ctx); err != nil {
		return nil, err
	}
	if err := os.Mkdir(a.dir, 0o755); err != nil {
		return nil, err
	}
	if mode == modeUnshare { // root of the user namespace is another user here
		if err := os.Chmod(a.dir, 0o777|os.ModeSticky); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// remove removes the area. What a user namespace's root left there, only such a
// root can remove.
func (a *buildArea) remove(ctx context.Context) error {
	if _, err := os.Lstat(a.dir); os.IsNotExist(err) {
		return nil
	}
	args := []string{"rm", "-rf", "--one-file-system", a.dir}
	if a.mode == modeUnshare {
		// The directory itself is ours.
		inside := exec.CommandContext(ctx, "mmdebstrap", "--unshare-helper", "find", a.dir, "-xdev", "-mindepth", "1", "-delete")
		if out, err := inside.CombinedOutput(); err != nil {
			return skerry.Errorf(skerry.CodeUnavailable, "remove an earlier build: %w: %s", err, lastLines(out, 3))
		}
	}
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("remove an earlier build: %w: %s", err, lastLines(out, 3))
	}
	return nil
}
