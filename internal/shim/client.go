package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
)

// Client talks to the shim of one machine directory.
type Client struct {
	dir  string
	http *http.Client
}

// NewClient returns a client for the shim of dir. It connects when used.
func NewClient(dir string) *Client {
	return &Client{dir: dir, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx, dir, ControlSock)
		},
	}}}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status asks the shim how it is.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var st Status
	return st, c.call(ctx, http.MethodGet, "/status", nil, &st)
}

// WaitChange returns the status once its phase is another than known.
func (c *Client) WaitChange(ctx context.Context, known Phase) (Status, error) {
	var st Status
	return st, c.call(ctx, http.MethodGet, "/wait?phase="+url.QueryEscape(string(known)), nil, &st)
}

// Activate makes the machine a sandbox. It waits for a machine that is still
// starting. The error carries the code of the shim's.
func (c *Client) Activate(ctx context.Context, req ActivateRequest) (ActivateReply, error) {
	var rep ActivateReply
	return rep, c.call(ctx, http.MethodPost, "/activate", req, &rep)
}

// Renew makes a restored machine with a user's memory the sandbox.
func (c *Client) Renew(ctx context.Context, req RenewRequest) error {
	return c.call(ctx, http.MethodPost, "/renew", req, nil)
}

// Save saves the running sandbox.
func (c *Client) Save(ctx context.Context, req SaveRequest) (SaveReply, error) {
	var rep SaveReply
	return rep, c.call(ctx, http.MethodPost, "/save", req, &rep)
}

// Resume takes a final save back: the sandbox runs on.
func (c *Client) Resume(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/resume", struct{}{}, nil)
}

// CopyDisk copies the writable disk of the running sandbox.
func (c *Client) CopyDisk(ctx context.Context, req CopyDiskRequest) (CopyDiskReply, error) {
	var rep CopyDiskReply
	return rep, c.call(ctx, http.MethodPost, "/copy-disk", req, &rep)
}

// Shutdown ends the sandbox in order; its machine is gone afterwards.
func (c *Client) Shutdown(ctx context.Context, req ShutdownRequest) (ShutdownReply, error) {
	var rep ShutdownReply
	return rep, c.call(ctx, http.MethodPost, "/shutdown", req, &rep)
}

// Stats asks the guest how it is.
func (c *Client) Stats(ctx context.Context) (guestapi.Stats, error) {
	var st guestapi.Stats
	return st, c.call(ctx, http.MethodGet, "/stats", nil, &st)
}

// Stop kills the machine and ends the shim.
func (c *Client) Stop(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/stop", nil, nil)
}

// DialToolbox opens a connection to the toolbox of the guest agent.
func (c *Client) DialToolbox(ctx context.Context) (net.Conn, error) {
	return dial(ctx, c.dir, ToolboxSock)
}

// LastStatus reads the status a shim, perhaps a dead one, has left in dir.
func LastStatus(dir string) (Status, error) {
	var st Status
	return st, readJSON(filepath.Join(dir, StatusFile), &st)
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://shim"+path, &body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("shim: %w", err)
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	if resp.StatusCode != http.StatusOK {
		var we wireError
		if err := dec.Decode(&we); err != nil {
			return fmt.Errorf("shim: status %d", resp.StatusCode)
		}
		return &skerry.Error{Code: we.Code, Message: we.Message}
	}
	if out == nil {
		return nil
	}
	return dec.Decode(out)
}
