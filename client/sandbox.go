package client

import (
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"skerry.dev/skerry"
)

// CreateSandbox is a create; zero fields take the server's defaults.
type CreateSandbox struct {
	Image     string                   `json:"image,omitempty"`
	Name      string                   `json:"name,omitempty"`
	Labels    map[string]string        `json:"labels,omitempty"`
	User      string                   `json:"user,omitempty"`
	Resources *skerry.ResourcesRequest `json:"resources,omitempty"`
	Mode      skerry.Mode              `json:"mode,omitempty"`
	Env       map[string]string        `json:"env,omitempty"`

	// Persistent sandboxes can be stopped, paused and forked. Spot ones can
	// be reclaimed by the operator. Neither can be changed later.
	Persistent bool `json:"persistent,omitempty"`
	Spot       bool `json:"spot,omitempty"`
	// LifecyclePolicy has the timeouts; what it omits is the server's default.
	LifecyclePolicy *skerry.PolicyRequest `json:"lifecycle_policy,omitempty"`

	// IdempotencyKey lets a create be repeated without making a second
	// sandbox. Default: derived from Name by the server; without a name, a
	// fresh key.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// CreateTimeoutSeconds is how long the sandbox has to reach running
	// before it is deleted; 0 is the server's default, -1 its maximum.
	CreateTimeoutSeconds int `json:"create_timeout_seconds,omitempty"`
	// WaitSeconds is how long the server holds the request, at most 3.
	WaitSeconds *int `json:"wait_seconds,omitempty"`
}

// CreateSandbox creates a sandbox and returns it as it is when the server
// answers, which holds the request for up to 3 s; WaitSandbox waits for the
// rest.
func (c *Client) CreateSandbox(ctx context.Context, req CreateSandbox) (skerry.Sandbox, error) {
	if req.IdempotencyKey == "" && req.Name == "" {
		req.IdempotencyKey = freshKey()
	}
	var sb skerry.Sandbox
	// The key, or the name, makes a create that is tried again harmless.
	err := c.call(ctx, request{method: http.MethodPost, path: "/v2/sandboxes", body: req, idempotent: true}, &sb)
	return sb, err
}

// freshKey is the idempotency key of a create that has no name: trying it again
// makes no second sandbox.
func freshKey() string { return "auto-" + skerry.RandomToken(26) }

// Sandbox returns a sandbox by id or name.
func (c *Client) Sandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	var sb skerry.Sandbox
	err := c.call(ctx, request{method: http.MethodGet, path: sandboxPath(idOrName)}, &sb)
	return sb, err
}

// DeleteSandbox starts the teardown of a sandbox, in any state.
func (c *Client) DeleteSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error) {
	var sb skerry.Sandbox
	err := c.call(ctx, request{method: http.MethodDelete, path: sandboxPath(idOrName)}, &sb)
	return sb, err
}

// Console returns the console log of a sandbox; the caller closes it.
func (c *Client) Console(ctx context.Context, idOrName string) (io.ReadCloser, error) {
	resp, err := c.do(ctx, http.MethodGet, sandboxPath(idOrName)+"/console", nil, nil, "")
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Sandboxes returns one page of a list.
func (c *Client) Sandboxes(ctx context.Context, filter skerry.SandboxFilter) (skerry.SandboxPage, error) {
	query := url.Values{}
	for k, v := range filter.Labels {
		query.Add("label", k+"="+v)
	}
	if len(filter.Statuses) > 0 {
		query.Set("status", joinStatuses(filter.Statuses, ","))
	}
	if filter.Cursor != "" {
		query.Set("cursor", filter.Cursor)
	}
	if filter.Limit > 0 {
		query.Set("limit", strconv.Itoa(filter.Limit))
	}
	if filter.Deleted {
		query.Set("include_deleted", "true")
	}
	var page skerry.SandboxPage
	err := c.call(ctx, request{method: http.MethodGet, path: "/v2/sandboxes", query: query}, &page)
	return page, err
}

// AllSandboxes yields every sandbox that the filter selects, page by page, and
// ends with the first error.
func (c *Client) AllSandboxes(ctx context.Context, filter skerry.SandboxFilter) iter.Seq2[skerry.Sandbox, error] {
	return func(yield func(skerry.Sandbox, error) bool) {
		for {
			page, err := c.Sandboxes(ctx, filter)
			if err != nil {
				yield(skerry.Sandbox{}, err)
				return
			}
			for _, sb := range page.Items {
				if !yield(sb, nil) {
					return
				}
			}
			if page.NextCursor == "" || page.NextCursor == filter.Cursor {
				return
			}
			filter.Cursor = page.NextCursor
		}
	}
}

func sandboxPath(idOrName string) string { return "/v2/sandboxes/" + url.PathEscape(idOrName) }
