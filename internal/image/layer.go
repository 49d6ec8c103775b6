package image

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"skerry.dev/skerry"
)

// layerFacts is layers/<key>.json. Checksums are CRC-32C: they find bad disks
// and truncated copies, at memory speed; whoever may write here needs no finesse.
type layerFacts struct {
	Format string  `json:"format"`
	DiffID v1.Hash `json:"diff_id"`
	Bytes  int64   `json:"bytes"`
	CRC32C uint32  `json:"crc32c"`
}

// layerKeys are the names a converted layer may have: by itself, or in its place.
func layerKeys(diffID, chainID v1.Hash) (own, inPlace string) {
	return "diff-" + diffID.Hex, "chain-" + chainID.Hex
}

// ensureLayer makes a converted layer be in the store and returns it with its
// key. The blob is there; blob and keys are pinned. A damaged file is replaced.
func (s *Store) ensureLayer(ctx context.Context, blob v1.Descriptor, diffID, chainID v1.Hash, lower []LayerFile) (LayerFile, string, error) {
	unlock, err := s.busy.lock(ctx, "layer:"+diffID.Hex)
	if err != nil {
		return LayerFile{}, "", err
	}
	defer unlock()
	own, inPlace := layerKeys(diffID, chainID)
	for _, key := range []string{own, inPlace} {
		file, err := s.checkLayer(ctx, layerRecord{DiffID: diffID, Key: key, Bytes: -1})
		if err == nil {
			return file, key, nil
		}
		if !errors.Is(err, ErrDamaged) {
			return LayerFile{}, "", err
		}
	}
	select {
	case s.converts <- struct{}{}:
		defer func() { <-s.converts }()
	case <-ctx.Done():
		return LayerFile{}, "", ctx.Err()
	}
	key, err := s.convert(ctx, blob, diffID, own, inPlace, lower)
	if err != nil {
		return LayerFile{}, "", err
	}
	file, err := s.checkLayer(ctx, layerRecord{DiffID: diffID, Key: key, Bytes: -1})
	return file, key, err
}

