package skerry

import (
	"fmt"
	"time"
)

// Bounds of a lifecycle policy ("Linux Sandboxes" page, timeouts).
const (
	MinIdleSeconds         = 60
	PlatformTimeoutSeconds = 300
	MaxTimeoutSeconds      = 86400 // unless the server sets another maximum
	MaxIdleSeconds         = 30 * 86400
)

// TimerAction is what a timer does when it fires.
type TimerAction string

// The actions. Stop and pause are for persistent sandboxes.
const (
	ActionDelete TimerAction = "delete"
	ActionStop   TimerAction = "stop"
	ActionPause  TimerAction = "pause"
)

// LifecyclePolicy is the two timers of a sandbox. Zero seconds: no such timer.
type LifecyclePolicy struct {
	TimeoutSeconds    int         `json:"timeout_seconds,omitempty" doc:"Wall-clock budget since the sandbox last started to run, active or not."`
	OnTimeout         TimerAction `json:"on_timeout,omitempty" enum:"delete,stop,pause"`
	IdleExpirySeconds int         `json:"idle_expiry_seconds,omitempty" doc:"How long the sandbox may go without activity."`
	OnIdleTimeout     TimerAction `json:"on_idle_timeout,omitempty" enum:"delete,stop,pause"`
}

// Lifecycle is a policy with the times that follow from it.
type Lifecycle struct {
	LifecyclePolicy
	// TimeoutAt is nil until the sandbox has run, and without a timeout.
	TimeoutAt *time.Time `json:"timeout_at,omitempty"`
	// IdleTimeoutAt is nil without an idle timeout, and while the sandbox
	// does not run: time spent stopped or paused does not count.
	IdleTimeoutAt  *time.Time `json:"idle_timeout_at,omitempty"`
	LastActivityAt *time.Time `json:"last_activity_at,omitempty"`
}

// PolicyRequest is a lifecycle policy in a create or an update. A nil field was
// omitted: a create then takes the default, an update keeps what there is.
type PolicyRequest struct {
	TimeoutSeconds    *int         `json:"timeout_seconds,omitempty" doc:"1 to the server's maximum, 86400 unless it sets another. An update counts from now. Once set it cannot be cleared."`
	OnTimeout         *TimerAction `json:"on_timeout,omitempty" enum:"delete,stop,pause" doc:"Default delete. stop and pause need a persistent sandbox."`
	IdleExpirySeconds *int         `json:"idle_expiry_seconds,omitempty" doc:"Raised to at least 60; 0 clears the idle timeout."`
	OnIdleTimeout     *TimerAction `json:"on_idle_timeout,omitempty" enum:"delete,stop,pause" doc:"Required with an idle timeout. stop and pause need a persistent sandbox."`
}

// PolicyDefaults are what the server's operator has set ("Linux Sandboxes"
// page, timeout: project, then platform default).
type PolicyDefaults struct {
	TimeoutSeconds    int         // of the project; 0 for none
	OnTimeout         TimerAction // "" is delete, as any is for ephemeral sandboxes
	IdleExpirySeconds int         // of the project; 0 for none
	OnIdleTimeout     TimerAction // as OnTimeout
	PlatformTimeout   bool        // PlatformTimeoutSeconds where nothing else is set
	MaxTimeoutSeconds int         // 0 is MaxTimeoutSeconds
}

// Resolve applies the defaults to the policy of a create. Errors are CodeInvalid
// and name the field, the rule and the bound.
func (q PolicyRequest) Resolve(d PolicyDefaults, persistent bool) (LifecyclePolicy, error) {
	p := LifecyclePolicy{TimeoutSeconds: d.TimeoutSeconds, OnTimeout: d.OnTimeout,
		IdleExpirySeconds: d.IdleExpirySeconds, OnIdleTimeout: d.OnIdleTimeout}
	if p.TimeoutSeconds == 0 && d.PlatformTimeout {
		p.TimeoutSeconds = PlatformTimeoutSeconds
	}
	if p.IdleExpirySeconds > 0 && p.OnIdleTimeout == "" {
		p.OnIdleTimeout = ActionDelete
	}
	if !persistent { // what the operator wants of persistent ones cannot be had here
		p.OnTimeout, p.OnIdleTimeout = forEphemeral(p.OnTimeout), forEphemeral(p.OnIdleTimeout)
	}
	// A default's action belongs to the default, not to what the caller sets.
	if q.TimeoutSeconds != nil {
		p.OnTimeout = ""
	}
	if q.IdleExpirySeconds != nil || p.IdleExpirySeconds == 0 {
		p.OnIdleTimeout = ""
	}
	return q.apply(p, d, persistent)
}

