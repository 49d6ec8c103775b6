package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"skerry.dev/skerry"
)

// upload is a blob on its way to a registry (OCI distribution specification,
// "Pushing blobs"). run may be called again after an error.
type upload struct {
	reg   *registry
	blob  v1.Descriptor
	path  string
	mount string // a repository that may have the blob, or ""
	track *tracker

	location *url.URL // of the upload; nil until it has begun
	sent     int64    // bytes that were given to the connection since it began
	counted  int64    // bytes of the blob that were reported as progress
}

// run makes the registry have the blob. After a broken connection it asks how
// far the upload came; a registry that does not say gets the blob from the start.
func (u *upload) run(ctx context.Context) error {
	offset := int64(0)
	if u.location != nil {
		var err error
		if offset, err = u.resume(ctx); err != nil {
			u.location = nil
		}
	}
	if u.location == nil {
		offset = 0
		if done, err := u.begin(ctx); err != nil || done {
			if done {
				u.count(u.blob.Size)
			}
			return err
		}
	}
	u.count(offset)
	if offset < u.blob.Size {
		if err := u.send(ctx, offset); err != nil {
			return err
		}
	}
	return u.finish(ctx)
}

// count reports progress: the first n bytes are there, others are not.
func (u *upload) count(n int64) {
	u.track.transferred(n - u.counted)
	u.counted = n
}

// begin starts an upload unless the registry has the blob, or takes it over from
// another repository.
func (u *upload) begin(ctx context.Context) (done bool, err error) {
	resp, err := u.request(ctx, http.MethodHead, u.reg.url("blobs", u.blob.Digest.String()), nil, http.StatusOK, http.StatusNotFound)
	if err != nil {
		return false, fmt.Errorf("look for it: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		return true, nil
	}
	target := u.reg.url("blobs", "uploads") + "/"
	if u.mount != "" {
		target += "?" + url.Values{"mount": {u.blob.Digest.String()}, "from": {u.mount}}.Encode()
		u.mount = "" // once
	}
	resp, err = u.request(ctx, http.MethodPost, target, nil, http.StatusCreated, http.StatusAccepted)
	if err != nil {
		return false, fmt.Errorf("begin: %w", err)
	}
	if resp.StatusCode == http.StatusCreated {
		return true, nil
	}
	if u.location, err = resp.Location(); err != nil {
		return false, fmt.Errorf("begin: %w", err)
	}
	return false, nil
}

// resume asks how many bytes of the blob the registry has.
func (u *upload) resume(ctx context.Context) (int64, error) {
	resp, err := u.request(ctx, http.MethodGet, u.location.String(), nil, http.StatusNoContent)
	if err != nil {
		return 0, err
	}
	// "0-0" is what registries say of no byte as well as of one.
	last, ok := strings.CutPrefix(strings.TrimPrefix(resp.Header.Get("Range"), "bytes="), "0-")
	n, err := strconv.ParseInt(last, 10, 64)
	if !ok || err != nil || n <= 0 || n >= u.blob.Size {
		return 0, fmt.Errorf("range %q", resp.Header.Get("Range"))
	}
	return n + 1, u.follow(resp)
}

// follow takes over where an answer says the upload goes on.
func (u *upload) follow(resp *http.Response) error {
	next, err := resp.Location()
	if errors.Is(err, http.ErrNoLocation) {
		return nil
	}
	if err == nil {
		u.location = next
	}
	return err
}

// send transfers the blob from an offset on.
func (u *upload) send(ctx context.Context, offset int64) error {
	f, err := os.Open(u.path)
	if err != nil {
		return damaged("stored blob is missing: %v", err)
	}
	defer f.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body := &uploadBody{upload: u, r: io.NewSectionReader(f, offset, u.blob.Size-offset),
		timer: time.AfterFunc(u.reg.stall, func() { cancel(errStalled) })}
	defer body.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, u.location.String(), body)
	if err != nil {
		return err
	}
	req.ContentLength = u.blob.Size - offset
	req.Header.Set("Content-Type", "application/octet-stream")
	if offset > 0 {
		req.Header.Set("Content-Range", fmt.Sprintf("%d-%d", offset, u.blob.Size-1))
	}
	resp, err := u.reg.do(req, http.StatusAccepted, http.StatusNoContent, http.StatusCreated)
	if err != nil {
		return fmt.Errorf("send: %w", unfinished(err))
	}
	defer resp.Body.Close()
	return u.follow(resp)
}

// unfinished marks answers to a part of a blob that a new upload may do away
// with: a token that ran out on the way, an upload that the registry forgot or
// has more or fewer bytes of.
func unfinished(err error) error {
	var status *transport.Error
	if errors.As(err, &status) {
		switch status.StatusCode {
		case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestedRangeNotSatisfiable:
			return &transient{err: err}
		}
	}
	return err
}

// finish has the registry check the blob's digest and keep it.
func (u *upload) finish(ctx context.Context) error {
	to := *u.location
	query := to.Query()
	query.Set("digest", u.blob.Digest.String())
	to.RawQuery = query.Encode()
	if _, err := u.request(ctx, http.MethodPut, to.String(), nil, http.StatusCreated, http.StatusNoContent); err != nil {
		return fmt.Errorf("finish: %w", unfinished(err))
	}
	return nil
}

// request sends a request without a stream and closes the answer's body.
func (u *upload) request(ctx context.Context, method, target string, body io.Reader, statuses ...int) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	resp, err := u.reg.do(req, statuses...)
	if err != nil {
		return nil, err
	}
	return resp, resp.Body.Close()
}

// uploadBody is what of a blob is sent in one request. It cancels the request
// when the connection takes nothing for a while. A transport may go on to read
// it after the request has failed, or send it a second time: after Close it gives
// an error, one after which the upload is taken up.
type uploadBody struct {
	upload *upload
	timer  *time.Timer

	mu sync.Mutex
	r  io.Reader // guarded by mu; nil after Close
}

func (b *uploadBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.r == nil {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.r.Read(p)
	b.timer.Reset(b.upload.reg.stall)
	b.upload.sent += int64(n)
	b.upload.count(b.upload.counted + int64(n))
	return n, err
}

func (b *uploadBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.r = nil
	b.timer.Stop()
	return nil
}

// putManifest uploads a manifest, which makes the image be there.
func (r *registry) putManifest(ctx context.Context, id string, mediaType types.MediaType, raw []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, r.url("manifests", id), bytes.NewReader(raw))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", string(mediaType))
	resp, err := r.do(req, http.StatusOK, http.StatusCreated, http.StatusAccepted)
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Docker-Content-Digest"); got != "" && got != digestOf(raw).String() {
		return skerry.Errorf(skerry.CodeUnavailable, "manifest: the registry stored it as %s, want %s", got, digestOf(raw))
	}
	return nil
}
