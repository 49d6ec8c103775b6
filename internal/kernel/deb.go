package kernel

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// Bounds on a kernel package; Debian's are a tenth of that.
const (
	maxUnpacked = 4 << 30
	maxEntries  = 200_000
)

// Unpack unpacks the kernel image and modules of a Debian package into dir,
// which must not exist, and indexes the modules with depmod(8), which has to be
// installed (package kmod). dir appears only when it is complete.
func Unpack(ctx context.Context, debPath, dir string) (*Kernel, error) {
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".kernel-")
	if err != nil {
		return nil, fmt.Errorf("unpack kernel: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := unpackDeb(ctx, debPath, tmp); err != nil {
		return nil, fmt.Errorf("unpack kernel: %s: %w", debPath, err)
	}
	if err := indexModules(ctx, tmp); err != nil {
		return nil, fmt.Errorf("unpack kernel: %w", err)
	}
	if _, err := Open(tmp); err != nil {
		return nil, fmt.Errorf("unpack kernel: %s: %w", debPath, err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return nil, fmt.Errorf("unpack kernel: %w", err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return nil, fmt.Errorf("unpack kernel: %w", err)
	}
	return Open(dir)
}

// indexModules makes modules.dep and the other indexes that the package's
// installation script would make.
func indexModules(ctx context.Context, root string) error {
	versions, err := os.ReadDir(filepath.Join(root, modulesDir))
	if err != nil {
		return err
	}
	depmod, err := findDepmod()
	if err != nil {
		return err
	}
	for _, v := range versions {
		cmd := exec.CommandContext(ctx, depmod, "-b", root, v.Name())
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("depmod: %w: %s", err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// findDepmod looks in the administrator's directories too, which an ordinary
// user's PATH may lack.
func findDepmod() (string, error) {
	for _, name := range []string{"depmod", "/usr/sbin/depmod", "/sbin/depmod"} {
		if found, err := exec.LookPath(name); err == nil {
			return found, nil
		}
	}
	return "", errors.New("depmod is not installed: apt-get install kmod")
}

func unpackDeb(ctx context.Context, debPath, dir string) error {
	f, err := os.Open(debPath)
	if err != nil {
		return err
	}
	defer f.Close()
	name, data, err := findData(bufio.NewReader(f))
	if err != nil {
		return err
	}
	plain, err := decompress(name, data)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer plain.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := extract(ctx, tar.NewReader(io.LimitReader(plain, maxUnpacked)), root); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

var errNotDeb = errors.New("not a Debian package")

// findData finds the member data.tar of a deb(5), which is an ar archive:
// a line "!<arch>", then members of a 60-byte header and content padded to two.
func findData(r io.Reader) (string, io.Reader, error) {
	line := make([]byte, 8)
	if _, err := io.ReadFull(r, line); err != nil || string(line) != "!<arch>\n" {
		return "", nil, errNotDeb
	}
	for range 16 { // a package has three members
		var head [60]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return "", nil, fmt.Errorf("%w: no data.tar", errNotDeb)
		}
		name := strings.TrimRight(strings.TrimSpace(string(head[:16])), "/")
		size, err := strconv.ParseInt(strings.TrimSpace(string(head[48:58])), 10, 64)
		if err != nil || size < 0 || head[58] != '`' || head[59] != '\n' {
			return "", nil, fmt.Errorf("%w: bad member header", errNotDeb)
		}
		if strings.HasPrefix(name, "data.tar") {
			return name, io.LimitReader(r, size), nil
		}
		if _, err := io.CopyN(io.Discard, r, size+size%2); err != nil {
			return "", nil, fmt.Errorf("%w: short member %s", errNotDeb, name)
		}
	}
	return "", nil, fmt.Errorf("%w: no data.tar", errNotDeb)
}

func decompress(name string, r io.Reader) (io.ReadCloser, error) {
	switch path.Ext(name) {
	case ".xz":
		x, err := xz.NewReader(r)
		return io.NopCloser(x), err
	case ".zst":
		z, err := zstd.NewReader(r, zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case ".gz":
		return gzip.NewReader(r)
	case ".tar":
		return io.NopCloser(r), nil
	}
	return nil, errors.New("unknown compression")
}

// extract takes the kernel image and the modules and nothing else. Names are
// resolved inside root; links are not made, packages of kernels have none that
// matter.
func extract(ctx context.Context, t *tar.Reader, root *os.Root) error {
	for range maxEntries {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		name, ok := keep(h.Name)
		if !ok || h.Typeflag != tar.TypeReg {
			continue
		}
		if err := extractFile(t, root, name); err != nil {
			return fmt.Errorf("entry %s: %w", h.Name, err)
		}
	}
	return errors.New("too many entries")
}

// keep maps a package's path to ours. Newer packages have modules in usr/lib.
func keep(name string) (string, bool) {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	switch {
	case strings.HasPrefix(name, bootDir+"/vmlinuz-"), strings.HasPrefix(name, modulesDir+"/"):
		return name, true
	case strings.HasPrefix(name, "usr/"+modulesDir+"/"):
		return strings.TrimPrefix(name, "usr/"), true
	}
	return "", false
}

func extractFile(r io.Reader, root *os.Root, name string) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fs.FileMode(0o644))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
