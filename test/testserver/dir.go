// Package testserver runs the built binary for black-box tests: servers on data
// directories of their own, the command line set up for them, and what they
// leave behind. Test support only.
package testserver

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// The environment variables that say where the binary and the guest kernel are.
const (
	BinaryEnv = "SKERRY_TEST_BINARY"
	KernelEnv = "SKERRY_TEST_KERNEL_DIR"
)

// prerequisite returns the absolute path that the environment variable env, or
// else def below the repository, names; it must hold the entry check.
func prerequisite(env, def, check, makeTarget string) (string, error) {
	path := os.Getenv(env)
	if path == "" {
		path = filepath.Join("..", "..", def)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(path, check)); err != nil {
		return "", fmt.Errorf("%w; type: make %s", err, makeTarget)
	}
	return path, nil
}

// Dir is the home of a server: binary, data and configuration, under a path that
// is short, since the address of a Unix socket has at most 108 bytes (unix(7)).
type Dir struct {
	Path string
	uid  int
	lock *os.File // held as long as this process lives
}

// NewDir makes the home of a server that runs as user uid; 0 keeps the caller's.
// The binary is a copy, so that processes are known by it.
func NewDir(uid int) (*Dir, error) {
	binary, err := prerequisite(BinaryEnv, "bin/skerry", "", "build")
	if err != nil {
		return nil, err
	}
	kernel, err := prerequisite(KernelEnv, ".cache/kernel", "boot", "kernel")
	if err != nil {
		return nil, err
	}
	if err := removeAbandoned(); err != nil {
		return nil, err
	}
	d, err := makeDir(uid)
	if err != nil {
		return nil, err
	}
	if err := d.fill(binary, kernel); err != nil {
		return nil, errors.Join(err, d.Remove())
	}
	return d, nil
}

func (d *Dir) fill(binary, kernel string) error {
	if err := copyFile(d.Binary(), binary); err != nil {
		return err
	}
	into := filepath.Join(d.Data(), "kernel")
	if err := os.MkdirAll(into, 0o700); err != nil {
		return err
	}
	if d.uid == 0 {
		return os.Symlink(kernel, filepath.Join(into, "debian"))
	}
	// Another user may not get to the original.
	if out, err := exec.Command("cp", "-r", "--", kernel, filepath.Join(into, "debian")).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the kernel: %w: %s", err, out)
	}
	return filepath.WalkDir(d.Path, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(name, d.uid, d.uid)
	})
}

func copyFile(to, from string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	// A process that a parallel test forks meanwhile would have it open for
	// writing until its exec, and a file that is cannot be run (execve(2),
	// ETXTBSY).
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// Clone makes a copy, with its data, of the home of a server that does not run.
func (d *Dir) Clone() (*Dir, error) {
	c, err := makeDir(d.uid)
	if err != nil {
		return nil, err
	}
	if out, err := exec.Command("cp", "-a", "--", d.Path+"/.", c.Path).CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("copy %s: %w: %s", d.Path, err, out), c.Remove())
	}
	return c, nil
}

// Binary is the program.
func (d *Dir) Binary() string { return filepath.Join(d.Path, "program") }

// Data is the data directory, where $XDG_DATA_HOME puts it.
func (d *Dir) Data() string { return filepath.Join(d.Path, "data", "skerry") }

// ClientConfig is the command line's configuration file.
func (d *Dir) ClientConfig() string {
	return filepath.Join(d.Path, "config", "skerry", "config.json")
}

// Env is the environment of all processes.
func (d *Dir) Env() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.Path, "LANG=C.UTF-8",
		"XDG_DATA_HOME=" + filepath.Join(d.Path, "data"), "XDG_CONFIG_HOME=" + filepath.Join(d.Path, "config")}
}
