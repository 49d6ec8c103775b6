package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"skerry.dev/skerry"
)

// Toolbox runs programs and moves files in one sandbox.
type Toolbox struct {
	client *Client
	prefix string // escaped path
}

// Toolbox returns the toolbox of a sandbox.
func (c *Client) Toolbox(id skerry.SandboxID) *Toolbox {
	return &Toolbox{client: c, prefix: "/toolbox/" + url.PathEscape(string(id))}
}

// Execute runs a command to its end and returns its output, whole unless it is
// very long (see ExecuteResponse). A command that fails is no error. One that
// timed out is, with skerry.CodeTimeout; the response then holds its output up to
// that moment.
func (t *Toolbox) Execute(ctx context.Context, req skerry.ExecuteRequest) (skerry.ExecuteResponse, error) {
	var result skerry.ExecuteResponse
	err := t.client.call(ctx, request{method: http.MethodPost, path: t.prefix + "/process/execute", body: req}, &result)
	if e, ok := errors.AsType[*Error](err); ok && e.execution != nil {
		return *e.execution, err
	}
	return result, err
}

// Stat describes a file.
func (t *Toolbox) Stat(ctx context.Context, name string) (skerry.FileInfo, error) {
	var info skerry.FileInfo
	err := t.client.call(ctx, request{method: http.MethodGet, path: t.prefix + "/files/info", query: url.Values{"path": {name}}}, &info)
	return info, err
}

// List lists a directory.
func (t *Toolbox) List(ctx context.Context, dir string) ([]skerry.FileInfo, error) {
	var infos []skerry.FileInfo
	err := t.client.call(ctx, request{method: http.MethodGet, path: t.prefix + "/files", query: url.Values{"path": {dir}}}, &infos)
	return infos, err
}

// Mkdir makes a directory and its parents. Only permission bits of mode count.
func (t *Toolbox) Mkdir(ctx context.Context, dir string, mode uint32) error {
	query := url.Values{"path": {dir}, "mode": {formatMode(mode)}}
	return t.client.call(ctx, request{method: http.MethodPost, path: t.prefix + "/files/folder", query: query}, nil)
}

// Remove deletes a file, or with recursive a directory and all in it.
func (t *Toolbox) Remove(ctx context.Context, name string, recursive bool) error {
	query := url.Values{"path": {name}, "recursive": {strconv.FormatBool(recursive)}}
	return t.client.call(ctx, request{method: http.MethodDelete, path: t.prefix + "/files", query: query}, nil)
}

// Move renames a file or directory.
func (t *Toolbox) Move(ctx context.Context, from, to string) error {
	query := url.Values{"source": {from}, "destination": {to}}
	return t.client.call(ctx, request{method: http.MethodPost, path: t.prefix + "/files/move", query: query}, nil)
}

// Chmod sets the permission bits of a file.
func (t *Toolbox) Chmod(ctx context.Context, name string, mode uint32) error {
	query := url.Values{"path": {name}, "mode": {formatMode(mode)}}
	return t.client.call(ctx, request{method: http.MethodPost, path: t.prefix + "/files/permissions", query: query}, nil)
}

// Download copies a file of the sandbox to w. An error means that w may have
// got only a part.
func (t *Toolbox) Download(ctx context.Context, name string, w io.Writer) (int64, error) {
	resp, err := t.client.do(ctx, http.MethodGet, t.prefix+"/files/download", url.Values{"path": {name}}, nil, "")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(w, resp.Body)
	if err != nil {
		return n, fmt.Errorf("download %s: %w", name, err)
	}
	return n, nil
}

// Upload writes r to a file of the sandbox, replacing it, with these permission
// bits. When it returns nil the file is there, whole; else the old one is.
func (t *Toolbox) Upload(ctx context.Context, name string, mode uint32, r io.Reader) error {
	query := url.Values{"path": {name}, "mode": {formatMode(mode)}}
	return t.put(ctx, "/files/content", query, "application/octet-stream", r)
}

// put sends a stream. An error of r is returned as it is: what the server says
// about it is a consequence.
func (t *Toolbox) put(ctx context.Context, path string, query url.Values, contentType string, r io.Reader) error {
	source := &source{r: r}
	resp, err := t.client.do(ctx, http.MethodPut, t.prefix+path, query, source, contentType)
	if resp != nil {
		drain(resp)
	}
	if readErr := source.failed(); readErr != nil {
		return fmt.Errorf("read what is to be sent: %w", readErr)
	}
	return err
}

// source remembers the error of a reader.
type source struct {
	r io.Reader

	mu  sync.Mutex
	err error // guarded by mu
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
	}
	return n, err
}

func (s *source) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func formatMode(mode uint32) string { return fmt.Sprintf("%04o", mode&0o7777) }

// Archive is a tar stream of a directory.
type Archive struct {
	io.ReadCloser
	trailer http.Header
}

// Skipped is, after the end of the stream, how many sockets, pipes and devices
// were left out.
func (a *Archive) Skipped() int {
	n, _ := strconv.Atoi(a.trailer.Get("Skerry-Skipped"))
	return n
}

// Archive opens a tar stream of what is in a directory of the sandbox, with
// names relative to it; the caller closes it. Extract unpacks it safely.
func (t *Toolbox) Archive(ctx context.Context, dir string) (*Archive, error) {
	resp, err := t.client.do(ctx, http.MethodGet, t.prefix+"/files/archive", url.Values{"path": {dir}}, nil, "")
	if err != nil {
		return nil, err
	}
	return &Archive{ReadCloser: resp.Body, trailer: resp.Trailer}, nil
}

// Unarchive unpacks a tar stream into a directory of the sandbox, which is made
// if need be.
func (t *Toolbox) Unarchive(ctx context.Context, dir string, tar io.Reader) error {
	return t.put(ctx, "/files/archive", url.Values{"path": {dir}}, "application/x-tar", tar)
}
