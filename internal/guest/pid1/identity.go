package pid1

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	"skerry.dev/skerry/internal/guestapi"
)

// identityFiles are bound over files of the root, so that the image's own stay
// what they are.
func (s *System) identityFiles(a guestapi.Activation) map[string]string {
	hosts := "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
	if s.boot.Address != "" {
		hosts += addressOf(s.boot.Address) + " " + a.Hostname + "\n"
	} else {
		hosts += "127.0.1.1 " + a.Hostname + "\n"
	}
	files := map[string]string{
		"/etc/hosts":                      hosts,
		"/etc/hostname":                   a.Hostname + "\n",
		"/etc/machine-id":                 a.MachineID + "\n",
		"/proc/sys/kernel/random/boot_id": a.BootID + "\n",
		"/etc/resolv.conf":                "",
	}
	if s.boot.DNS != "" {
		files["/etc/resolv.conf"] = "nameserver " + s.boot.DNS + "\n"
	}
	return files
}

func addressOf(prefix string) string {
	for i, c := range prefix {
		if c == '/' {
			return prefix[:i]
		}
	}
	return prefix
}

// bindIdentity runs after the switch to the sandbox's root, where symlinks of
// the image cannot lead out of it. It keeps the files open: writing them later
// changes what is bound.
func (s *System) bindIdentity(files map[string]string) error {
	s.identityFile, s.identityText = map[string]*os.File{}, map[string]string{}
	for target := range files {
		f, err := s.identity.OpenFile(filepath.Base(target), os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return err
		}
		s.identityFile[target] = f
		if err := bindFile(f, target); err != nil {
			return fmt.Errorf("bind %s: %w", target, err)
		}
	}
	return s.writeIdentity(files)
}

// writeIdentity gives the bound files their content, those that have another.
func (s *System) writeIdentity(files map[string]string) error {
	for target, content := range files {
		if s.identityText[target] == content {
			continue
		}
		f := s.identityFile[target]
		if _, err := f.WriteAt([]byte(content), 0); err != nil {
			return err
		}
		if len(content) < len(s.identityText[target]) {
			if err := f.Truncate(int64(len(content))); err != nil {
				return err
			}
		}
		s.identityText[target] = content
	}
	return nil
}

func bindFile(f *os.File, target string) error {
	if err := ensureFile(target); err != nil {
		return err
	}
	return unix.Mount("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), target, "", unix.MS_BIND, "")
}

// maxSymlinks is what the kernel follows (path_resolution(7)).
const maxSymlinks = 40

// ensureFile makes sure that path, symlinks followed, is a file that can be
// mounted over. The platform layer has these files; an image may have deleted
// them or replaced them by symlinks to where nothing is yet.
func ensureFile(path string) error {
	for range maxSymlinks {
		_, err := os.Stat(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		link, err := os.Readlink(path)
		if err == nil {
			if !filepath.IsAbs(link) {
				link = filepath.Join(filepath.Dir(path), link)
			}
			path = link
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		return f.Close()
	}
	return fmt.Errorf("%s: %w", path, unix.ELOOP)
}
