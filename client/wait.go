package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"skerry.dev/skerry"
)

// DefaultWait is how long to wait for a state unless there is reason to wait
// longer ("Linux Sandboxes" page, wait for state).
const DefaultWait = time.Minute

// RequestTimeoutError is a wait whose time was over first. skerry.CodeOf is
// CodeTimeout.
type RequestTimeoutError struct {
	Timeout time.Duration
	What    string // what is not done: "sandbox sbx_… is still booting"
}

// Error says what is not done.
func (e *RequestTimeoutError) Error() string { return fmt.Sprintf("%s after %s", e.What, e.Timeout) }

// Unwrap lets skerry.CodeOf find the code.
func (e *RequestTimeoutError) Unwrap() error {
	return skerry.Errorf(skerry.CodeTimeout, "%s", e.Error())
}

// SandboxTerminalStateError is a wait that cannot succeed any more, or not by
// itself: the sandbox is being deleted, deleted, failed or lost, or none of the
// statuses can be reached. skerry.CodeOf is CodeConflict.
type SandboxTerminalStateError struct {
	Sandbox skerry.Sandbox
	Until   []skerry.Status
}

// Error says what the sandbox is, and why.
func (e *SandboxTerminalStateError) Error() string {
	text := fmt.Sprintf("sandbox %s is %s and will not become %s", e.Sandbox.ID, e.Sandbox.Status, joinStatuses(e.Until, " or "))
	if e.Sandbox.Reason != "" {
		text += ": " + e.Sandbox.Reason
	}
	return text
}

// Unwrap lets skerry.CodeOf find the code.
func (e *SandboxTerminalStateError) Unwrap() error {
	return skerry.Errorf(skerry.CodeConflict, "%s", e.Error())
}

// WaitSandbox waits until a sandbox has one of the statuses. It returns the
// sandbox as it is and a *SandboxTerminalStateError when it is deleting, deleted,
// failed or lost first, or cannot reach any of them, and a *RequestTimeoutError
// when the time is over. A timeout of 0 waits until ctx is done.
func (c *Client) WaitSandbox(ctx context.Context, idOrName string, timeout time.Duration, until ...skerry.Status) (skerry.Sandbox, error) {
	ends := skerry.WaitEnds(until...)
	return c.waitSandbox(ctx, idOrName, timeout, until, func(sb skerry.Sandbox) error {
		reachable := slices.ContainsFunc(until, func(u skerry.Status) bool { return sb.Status.CanReach(u, sb.Persistent) })
		if slices.Contains(ends, sb.Status) || !reachable {
			return &SandboxTerminalStateError{Sandbox: sb, Until: until}
		}
		return nil
	})
}

// WaitOperation waits for the end of an operation that one of the methods above
// has begun: until the sandbox has one of the statuses. When it ends otherwise,
// it returns the sandbox as it is and an error with CodeUnavailable; all else is
// as with WaitSandbox.
func (c *Client) WaitOperation(ctx context.Context, idOrName string, timeout time.Duration, until ...skerry.Status) (skerry.Sandbox, error) {
	ends := skerry.WaitEnds(until...)
	return c.waitSandbox(ctx, idOrName, timeout, until, func(sb skerry.Sandbox) error {
		switch sb.Status {
		case skerry.StatusRunning, skerry.StatusStopped, skerry.StatusPaused:
			if sb.Operation != "" {
				return nil // has not begun yet, or has another step before it
			}
			err := skerry.Errorf(skerry.CodeUnavailable, "sandbox %s is %s, not %s", sb.ID, sb.Status, joinStatuses(until, " or "))
			if sb.Reason != "" {
				err.Message += ": " + sb.Reason
			}
			return err
		}
		if slices.Contains(ends, sb.Status) {
			return &SandboxTerminalStateError{Sandbox: sb, Until: until}
		}
		return nil
	})
}

// waitSandbox asks until the sandbox has one of the statuses, or hopeless says
// that it never will.
func (c *Client) waitSandbox(ctx context.Context, idOrName string, timeout time.Duration, until []skerry.Status, hopeless func(skerry.Sandbox) error) (skerry.Sandbox, error) {
	var sb skerry.Sandbox
	query := url.Values{"wait": {joinStatuses(until, ",")}}
	err := poll(ctx, timeout, func(ctx context.Context, hold time.Duration) (done bool, err error) {
		query.Set("timeout_seconds", formatSeconds(hold))
		sb = skerry.Sandbox{} // what an answer leaves out is not there any more
		if err := c.call(ctx, request{method: http.MethodGet, path: sandboxPath(idOrName), query: query}, &sb); err != nil {
			return false, err
		}
		if slices.Contains(until, sb.Status) {
			return true, nil
		}
		return false, hopeless(sb)
	})
	return sb, stillIs(err, "sandbox", string(sb.ID), string(sb.Status))
}

// stillIs completes the error of a poll whose time was over.
func stillIs(err error, kind, id, status string) error {
	var expired *RequestTimeoutError
	if errors.As(err, &expired) && id != "" {
		expired.What = fmt.Sprintf("%s %s is still %s", kind, id, status)
	}
	return err
}

// poll repeats a request that the server holds for at most MaxServerWait until
// it is done, fails, or the time is over (*RequestTimeoutError). A server that answers early (it need
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
			return &RequestTimeoutError{Timeout: timeout, What: "not done"}
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

func joinStatuses(statuses []skerry.Status, separator string) string {
	parts := make([]string, 0, len(statuses))
	for _, s := range statuses {
		parts = append(parts, string(s))
	}
	return strings.Join(parts, separator)
}

func formatSeconds(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
