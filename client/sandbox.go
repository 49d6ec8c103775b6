package client

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"skerry.dev/skerry"
)

// CreateSandbox is a create; zero fields take the server's defaults.
type CreateSandbox struct {
	Image     string                   `json:"image,omitempty"`
	Name      string                   `json:"name,omitempty"`
	Labels    map[string]string        `json:"labels,omitempty"`
	User      string                   `json:"user,omitempty"`
	Resources *skerry.ResourcesRequest `json:"resources,omitempty"`
	Env       map[string]string        `json:"env,omitempty"`

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
		req.IdempotencyKey = "auto-" + skerry.RandomToken(26)
	}
	var sb skerry.Sandbox
	// The key, or the name, makes a create that is tried again harmless.
	err := c.call(ctx, request{method: http.MethodPost, path: "/v2/sandboxes", body: req, idempotent: true}, &sb)
	return sb, err
}

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
		query.Set("status", joinStatuses(filter.Statuses))
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

// WaitSandbox waits until a sandbox has one of the statuses. When it can reach
// none of them any more, or the time is over, it returns the sandbox as it is
// and an error with CodeConflict or CodeTimeout. A timeout of 0 waits until ctx
// is done.
func (c *Client) WaitSandbox(ctx context.Context, idOrName string, timeout time.Duration, until ...skerry.Status) (skerry.Sandbox, error) {
	var sb skerry.Sandbox
	query := url.Values{"wait": {joinStatuses(until)}}
	err := poll(ctx, timeout, func(ctx context.Context, hold time.Duration) (done bool, err error) {
		query.Set("timeout_seconds", formatSeconds(hold))
		sb = skerry.Sandbox{} // what an answer leaves out is not there any more
		if err := c.call(ctx, request{method: http.MethodGet, path: sandboxPath(idOrName), query: query}, &sb); err != nil {
			return false, err
		}
		if slices.Contains(until, sb.Status) {
			return true, nil
		}
		if !slices.ContainsFunc(until, func(u skerry.Status) bool { return sb.Status.CanReach(u, sb.Persistent) }) {
			return false, unreachable(sb, until)
		}
		return false, nil
	})
	if skerry.CodeOf(err) == skerry.CodeTimeout && sb.ID != "" {
		err = skerry.Errorf(skerry.CodeTimeout, "sandbox %s is still %s after %s", sb.ID, sb.Status, timeout)
	}
	return sb, err
}

func unreachable(sb skerry.Sandbox, until []skerry.Status) error {
	reason := ""
	if sb.Reason != "" {
		reason = ": " + sb.Reason
	}
	return skerry.Errorf(skerry.CodeConflict, "sandbox %s is %s and will not become %s%s", sb.ID, sb.Status, joinStatuses(until), reason)
}

// poll repeats a request that the server holds for at most MaxServerWait until
// it is done, fails, or the time is over. A server that answers early (it need
// not hold at all) is asked with growing pauses.
func poll(ctx context.Context, timeout time.Duration, try func(context.Context, time.Duration) (bool, error)) error {
	const firstPause, maxPause = 50 * time.Millisecond, time.Second
	var deadline time.Time
	if timeout > 0 {
		deadline = time.Now().Add(timeout)
	}
	pause := firstPause
	for {
		hold := skerry.MaxServerWait
		if timeout > 0 {
			hold = min(hold, max(0, time.Until(deadline)))
		}
		start := time.Now()
		if done, err := try(ctx, hold); done || err != nil {
			return err
		}
		if timeout > 0 && !time.Now().Before(deadline) {
			return skerry.Errorf(skerry.CodeTimeout, "not done after %s", timeout)
		}
		if held := time.Since(start); held >= hold/2 {
			pause = firstPause
			continue
		}
		if timeout > 0 {
			pause = min(pause, max(time.Millisecond, time.Until(deadline)))
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, maxPause)
	}
}

func sandboxPath(idOrName string) string { return "/v2/sandboxes/" + url.PathEscape(idOrName) }

func joinStatuses(statuses []skerry.Status) string {
	parts := make([]string, 0, len(statuses))
	for _, s := range statuses {
		parts = append(parts, string(s))
	}
	return strings.Join(parts, ",")
}

func formatSeconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
