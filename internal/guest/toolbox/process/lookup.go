package process

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// shells are tried in this order for shell "auto".
var shells = []string{"zsh", "bash", "sh"}

// errNotFound is what lookPath returns for a program that is in no directory of
// the path.
var errNotFound = errors.New("executable file not found")

// lookPath finds a program as execvp(3) does: with a slash it is a path,
// relative to dir, else it is searched in path. It must run with the rights of
// the user who will execute it.
func lookPath(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		if err := checkExecutable(name); err != nil {
			return "", err
		}
		return name, nil
	}
	var denied error
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d) // "" is the current directory, POSIX
		}
		candidate := filepath.Join(d, name)
		err := checkExecutable(candidate)
		if err == nil {
			return candidate, nil
		}
		if denied == nil && errors.Is(err, fs.ErrPermission) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("%s: %w in PATH %s", name, errNotFound, path)
}

func checkExecutable(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return &fs.PathError{Op: "execute", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return &fs.PathError{Op: "execute", Path: path, Err: syscall.EISDIR}
	}
	if st.Mode&0o111 == 0 {
		return &fs.PathError{Op: "execute", Path: path, Err: syscall.EACCES}
	}
	// AT_EACCESS: the thread's file system identity, not the real one.
	if err := unix.Faccessat2(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS); err != nil && !errors.Is(err, unix.ENOSYS) {
		return &fs.PathError{Op: "execute", Path: path, Err: err}
	}
	return nil
}

// findShell resolves a shell selector: "auto" or "" is the first of zsh, bash
// and sh that there is.
func findShell(selector, path, dir string) (string, error) {
	names := shells
	if selector != "" && selector != "auto" {
		names = []string{selector}
	}
	for _, name := range names {
		if shell, err := lookPath(name, path, dir); err == nil {
			return shell, nil
		}
		if shell, err := lookPath(name, DefaultPath, dir); err == nil {
			return shell, nil
		}
	}
	return "", fmt.Errorf("there is no %s in this image: give argv instead of a shell command", strings.Join(names, ", "))
}

// checkDir reports whether a process of this user can start in dir: "." in it is
// found only if it is a directory and the user may search it.
func checkDir(dir string) error {
	var st unix.Stat_t
	return unix.Stat(dir+"/.", &st)
}