// convert unpacks a blob and has it converted.
func (s *Store) convert(ctx context.Context, blob v1.Descriptor, diffID v1.Hash, own, inPlace string, lower []LayerFile) (key string, err error) {
	dir, err := os.MkdirTemp(s.path("tmp"), "layer-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	tar, err := s.openTar(ctx, blob, diffID, dir)
	if err != nil {
		return "", err
	}
	defer tar.Close()
	fi, err := tar.Stat()
	if err != nil {
		return "", err
	}
	c := Conversion{Tar: tar, Size: fi.Size(), Dst: filepath.Join(dir, "img")}
	for _, l := range lower {
		c.Lower = append(c.Lower, l.Path)
	}
	depends, err := s.opt.Converter.ConvertLayer(ctx, c)
	if err != nil {
		return "", err
	}
	key = own
	if depends {
		key = inPlace
	}
	return key, s.commitLayer(ctx, c.Dst, diffID, key)
}

// commitLayer gives a converted layer its name; the facts come last.
func (s *Store) commitLayer(ctx context.Context, file string, diffID v1.Hash, key string) error {
	facts := layerFacts{Format: s.opt.Converter.Format(), DiffID: diffID}
	var err error
	if facts.CRC32C, facts.Bytes, err = checksum(ctx, file); err != nil {
		return err
	}
	base := s.path("layers", key)
	if err := removeIfThere(base + ".json"); err != nil { // of a damaged predecessor
		return err
	}
	if err := os.Chmod(file, 0o444); err != nil {
		return err
	}
	if err := commit(file, base+".img"); err != nil {
		return err
	}
	return writeJSON(s.path("tmp"), base+".json", facts)
}

// openTar returns the uncompressed layer, checked against its diffID. A blob
// that is not compressed is used where it lies.
func (s *Store) openTar(ctx context.Context, blob v1.Descriptor, diffID v1.Hash, dir string) (_ *os.File, err error) {
	in, err := os.Open(s.path(blobName(blob.Digest)))
	if err != nil {
		return nil, err
	}
	closeIn := true
	defer func() {
		if closeIn {
			in.Close()
		}
	}()
	if blob.Digest == diffID {
		got, n, err := hashReader(ctx, in)
		if err == nil && n > s.opt.Limits.LayerBytes {
			err = tooLarge("uncompressed layer", s.opt.Limits.LayerBytes)
		}
		if err == nil && got != diffID {
			err = wrongDiffID(diffID, got)
		}
		if err == nil {
			_, err = in.Seek(0, io.SeekStart)
		}
		closeIn = err != nil
		return in, err
	}
	out, err := os.OpenFile(filepath.Join(dir, "tar"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	got, err := decompressTo(ctx, out, in, s.opt.Limits.LayerBytes)
	if err == nil && got != diffID {
		err = wrongDiffID(diffID, got)
	}
	if err == nil {
		_, err = out.Seek(0, io.SeekStart)
	}
	if err != nil {
		out.Close()
		return nil, err
	}
	return out, nil
}

func wrongDiffID(want, got v1.Hash) error {
	bad := badDigest("uncompressed layer", want.String(), got.String())
	bad.Err = errDigest
	return bad
}

// fileStamp tells whether a file may have changed since it was last read.
type fileStamp struct {
	size         int64
	mtime, ctime time.Time
	inode        uint64
}

func stampOf(fi fs.FileInfo) fileStamp {
	st := fileStamp{size: fi.Size(), mtime: fi.ModTime()}
	if sys, ok := fi.Sys().(*syscall.Stat_t); ok {
		st.inode = sys.Ino
		st.ctime = time.Unix(sys.Ctim.Unix())
	}
	return st
}

// checkLayer returns a converted layer if it is whole; ErrDamaged is in the
// chain of the error if it is not. l.Bytes is -1 if the size is not known.
func (s *Store) checkLayer(ctx context.Context, l layerRecord) (LayerFile, error) {
	base := s.path("layers", l.Key)
	file := LayerFile{DiffID: l.DiffID.String(), Path: base + ".img"}
	var facts layerFacts
	if err := readJSON(base+".json", &facts); err != nil {
		return file, damaged("layer %s is missing: %v", l.DiffID, err)
	}
	switch {
	case facts.Format != s.opt.Converter.Format():
		return file, damaged("layer %s has format %q, want %q", l.DiffID, facts.Format, s.opt.Converter.Format())
	case facts.DiffID != l.DiffID:
		return file, damaged("layer %s is a file of %s", l.DiffID, facts.DiffID)
	case l.Bytes >= 0 && l.Bytes != facts.Bytes:
		return file, damaged("layer %s was converted to %d bytes, want %d", l.DiffID, facts.Bytes, l.Bytes)
	}
	file.Bytes = facts.Bytes
	return file, s.checkFile(ctx, file.Path, facts.Bytes, facts.CRC32C)
}

// checkFile compares a file's size, and unless it is unchanged since it was last
// right, its checksum.
func (s *Store) checkFile(ctx context.Context, path string, size int64, crc uint32) error {
	fi, err := os.Stat(path)
	if err != nil {
		return damaged("layer file is missing: %v", err)
	}
	if !fi.Mode().IsRegular() || fi.Size() != size {
		return damaged("layer file %s has %d bytes, want %d", path, fi.Size(), size)
	}
	stamp := stampOf(fi)
	s.mu.Lock()
	known := s.verified[path] == stamp
	s.mu.Unlock()
	if known {
		return nil
	}
	got, _, err := checksum(ctx, path)
	if err != nil {
		return err
	}
	if got != crc {
		return damaged("layer file %s has checksum %08x, want %08x", path, got, crc)
	}
	s.mu.Lock()
	s.verified[path] = stamp
	s.mu.Unlock()
	return nil
}

func damaged(format string, args ...any) error {
	return &skerry.Error{Code: skerry.CodeUnavailable, Err: ErrDamaged,
		Message: fmt.Sprintf(format, args...) + " (pull or import the image again to repair it)"}
}

// checksum is the CRC-32C (RFC 3720, appendix B.4) and size of a file.
func checksum(ctx context.Context, path string) (uint32, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	n, err := io.Copy(h, &ctxReader{ctx, f})
	return h.Sum32(), n, err
}
