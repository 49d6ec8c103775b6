package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"skerry.dev/skerry"
)

// seconds is a flag for a time: "60" is 60 seconds, "1m30s" what it says.
type seconds time.Duration

// Set implements pflag.Value.
func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if n, numErr := strconv.ParseFloat(text, 64); numErr == nil && n < 1e9 { // "0" is both
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not a time like 60 (seconds) or 1m30s", text)
	}
	*s = seconds(d)
	return nil
}

// String implements pflag.Value.
func (s *seconds) String() string { return time.Duration(*s).String() }

// Type implements pflag.Value.
func (s *seconds) Type() string { return "seconds" }

// operationTimeout is how long to wait for the end of an operation: memory may
// have to be written to a slow disk.
const operationTimeout = 5 * time.Minute

// waiting is the part of commands that begin something and wait for its end.
type waiting struct {
	no      bool
	timeout seconds
}

func (w *waiting) flags(f *pflag.FlagSet, timeout time.Duration) {
	w.timeout = seconds(timeout)
	f.BoolVar(&w.no, "no-wait", false, "return when it has begun")
	f.Var(&w.timeout, "timeout", "how long to wait for the end; 0 is without limit")
}

// limit is the timeout for a wait.
func (w *waiting) limit() time.Duration { return time.Duration(w.timeout) }

// policy is the part of create and policy that says when timers fire.
type policy struct {
	timeout, idle     int
	onTimeout, onIdle string
}

func (p *policy) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&p.timeout, "timeout-seconds", 0, "how long it may live once it runs, active or not; a change counts from now")
	f.StringVar(&p.onTimeout, "on-timeout", "", "what happens then: delete, or for persistent sandboxes stop or pause (default delete)")
	f.IntVar(&p.idle, "idle-expiry-seconds", 0, "how long it may go without activity, at least 60; 0 is without limit")
	f.StringVar(&p.onIdle, "on-idle-timeout", "", "what happens then, required: delete, or for persistent sandboxes stop or pause")
	completeTimerActions(cmd, "on-timeout")
	completeTimerActions(cmd, "on-idle-timeout")
}

// request holds the flags that were given, nil for none.
func (p *policy) request(f *pflag.FlagSet) (*skerry.PolicyRequest, error) {
	var req skerry.PolicyRequest
	if f.Changed("timeout-seconds") {
		req.TimeoutSeconds = &p.timeout
	}
	if f.Changed("on-timeout") {
		req.OnTimeout = (*skerry.TimerAction)(&p.onTimeout)
	}
	if f.Changed("idle-expiry-seconds") {
		// The API raises what is too small; here a person can still
		// correct it ("Linux Sandboxes" page, idle timeout).
		if p.idle != 0 && p.idle < skerry.MinIdleSeconds {
			return nil, usageError{fmt.Errorf("--idle-expiry-seconds must be at least %d, or 0 for no idle timeout, is %d", skerry.MinIdleSeconds, p.idle)}
		}
		req.IdleExpirySeconds = &p.idle
	}
	if f.Changed("on-idle-timeout") {
		req.OnIdleTimeout = (*skerry.TimerAction)(&p.onIdle)
	}
	if req == (skerry.PolicyRequest{}) {
		return nil, nil
	}
	return &req, nil
}
