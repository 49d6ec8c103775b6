package qemu

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/machine"
)

// ErrCorruptTemplate says that the files of a template are not what Capture
// wrote. The template is of no use and has to be made again.
var ErrCorruptTemplate = errors.New("template is corrupt")

// sums stand beside a template's state file and are written last: a template
// without them is unfinished. CRC-32C finds what disks and crashes do and runs
// at the speed of the copy; it is no protection against who can write here,
// who could write the sums as well.
type sums struct {
	Version    int    `json:"version"`
	RAMBytes   int64  `json:"ram_bytes"`
	RAMCRC     uint32 `json:"ram_crc32c"` // see copyPages
	StateBytes int64  `json:"state_bytes"`
	StateCRC   uint32 `json:"state_crc32c"`
}

const sumsVersion = 1

func sumsPath(statePath string) string { return statePath + ".sums" }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Capture saves the machine, which must have been booted cold, as a template.
// Its memory becomes a sparse file without zero pages. On an error neither
// file is left.
func (m *instance) Capture(ctx context.Context, statePath, ramPath string) error {
	if m.ram == nil {
		return skerry.Errorf(skerry.CodeUnsupported, "capture: the machine was not booted cold")
	}
	m.mu.Lock()
	again := m.captured
	m.captured = true
	m.mu.Unlock()
	if again {
		return skerry.Errorf(skerry.CodeConflict, "capture: the machine was captured already")
	}
	err := m.request(ctx, "capture", func(ctx context.Context) error { return m.save(ctx, statePath) })
	if err == nil {
		err = m.saveRAM(statePath, ramPath)
	}
	if err != nil {
		for _, p := range []string{sumsPath(statePath), statePath, ramPath} {
			os.Remove(p)
		}
	}
	return err
}

// save pauses the machine and writes its device state.
func (m *instance) save(ctx context.Context, statePath string) error {
	if err := m.monitor.Stop(ctx); err != nil {
		return err
	}
	if err := m.detachImage(ctx); err != nil {
		return err
	}
	f, err := create(statePath)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := m.monitor.SetMigrationCapabilities(ctx, "events", "x-ignore-shared"); err != nil {
		return err
	}
	if err := m.monitor.GetFD(ctx, "state", f); err != nil {
		return err
	}
	if err := m.monitor.Migrate(ctx, "fd:state"); err != nil {
		return err
	}
	return m.waitMigration(ctx)
}

// detachImage puts an empty node in the place of the image disk's, because QEMU
// saves no machine that has a VMDK node open. The device's state, which is what
// is saved, does not know the difference.
func (m *instance) detachImage(ctx context.Context) error {
	if !m.hasImage {
		return nil
	}
	const empty = "no-image"
	err := m.monitor.BlockdevAdd(ctx, map[string]any{"driver": "null-co", "node-name": empty, "size": 0, "read-only": true})
	if err != nil {
		return err
	}
	if err := m.monitor.Set(ctx, "/machine/peripheral/"+imageDevice, "drive", empty); err != nil {
		return err
	}
	return m.monitor.BlockdevDel(ctx, imageNode)
}

// saveRAM writes the memory of the paused machine, and the sums.
func (m *instance) saveRAM(statePath, ramPath string) error {
	f, err := create(ramPath)
	if err != nil {
		return asError("capture memory", err)
	}
	defer f.Close()
	s := sums{RAMBytes: m.shape.BaseMiB << 20}
	if err := f.Truncate(s.RAMBytes); err != nil {
		return asError("capture memory", err)
	}
	if s.RAMCRC, err = copyPages(f, m.ram, s.RAMBytes); err != nil {
		return asError("capture memory", err)
	}
	state, err := os.ReadFile(statePath)
	if err != nil {
		return asError("capture", err)
	}
	s.StateBytes, s.StateCRC = int64(len(state)), crc32.Checksum(state, castagnoli)
	if err := writeSums(statePath, s); err != nil {
		return asError("capture", err)
	}
	return nil
}

func create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
}

// LoadTemplate reads a template that Capture wrote into memory, checks it, and
// seals it. The caller closes both files; machines that run keep the memory.
// It is corrupt if errors.Is(err, ErrCorruptTemplate).
func LoadTemplate(ramPath, statePath string) (*machine.Template, error) {
	var s sums
	b, err := os.ReadFile(sumsPath(statePath))
	if errors.Is(err, os.ErrNotExist) {
		return nil, corrupt(statePath, "it has no sums: it was never finished")
	}
	if err != nil {
		return nil, asError("load template", err)
	}
	if err := json.Unmarshal(b, &s); err != nil || s.Version != sumsVersion {
		return nil, corrupt(statePath, "its sums are unreadable")
	}
	state, err := loadState(statePath, s)
	if err != nil {
		return nil, err
	}
	ram, err := loadRAM(ramPath, s)
	if err != nil {
		state.Close()
		return nil, err
	}
	return &machine.Template{RAM: ram, State: state}, nil
}

func corrupt(path, format string, args ...any) error {
	return skerry.Errorf(skerry.CodeUnavailable, "load template %s: %w: %s", filepath.Base(path), ErrCorruptTemplate, fmt.Sprintf(format, args...))
}

