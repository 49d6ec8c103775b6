package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"skerry.dev/skerry"
)

// PullImage starts to pull an image from a registry.
func (c *Client) PullImage(ctx context.Context, req skerry.PullRequest) (skerry.Image, error) {
	var img skerry.Image
	err := c.call(ctx, request{method: http.MethodPost, path: "/v2/images/pull", body: req}, &img)
	return img, err
}

// ImportImage uploads an archive; the server then registers it in the
// background. Path of req is not used.
func (c *Client) ImportImage(ctx context.Context, req skerry.ImportRequest, archive io.Reader) (skerry.Image, error) {
	query := url.Values{"name": {req.Name}}
	if req.Kind != "" {
		query.Set("kind", req.Kind)
	}
	if req.Tag != "" {
		query.Set("tag", req.Tag)
	}
	if req.Default {
		query.Set("default", "true")
	}
	if req.Warm {
		query.Set("warm", "true")
	}
	var img skerry.Image
	resp, err := c.do(ctx, http.MethodPost, "/v2/images/import", query, archive, "application/octet-stream")
	if err != nil {
		return img, err
	}
	defer drain(resp)
	return img, decode(resp, &img)
}

// BuildDefaultImage starts to build the default image.
func (c *Client) BuildDefaultImage(ctx context.Context) (skerry.Image, error) {
	var img skerry.Image
	err := c.call(ctx, request{method: http.MethodPost, path: "/v2/images/default"}, &img)
	return img, err
}

// Image returns an image by id or name.
func (c *Client) Image(ctx context.Context, idOrName string) (skerry.Image, error) {
	var img skerry.Image
	err := c.call(ctx, request{method: http.MethodGet, path: imagePath(idOrName)}, &img)
	return img, err
}

// Images lists the images.
func (c *Client) Images(ctx context.Context) ([]skerry.Image, error) {
	var list struct {
		Items []skerry.Image `json:"items"`
	}
	err := c.call(ctx, request{method: http.MethodGet, path: "/v2/images"}, &list)
	return list.Items, err
}

// WaitImage waits until an image is ready and calls progress, if not nil, with
// every answer on the way. An image that failed is an error with CodeConflict.
// The end of the time is a *RequestTimeoutError; a timeout of 0 waits until ctx
// is done.
func (c *Client) WaitImage(ctx context.Context, idOrName string, timeout time.Duration, progress func(skerry.Image)) (skerry.Image, error) {
	var img skerry.Image
	query := url.Values{"wait": {"ready"}}
	err := poll(ctx, timeout, func(ctx context.Context, hold time.Duration) (bool, error) {
		if progress != nil {
			hold = min(hold, progressInterval)
		}
		query.Set("timeout_seconds", formatSeconds(hold))
		img = skerry.Image{} // what an answer leaves out is over, like the progress
		if err := c.call(ctx, request{method: http.MethodGet, path: imagePath(idOrName), query: query}, &img); err != nil {
			return false, err
		}
		if progress != nil {
			progress(img)
		}
		if img.Status == skerry.ImageFailed {
			return false, skerry.Errorf(skerry.CodeConflict, "image %s failed: %s", img.Name, img.Error)
		}
		return img.Status == skerry.ImageReady, nil
	})
	return img, stillIs(err, "image", string(img.ID), string(img.Status))
}

// CaptureImage starts to capture the file system of a sandbox; WaitImage waits
// for the end.
func (c *Client) CaptureImage(ctx context.Context, sandbox string, req skerry.CaptureRequest) (skerry.Image, error) {
	var img skerry.Image
	err := c.call(ctx, request{method: http.MethodPost, path: sandboxPath(sandbox) + "/capture", body: req}, &img)
	return img, err
}

// PushImage starts to push an image to a registry.
func (c *Client) PushImage(ctx context.Context, idOrName string, req skerry.PushRequest) (skerry.Image, error) {
	var img skerry.Image
	err := c.call(ctx, request{method: http.MethodPost, path: imagePath(idOrName) + "/push", body: req}, &img)
	return img, err
}

// WaitPush waits until the last push of an image is over and calls progress, if
// not nil, with every answer on the way. A push that failed is an error with
// CodeConflict; all else is as with WaitImage.
func (c *Client) WaitPush(ctx context.Context, idOrName string, timeout time.Duration, progress func(skerry.Image)) (skerry.Image, error) {
	var img skerry.Image
	err := poll(ctx, timeout, func(ctx context.Context, _ time.Duration) (bool, error) {
		var err error
		if img, err = c.Image(ctx, idOrName); err != nil {
			return false, err
		}
		if progress != nil {
			progress(img)
		}
		switch {
		case img.Push == nil:
			return false, skerry.Errorf(skerry.CodeConflict, "image %s was never pushed", img.Name)
		case img.Push.Status == skerry.ImageFailed:
			return false, skerry.Errorf(skerry.CodeConflict, "push of image %s to %s failed: %s", img.Name, img.Push.Reference, img.Push.Error)
		}
		return img.Push.Status == skerry.ImageReady, nil
	})
	return img, stillIs(err, "image", string(img.ID), "being pushed")
}

// progressInterval is how often a wait with progress asks.
const progressInterval = 300 * time.Millisecond

// DeleteImage deletes an image.
func (c *Client) DeleteImage(ctx context.Context, idOrName string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: imagePath(idOrName)}, nil)
}

// Runners lists the hosts.
func (c *Client) Runners(ctx context.Context) ([]skerry.Runner, error) {
	var list struct {
		Items []skerry.Runner `json:"items"`
	}
	err := c.call(ctx, request{method: http.MethodGet, path: "/v2/runners"}, &list)
	return list.Items, err
}

// ServerVersion returns the version of the server.
func (c *Client) ServerVersion(ctx context.Context) (string, error) {
	var v struct {
		Version string `json:"version"`
	}
	err := c.call(ctx, request{method: http.MethodGet, path: "/v2/version"}, &v)
	return v.Version, err
}

func imagePath(idOrName string) string { return "/v2/images/" + url.PathEscape(idOrName) }
