package pid1

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A mount is one mount(2) and the directory it needs.
type mount struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
}

func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.fstype, m.target, err)
	}
	return nil
}

func mountAll(mounts []mount) error {
	for _, m := range mounts {
		if err := m.do(); err != nil {
			return err
		}
	}
	return nil
}

// identityDir holds the files that are bound over files of the image. It is a
// file system of its own, because the initramfs has no size limit.
const identityDir = "/id"

// mountKernel mounts everything that moves into the sandbox's root later.
func (s *System) mountKernel(context.Context) error {
	const secure = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err := mountAll([]mount{
		{"proc", "/proc", "proc", secure, ""},
		{"sysfs", "/sys", "sysfs", secure, ""},
		{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
		{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666"},
		{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"mqueue", "/dev/mqueue", "mqueue", secure, ""},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
		{"tmpfs", identityDir, "tmpfs", secure, "mode=0755,size=1m"},
	})
	if err != nil {
		return err
	}
	for name, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
		"/dev/core": "/proc/kcore",
	} {
		if err := os.Symlink(target, name); err != nil {
			return err
		}
	}
	if s.identity, err = os.OpenRoot(identityDir); err != nil {
		return err
	}
	return setModprobe()
}