// openSized opens a template's file if it has the size it must have, or for
// memory at least that.
func openSized(path string, want int64, more bool) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, corrupt(path, "the file is missing")
	}
	if err != nil {
		return nil, asError("load template", err)
	}
	fi, err := f.Stat()
	if err == nil && fi.Size() != want && !(more && fi.Size() > want) {
		err = corrupt(path, "it has %d bytes, want %d", fi.Size(), want)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// maxStateInMemory is the size up to which a state is kept in memory. One that
// is larger holds plugged memory, which is not to be there twice.
const maxStateInMemory = 8 << 20

func loadState(path string, s sums) (*os.File, error) {
	src, err := openSized(path, s.StateBytes, false)
	if err != nil {
		return nil, err
	}
	dst := src
	if s.StateBytes <= maxStateInMemory {
		defer src.Close()
		if dst, err = newMemfd("template-state", 0); err != nil {
			return nil, asError("load template", err)
		}
	}
	h := crc32.New(castagnoli)
	var to io.Writer = h
	if dst != src {
		to = io.MultiWriter(dst, h)
	}
	_, err = io.Copy(to, src)
	if err == nil && h.Sum32() != s.StateCRC {
		err = corrupt(path, "checksum %08x, want %08x", h.Sum32(), s.StateCRC)
	}
	if dst != src {
		return sealed(dst, err)
	}
	if err != nil {
		src.Close()
		return nil, asError("load template", err)
	}
	return src, nil
}

func loadRAM(path string, s sums) (*os.File, error) {
	src, err := openSized(path, s.RAMBytes, true)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	dst, err := newMemfd("template-ram", s.RAMBytes)
	if err != nil {
		return nil, asError("load template", err)
	}
	return sealed(dst, fillRAM(dst, src, path, s))
}

// fillRAM writes the memory to dst, with that of the base if src is a delta.
func fillRAM(dst, src *os.File, path string, s sums) error {
	d, err := readDelta(src, s.RAMBytes)
	if err != nil {
		return corrupt(path, "%v", err)
	}
	var crc uint32
	if d == nil {
		crc, err = copyPages(dst, src, s.RAMBytes)
	} else {
		if err := fillBase(dst, basePath(path), s.RAMBytes, d.baseCRC); err != nil {
			return err
		}
		crc, err = d.apply(src, s.RAMBytes, dst)
	}
	if err == nil && crc != s.RAMCRC {
		err = corrupt(path, "checksum %08x, want %08x", crc, s.RAMCRC)
	}
	return err
}

func fillBase(dst *os.File, path string, size int64, want uint32) error {
	base, err := openSized(path, size, false)
	if err != nil {
		return err
	}
	defer base.Close()
	crc, err := copyPages(dst, base, size)
	if err == nil && crc != want {
		err = corrupt(path, "checksum %08x, want %08x", crc, want)
	}
	return err
}

// sealed makes a memfd unchangeable for everybody, for good; or closes it if
// err says that it is not worth it.
func sealed(f *os.File, err error) (*os.File, error) {
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		f.Close()
		return nil, asError("load template", err)
	}
	return f, nil
}

const pageBytes = 4096

// copyPages copies the pages of src that are not zero to an empty dst of the
// same size. The checksum is the CRC-32C of, for each of them, its page number
// (8 bytes, little endian) and its content: it does not depend on where src
// has holes.
func copyPages(dst io.WriterAt, src *os.File, size int64) (uint32, error) {
	buf := make([]byte, 1<<20)
	var crc uint32
	for at := int64(0); at < size; {
		start, end, err := nextData(src, at, size)
		if err != nil {
			return 0, err
		}
		for at = start; at < end; {
			n := min(end-at, int64(len(buf)))
			if _, err := src.ReadAt(buf[:n], at); err != nil {
				return 0, err
			}
			if crc, err = writePages(dst, buf[:n], at, crc); err != nil {
				return 0, err
			}
			at += n
		}
	}
	return crc, nil
}

// nextData is the next range of whole pages at or after at that is not a hole
// (lseek(2)), or an empty one at the end.
func nextData(f *os.File, at, size int64) (start, end int64, err error) {
	start, err = f.Seek(at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size, nil
	}
	if err != nil {
		return 0, 0, err
	}
	if end, err = f.Seek(start, unix.SEEK_HOLE); err != nil {
		return 0, 0, err
	}
	start -= start % pageBytes
	end = min(size, (end+pageBytes-1)/pageBytes*pageBytes)
	return start, end, nil
}

var zeroPage [pageBytes]byte

// writePages writes runs of pages that are not zero.
func writePages(dst io.WriterAt, b []byte, at int64, crc uint32) (uint32, error) {
	run := 0 // start of the run that is not written yet
	flush := func(end int) error {
		if end == run {
			return nil
		}
		_, err := dst.WriteAt(b[run:end], at+int64(run))
		return err
	}
	for i := 0; i < len(b); i += pageBytes {
		page := b[i:min(len(b), i+pageBytes)]
		if bytes.Equal(page, zeroPage[:len(page)]) {
			if err := flush(i); err != nil {
				return 0, err
			}
			run = i + len(page)
			continue
		}
		crc = pageCRC(crc, (at+int64(i))/pageBytes, page)
	}
	return crc, flush(len(b))
}

// pageCRC goes on with the CRC of pages: see copyPages.
func pageCRC(crc uint32, number int64, page []byte) uint32 {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(number))
	return crc32.Update(crc32.Update(crc, castagnoli, n[:]), castagnoli, page)
}

// TemplateFiles lists the files that make up a captured template, given the
// names Capture was called with: what has to be moved together.
func TemplateFiles(statePath, ramPath string) []string {
	return []string{statePath, ramPath, sumsPath(statePath)}
}