// forEphemeral is the action that an ephemeral sandbox has in place of a default.
func forEphemeral(a TimerAction) TimerAction {
	if a == "" {
		return ""
	}
	return ActionDelete
}

// Update applies an update to a policy: omitted fields keep their values.
// Errors are as of Resolve.
func (q PolicyRequest) Update(p LifecyclePolicy, d PolicyDefaults, persistent bool) (LifecyclePolicy, error) {
	return q.apply(p, d, persistent)
}

func (q PolicyRequest) apply(p LifecyclePolicy, d PolicyDefaults, persistent bool) (LifecyclePolicy, error) {
	if q.TimeoutSeconds != nil {
		limit := d.MaxTimeoutSeconds
		if limit == 0 {
			limit = MaxTimeoutSeconds
		}
		if n := *q.TimeoutSeconds; n < 1 || n > limit {
			return p, Invalid("lifecycle_policy.timeout_seconds", "range", fmt.Sprintf("1 to %d", limit), "must be 1 to %d and cannot be cleared, is %d", limit, n)
		}
		p.TimeoutSeconds = *q.TimeoutSeconds
	}
	if q.OnTimeout != nil {
		if p.TimeoutSeconds == 0 {
			return p, Invalid("lifecycle_policy.on_timeout", "requires", "timeout_seconds", "needs timeout_seconds")
		}
		p.OnTimeout = *q.OnTimeout
	}
	if q.IdleExpirySeconds != nil {
		switch n := *q.IdleExpirySeconds; {
		case n < 0 || n > MaxIdleSeconds:
			return p, Invalid("lifecycle_policy.idle_expiry_seconds", "range", fmt.Sprintf("0 to %d", MaxIdleSeconds), "must be 0 to %d, is %d", MaxIdleSeconds, n)
		case n == 0:
			p.IdleExpirySeconds, p.OnIdleTimeout = 0, ""
		default:
			p.IdleExpirySeconds = max(n, MinIdleSeconds)
		}
	}
	if q.OnIdleTimeout != nil {
		p.OnIdleTimeout = *q.OnIdleTimeout
	}
	return p.settle(persistent)
}

// settle fills and checks what depends on several fields.
func (p LifecyclePolicy) settle(persistent bool) (LifecyclePolicy, error) {
	if p.TimeoutSeconds > 0 && p.OnTimeout == "" {
		p.OnTimeout = ActionDelete
	}
	if p.TimeoutSeconds == 0 {
		p.OnTimeout = ""
	}
	switch {
	case p.IdleExpirySeconds > 0 && p.OnIdleTimeout == "":
		return p, Invalid("lifecycle_policy.on_idle_timeout", "required", "delete, stop or pause", "is required with an idle timeout: delete, or for a persistent sandbox stop or pause")
	case p.IdleExpirySeconds == 0 && p.OnIdleTimeout != "":
		return p, Invalid("lifecycle_policy.on_idle_timeout", "requires", "idle_expiry_seconds", "needs idle_expiry_seconds")
	}
	for _, a := range []struct {
		field  string
		action TimerAction
	}{{"on_timeout", p.OnTimeout}, {"on_idle_timeout", p.OnIdleTimeout}} {
		switch a.action {
		case "", ActionDelete:
		case ActionStop, ActionPause:
			if !persistent {
				return p, Invalid("lifecycle_policy."+a.field, "one_of", "delete", "%s needs a persistent sandbox; an ephemeral one can only be deleted", a.action)
			}
		default:
			return p, Invalid("lifecycle_policy."+a.field, "one_of", "delete, stop, pause", "%q is not delete, stop or pause", a.action)
		}
	}
	return p, nil
}
