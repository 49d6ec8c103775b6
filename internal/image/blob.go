package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// source is where the blobs of an image come from.
type source interface {
	// open reads a blob from offset on, or from an earlier place at that it
	// can reach: at is offset or 0.
	open(ctx context.Context, blob v1.Descriptor, offset int64) (body io.ReadCloser, at int64, err error)
}

// errShort is a blob that ended early: its source broke off.
var errShort = errors.New("transfer ended early")

// transient marks an error after which the same request may succeed.
type transient struct {
	err   error
	after time.Duration // how long the source asks to wait; 0 if it does not say
}

func (t *transient) Error() string { return t.err.Error() }
func (t *transient) Unwrap() error { return t.err }

const (
	// maxFailures is how often in a row a download may fail without getting on.
	maxFailures = 5
	// progressBytes is what counts as getting on.
	progressBytes = 256 << 10
	maxRetryDelay = 30 * time.Second
)

// retry calls do until it succeeds, fails for good, or has failed maxFailures
// times in a row; do reports whether it got on.
func (s *Store) retry(ctx context.Context, do func() (gotOn bool, err error)) error {
	failures := 0
	for {
		gotOn, err := do()
		var again *transient
		if err == nil || !errors.As(err, &again) || ctx.Err() != nil {
			return err
		}
		if gotOn {
			failures = 0
		}
		if failures++; failures >= maxFailures {
			return fmt.Errorf("given up after %d attempts: %w", failures, err)
		}
		delay := min(max(s.opt.RetryDelay<<(failures-1), again.after), maxRetryDelay)
		s.opt.Log.Info("transfer failed, will retry", "err", err, "delay", delay)
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// ensureBlob makes a blob be in the store. What an earlier attempt left of it is
// used. The blob must be pinned.
func (s *Store) ensureBlob(ctx context.Context, src source, blob v1.Descriptor, t *tracker) error {
	unlock, err := s.busy.lock(ctx, "blob:"+blob.Digest.Hex)
	if err != nil {
		return err
	}
	defer unlock()
	dst := s.path(blobName(blob.Digest))
	if fi, err := os.Stat(dst); err == nil && fi.Size() == blob.Size {
		t.transferred(blob.Size)
		return nil
	}
	select {
	case s.downloads <- struct{}{}:
		defer func() { <-s.downloads }()
	case <-ctx.Done():
		return ctx.Err()
	}
	tmp := s.path(partialName(blob.Digest))
	resumed, err := s.fetch(ctx, src, blob, tmp, t)
	if errors.Is(err, errDigest) && resumed { // what was there before may be to blame
		t.transferred(-blob.Size)
		_, err = s.fetch(ctx, src, blob, tmp, t)
	}
	if err != nil {
		return err
	}
	return commit(tmp, dst)
}

var errDigest = errors.New("digest does not match")

// fetch completes the file at tmp. resumed tells whether it did not begin empty.
// A file whose digest is wrong is removed.
func (s *Store) fetch(ctx context.Context, src source, blob v1.Descriptor, tmp string, t *tracker) (resumed bool, err error) {
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return false, err
	}
	defer f.Close()
	d := &download{file: f, hash: sha256.New(), blob: blob, track: t}
	if err := d.takeUp(); err != nil {
		return false, err
	}
	resumed = d.have > 0
	err = s.retry(ctx, func() (bool, error) {
		before := d.have
		err := d.run(ctx, src)
		return d.have >= before+progressBytes, err
	})
	if err != nil {
		return resumed, err
	}
	if got := hex.EncodeToString(d.hash.Sum(nil)); got != blob.Digest.Hex {
		os.Remove(tmp)
		bad := badDigest("blob", blob.Digest.String(), "sha256:"+got)
		bad.Err = errDigest
		return resumed, bad
	}
	return resumed, nil
}

// download is a blob on its way into a file.
type download struct {
	file  *os.File
	hash  hash.Hash // of the first have bytes
	have  int64
	blob  v1.Descriptor
	track *tracker
}

// takeUp counts and hashes what the file already holds.
func (d *download) takeUp() error {
	fi, err := d.file.Stat()
	if err != nil {
		return err
	}
	if fi.Size() > d.blob.Size {
		return d.restart()
	}
	d.have, err = io.Copy(d.hash, d.file)
	d.track.transferred(d.have)
	return err
}

func (d *download) restart() error {
	d.track.transferred(-d.have)
	d.have = 0
	d.hash.Reset()
	if err := d.file.Truncate(0); err != nil {
		return err
	}
	_, err := d.file.Seek(0, io.SeekStart)
	return err
}

// run transfers what is missing, once.
func (d *download) run(ctx context.Context, src source) error {
	if d.have == d.blob.Size {
		return nil
	}
	body, at, err := src.open(ctx, d.blob, d.have)
	if err != nil {
		return err
	}
	defer body.Close()
	if at != d.have {
		if err := d.restart(); err != nil {
			return err
		}
	}
	// One byte more than is missing tells a blob that is too long.
	_, err = io.Copy(d, &ctxReader{ctx, io.LimitReader(body, d.blob.Size-d.have+1)})
	switch {
	case err != nil:
		return err
	case d.have > d.blob.Size:
		if err := d.restart(); err != nil {
			return err
		}
		return badDigest("blob", d.blob.Digest.String(), fmt.Sprintf("of more than %d bytes", d.blob.Size))
	case d.have < d.blob.Size:
		return &transient{err: fmt.Errorf("%w after %d of %d bytes", errShort, d.have, d.blob.Size)}
	}
	return nil
}

// Write appends to the file.
func (d *download) Write(p []byte) (int, error) {
	n, err := d.file.Write(p)
	d.hash.Write(p[:n])
	d.have += int64(n)
	d.track.transferred(int64(n))
	return n, err
}

// putBlob stores a small blob that is already in memory.
func (s *Store) putBlob(data []byte) error {
	dst := s.path(blobName(digestOf(data)))
	if have, err := os.ReadFile(dst); err == nil && digestOf(have) == digestOf(data) {
		return nil
	}
	return writeDurable(s.path("tmp"), dst, data)
}

// dropDamagedBlob removes a stored blob that is no longer what it was, and
// reports whether it did.
func (s *Store) dropDamagedBlob(ctx context.Context, blob v1.Hash) (bool, error) {
	got, _, err := hashFile(ctx, s.path(blobName(blob)))
	if err != nil {
		return false, err
	}
	if got == blob {
		return false, nil
	}
	return true, os.Remove(s.path(blobName(blob)))
}

func hashFile(ctx context.Context, path string) (v1.Hash, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return v1.Hash{}, 0, err
	}
	defer f.Close()
	return hashReader(ctx, f)
}

func hashReader(ctx context.Context, r io.Reader) (v1.Hash, int64, error) {
	h := sha256.New()
	n, err := io.Copy(h, &ctxReader{ctx, r})
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}, n, err
}

// ctxReader ends a long copy when its context does.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
