package skerry

import (
	"fmt"
	"slices"
)

// MaxForks is how many copies one fork can make.
const MaxForks = 64

// Resolve checks a fork and fills in Count. Errors are CodeInvalid.
func (q ForkRequest) Resolve() (ForkRequest, error) {
	if q.Count == 0 {
		q.Count = max(1, len(q.Names))
	}
	if q.Count < 1 || q.Count > MaxForks {
		return q, Invalid("count", "range", fmt.Sprintf("1 to %d", MaxForks), "must be 1 to %d, is %d", MaxForks, q.Count)
	}
	if n := len(q.Names); n != 0 && n != q.Count {
		return q, Invalid("names", "length", fmt.Sprint(q.Count), "must be one for each of the %d copies, are %d", q.Count, n)
	}
	for i, name := range q.Names {
		if err := ValidateSandboxName(name); err != nil {
			return q, inField("names", err)
		}
		if slices.Contains(q.Names[:i], name) {
			return q, Invalid("names", "unique", "", "%q is given twice", name)
		}
	}
	if err := ValidateLabels(q.Labels); err != nil {
		return q, err
	}
	if _, ok := q.Labels[NameLabel]; ok {
		return q, Invalid("labels", "reserved_key", NameLabel, "the key %q is taken by the name of each copy", NameLabel)
	}
	return q, nil
}

// Resolve checks a restore as far as the snapshot need not be known: the policy
// and Persistent also depend on that. Errors are CodeInvalid.
func (q RestoreRequest) Resolve() (RestoreRequest, error) {
	if q.Name != "" {
		if err := ValidateSandboxName(q.Name); err != nil {
			return q, err
		}
	}
	if err := ValidateLabels(q.Labels); err != nil {
		return q, err
	}
	if label, ok := q.Labels[NameLabel]; ok && label != q.Name {
		return q, Invalid("labels", "reserved_key", NameLabel, "the key %q is taken by the sandbox's name", NameLabel)
	}
	if err := ValidateEnv("env", q.Env); err != nil {
		return q, err
	}
	if q.IdempotencyKey != "" {
		if err := ValidateIdempotencyKey(q.IdempotencyKey); err != nil {
			return q, err
		}
	}
	_, err := ResolveCreateTimeout(q.CreateTimeoutSeconds)
	return q, err
}

// Resolve checks a capture and fills in the idle window of an anonymous image,
// in seconds; a named one has none. Errors are CodeInvalid.
func (q CaptureRequest) Resolve() (CaptureRequest, error) {
	const bound = "1 to 604800, or -1"
	if q.Name != "" {
		if q.IdleExpirySeconds != nil {
			return q, Invalid("idle_expiry_seconds", "excludes", "name", "is for anonymous images only; an image with a name stays until it is deleted")
		}
		return q, ValidateImageName("name", q.Name)
	}
	seconds := -1
	if q.IdleExpirySeconds != nil {
		seconds = *q.IdleExpirySeconds
	}
	switch {
	case seconds == -1:
		seconds = MaxImageIdleSeconds
	case seconds < 1 || seconds > MaxImageIdleSeconds:
		return q, Invalid("idle_expiry_seconds", "range", bound, "must be 1 to %d, or -1 for that maximum, is %d", MaxImageIdleSeconds, seconds)
	}
	q.IdleExpirySeconds = &seconds
	return q, nil
}
