package pid1

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	scratchDevice = "/dev/vdb"
	scratchDir    = "/s"
	newRoot       = "/n"
	dockerDir     = "var/lib/docker"
	scratchBlock  = 4096 // bytes, as the host makes the file system
)

// mountScratch mounts the sandbox's writable disk.
func (s *System) mountScratch(ctx context.Context, sectors int64) error {
	if sectors > 0 {
		if err := waitScratchSize(ctx, sectors); err != nil {
			return err
		}
	}
	err := mount{scratchDevice, scratchDir, "ext4", unix.MS_NOATIME, "discard,errors=remount-ro"}.do()
	if err != nil {
		return err
	}
	s.scratchFD, err = unix.Open(scratchDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.scratchMounted = true
	s.scratchSectors, err = scratchSectors()
	return err
}

// waitScratchSize waits until the kernel has seen the writable disk's size.
func waitScratchSize(ctx context.Context, sectors int64) error {
	return waitFor(ctx, "size of the writable disk", func() (bool, error) {
		have, err := scratchSectors()
		return have == sectors, err
	})
}

func scratchSectors() (int64, error) {
	text, err := os.ReadFile("/sys/class/block/vdb/size")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// growScratch makes the file system fill a disk that has become larger. The
// usual disk has the size it was captured with, and then this is one comparison
// with what the agent has in memory.
func (s *System) growScratch(ctx context.Context, sectors int64) error {
	if sectors == 0 || sectors == s.scratchSectors {
		return nil
	}
	if err := waitScratchSize(ctx, sectors); err != nil {
		return err
	}
	const resizeFS = 0x40086610 // EXT4_IOC_RESIZE_FS, fs/ext4/ext4.h
	blocks := uint64(sectors) * 512 / scratchBlock
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.scratchFD), resizeFS, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
		return fmt.Errorf("resize to %d blocks: %w", blocks, errno)
	}
	s.scratchSectors = sectors
	return nil
}

// mountRoot joins the image's layers and the writable disk.
func (s *System) mountRoot() error {
	for _, name := range []string{"upper", "work"} {
		if err := os.MkdirAll(filepath.Join(scratchDir, name), 0o755); err != nil {
			return err
		}
	}
	// Relative names of layers keep the options short. Directory redirects
	// and other extensions are off: the upper directory must be plain, so
	// that a snapshot of it is an ordinary OCI layer.
	if err := os.Chdir(layersDir); err != nil {
		return err
	}
	options := "lowerdir=" + s.layers.lower + ",upperdir=" + scratchDir + "/upper,workdir=" + scratchDir +
		"/work,redirect_dir=off,metacopy=off,index=off"
	return mount{"overlay", newRoot, "overlay", 0, options}.do()
}

// switchRoot makes the joined file system the root of the whole machine, for
// the kernel too: its calls of modprobe(8) use the root of PID 1.
func (s *System) switchRoot() error {
	if s.layers.docker {
		if err := bindDocker(); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run"} {
		if err := moveIntoRoot(dir); err != nil {
			return fmt.Errorf("move %s: %w", dir, err)
		}
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	return os.Chdir("/")
}

// moveIntoRoot moves a mount to the same path below newRoot. The path may lead
// over symlinks of the image, which must not lead out of it.
func moveIntoRoot(dir string) error {
	root, err := unix.Open(newRoot, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	point, err := unix.Openat2(root, dir, &how)
	if errors.Is(err, unix.ENOENT) {
		// The platform layer has it, so an upper layer deleted it.
		if err := unix.Mkdirat(root, dir[1:], 0o755); err != nil {
			return fmt.Errorf("make mount point: %w", err)
		}
		point, err = unix.Openat2(root, dir, &how)
	}
	if err != nil {
		return fmt.Errorf("mount point: %w", err)
	}
	defer unix.Close(point)
	return unix.MoveMount(unix.AT_FDCWD, dir, point, "", unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// bindDocker puts Docker's data directory on the writable disk itself: overlayfs
// cannot be the upper layer of another one, so Docker would fall back to
// copying whole images. Only images that can run Docker get it, because the
// directory shows.
func bindDocker() error {
	data := filepath.Join(scratchDir, "docker")
	if err := os.MkdirAll(data, 0o710); err != nil {
		return err
	}
	root, err := os.OpenRoot(newRoot)
	if err != nil {
		return err
	}
	defer root.Close()
	if entries, err := root.Open(dockerDir); err == nil {
		names, _ := entries.Readdirnames(1)
		entries.Close()
		if len(names) > 0 {
			return nil // the image brings data of its own
		}
	}
	if err := root.MkdirAll(dockerDir, 0o710); err != nil {
		return fmt.Errorf("make %s: %w", dockerDir, err)
	}
	dir, err := root.Open(dockerDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	target := "/proc/self/fd/" + strconv.Itoa(int(dir.Fd()))
	return unix.Mount(data, target, "", unix.MS_BIND, "")
}
