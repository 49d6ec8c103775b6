//go:build linux

package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"skerry.dev/skerry"
)

// ScratchOptions describes a writable disk.
type ScratchOptions struct {
	MiB int64 // size; from MinScratchMiB to MaxScratchMiB
	// Journal is for disks that outlive a crash of their machine. Without it
	// the disk writes less, and is only good for one life.
	Journal bool
}

// Bounds of a writable disk. A smaller one has no room for a journal.
const (
	MinScratchMiB = 16
	MaxScratchMiB = 16 << 20 // 16 TiB, what ext4 with 4 KiB blocks can be without further features
)

// Scratch makes the writable ext4 disks of sandboxes: raw sparse files whose
// length is the size of the disk, so that the guest cannot write past it. The
// first of a size is made by mke2fs(8), as an ordinary user, and kept; the others
// are copies of its few blocks.
//
// The file system is empty but for lost+found, owned by root and marked as
// zeroed, so that the guest's kernel does not start to write inode tables. All
// disks of a size are the same, their UUID included.
type Scratch struct {
	dir string
}

// NewScratch returns a maker of disks that keeps its templates in dir.
func NewScratch(dir string) *Scratch { return &Scratch{dir: dir} }

// scratchUUID is of every scratch disk. A guest has only one.
const scratchUUID = "5ce7712c-7363-4261-8463-680000000001"

// Create makes a disk at path, which must not exist. The error is CodeExhausted
// if the host's disk is full and CodeUnavailable if e2fsprogs is not installed.
// Nothing is left at path then.
func (s *Scratch) Create(ctx context.Context, path string, opts ScratchOptions) error {
	if opts.MiB < MinScratchMiB || opts.MiB > MaxScratchMiB {
		return invalid("disk of %d MiB: %d to %d are possible", opts.MiB, MinScratchMiB, MaxScratchMiB)
	}
	err := s.create(ctx, path, opts)
	if err != nil {
		return fmt.Errorf("make scratch disk of %d MiB: %w", opts.MiB, exhausted(err))
	}
	return nil
}

// CopyScratch makes path, which must not exist, a copy of a disk that is at
// rest, for example the one a machine was captured with. A copy may be larger
// than the original; its file system is then for the guest to grow.
func CopyScratch(path, original string, mib int64) error {
	src, err := os.Open(original)
	if err != nil {
		return fmt.Errorf("copy scratch disk: %w", err)
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return fmt.Errorf("copy scratch disk: %w", err)
	}
	if info.Size() > mib<<20 {
		return invalid("disk of %d MiB: the original has %d", mib, info.Size()>>20)
	}
	if err := copyNew(path, src, mib<<20); err != nil {
		return fmt.Errorf("copy scratch disk: %w", exhausted(err))
	}
	return nil
}

// copyNew makes path a copy of src with size bytes, and nothing on an error.
func copyNew(path string, src *os.File, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(copySparse(f, src), f.Truncate(size), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func (s *Scratch) create(ctx context.Context, path string, opts ScratchOptions) error {
	template, err := s.template(ctx, opts)
	if err != nil {
		return err
	}
	defer template.Close()
	return copyNew(path, template, opts.MiB<<20)
}

// template opens the template for a size and makes it if there is none. Two
// makers at once do no harm: both make the same file.
func (s *Scratch) template(ctx context.Context, opts ScratchOptions) (*os.File, error) {
	name := fmt.Sprintf("ext4-%d.raw", opts.MiB)
	if opts.Journal {
		name = fmt.Sprintf("ext4-%d-journal.raw", opts.MiB)
	}
	path := filepath.Join(s.dir, name)
	f, err := os.Open(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	tmp, err := os.CreateTemp(s.dir, name+".*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(tmp.Name()) // fails once it is renamed
	err = tmp.Truncate(opts.MiB << 20)
	if err == nil {
		err = mke2fs(ctx, tmp.Name(), opts)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if err := errors.Join(err, tmp.Close()); err != nil {
		return nil, err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return nil, err
	}
	return os.Open(path)
}

// mke2fs makes the file system in a file of zeros.
func mke2fs(ctx context.Context, path string, opts ScratchOptions) error {
	tool, err := findTool("mke2fs")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, tool, mke2fsArgs(path, opts)...)
	// SOURCE_DATE_EPOCH is for newer versions, E2FSPROGS_FAKE_TIME for all.
	cmd.Env = []string{"MKE2FS_CONFIG=/dev/null", "E2FSPROGS_FAKE_TIME=1", "SOURCE_DATE_EPOCH=1", "LC_ALL=C"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		if strings.Contains(stderr.String(), "No space left on device") {
			return skerry.Errorf(skerry.CodeExhausted, "disk full: mke2fs: %w", err)
		}
		return fmt.Errorf("mke2fs: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// mke2fsArgs asks for as few written blocks as possible: few copies of the
// superblock, no blocks kept for growing, nothing zeroed that is zero. The
// guest can grow it all the same: with meta_bg new groups bring their own
// descriptors. Linux refuses to grow one without any copies (sparse_super2,
// ext4_resize_begin in fs/ext4/resize.c).
func mke2fsArgs(path string, opts ScratchOptions) []string {
	features := "none,extent,flex_bg,filetype,dir_index,dir_nlink,extra_isize,sparse_super,meta_bg,large_file,huge_file,metadata_csum,64bit,ext_attr"
	if opts.Journal {
		features += ",has_journal"
	}
	return []string{"-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-i", "16384", "-m", "0", "-U", scratchUUID, "-O", features, "-E",
		"nodiscard,lazy_itable_init=1,lazy_journal_init=1,assume_storage_prezeroed=1,root_owner=0:0,hash_seed=" + scratchUUID,
		path}
}

// findTool finds a program that is for administrators only on some systems and
// so not on an ordinary user's PATH.
func findTool(name string) (string, error) {
	for _, candidate := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path, nil
		}
	}
	return "", skerry.Errorf(skerry.CodeUnavailable, "%s is not installed; it is in the package e2fsprogs", name)
}
