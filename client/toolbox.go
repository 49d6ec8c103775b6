package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"strconv"

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
// very long (see ExecuteResponse). A command that fails is no error.
func (t *Toolbox) Execute(ctx context.Context, req skerry.ExecuteRequest) (skerry.ExecuteResponse, error) {
	var result skerry.ExecuteResponse
	err := t.client.call(ctx, request{method: http.MethodPost, path: t.prefix + "/process/execute", body: req}, &result)
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
	query := url.Values{"path": {dir}, "mode": {fmt.Sprintf("%04o", mode&0o7777)}}
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
	query := url.Values{"path": {name}, "mode": {fmt.Sprintf("%04o", mode&0o7777)}}
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

// Upload writes r to a file of the sandbox, replacing it. When it returns nil
// the file is there, whole.
func (t *Toolbox) Upload(ctx context.Context, name string, r io.Reader) error {
	pr, pw := io.Pipe()
	form := multipart.NewWriter(pw)
	sent := make(chan error, 1)
	go func() {
		part, err := form.CreateFormFile("file", path.Base(name))
		if err == nil {
			_, err = io.Copy(part, r)
		}
		if err == nil {
			err = form.Close()
		}
		pw.CloseWithError(err)
		sent <- err
	}()
	resp, err := t.client.do(ctx, http.MethodPost, t.prefix+"/files/upload-v2", url.Values{"path": {name}}, pr, form.FormDataContentType())
	pr.CloseWithError(errUploadEnded)
	if readErr := <-sent; readErr != nil && !errors.Is(readErr, errUploadEnded) {
		err = fmt.Errorf("upload %s: %w", name, readErr) // the cause of what the server says
	}
	if resp != nil {
		drain(resp)
	}
	return err
}

// errUploadEnded stops the reading when the server wants no more.
var errUploadEnded = errors.New("the upload ended")

// Archive opens a tar stream of what is in a directory of the sandbox, with
// names relative to it; the caller closes it. Extract unpacks it safely.
func (t *Toolbox) Archive(ctx context.Context, dir string) (io.ReadCloser, error) {
	resp, err := t.client.do(ctx, http.MethodGet, t.prefix+"/files/archive", url.Values{"path": {dir}}, nil, "")
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Unarchive unpacks a tar stream into a directory of the sandbox, which is made
// if need be.
func (t *Toolbox) Unarchive(ctx context.Context, dir string, tar io.Reader) error {
	resp, err := t.client.do(ctx, http.MethodPost, t.prefix+"/files/archive", url.Values{"path": {dir}}, tar, "application/x-tar")
	if err != nil {
		return err
	}
	drain(resp)
	return nil
}
