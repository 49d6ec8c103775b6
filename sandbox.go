package skerry

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Bounds of the fields of a create.
const (
	MaxNameLength       = 128
	MaxLabels           = 64
	MaxLabelKeyLength   = 128
	MaxLabelValueLength = 1024
	MaxEnvBytes         = 1 << 20   // names and values together
	MaxEnvValueBytes    = 128 << 10 // Linux: MAX_ARG_STRLEN, execve(2)
	MaxUserLength       = 64
	MaxIdempotencyKey   = 255

	DefaultCreateTimeout = 3600 * time.Second
	MaxCreateTimeout     = 86400 * time.Second
	DefaultWaitSeconds   = 60
	// MaxServerWait is how long the server holds a create or a wait request.
	MaxServerWait = 3 * time.Second

	// NameLabel is the label that repeats the name.
	NameLabel = "name"
)

// Sandbox is an isolated Linux machine.
type Sandbox struct {
	ID        SandboxID         `json:"id"`
	Name      string            `json:"name"`
	Status    Status            `json:"status"`
	State     State             `json:"state"`
	Reason    string            `json:"reason,omitempty" doc:"Why the sandbox failed, stands still, or an operation on it did not work."`
	Image     string            `json:"image" doc:"Name or id of the image as asked for."`
	ImageID   ImageID           `json:"image_id"`
	Labels    map[string]string `json:"labels"`
	User      string            `json:"user" doc:"Default OS user of commands."`
	Env       map[string]string `json:"env"`
	Resources Resources         `json:"resources"`
	// Persistent sandboxes can be stopped, paused and forked.
	Persistent bool      `json:"persistent"`
	Spot       bool      `json:"spot"`
	Lifecycle  Lifecycle `json:"lifecycle"`
	// Operation is what is under way: the Action, while no other may begin.
	Operation Action `json:"operation,omitempty" doc:"What is under way; other operations are refused until it is over."`

	// At most one of ForkedFrom and Snapshot is set: where memory and disk
	// came from.
	ForkedFrom SandboxID  `json:"forked_from,omitempty"`
	Snapshot   SnapshotID `json:"snapshot_id,omitempty"`

	Runner  RunnerID  `json:"runner_id,omitempty"`
	Machine MachineID `json:"machine_id,omitempty"`

	// Unenforced lists limits that this host cannot enforce, in wire
	// spelling ("resources.cpu").
	Unenforced []string `json:"unenforced,omitempty"`

	ToolboxURL     string     `json:"toolbox_url,omitempty"`
	CreatedAt      time.Time  `json:"created_at"`
	UpdatedAt      time.Time  `json:"updated_at"`
	StartedAt      *time.Time `json:"started_at,omitempty" doc:"When it last started to run."`
	SpotEvictedAt  *time.Time `json:"spot_evicted_at,omitempty" doc:"When its capacity was reclaimed."`
	CreateDeadline time.Time  `json:"create_deadline"`
}

// SandboxRequest is a validated create, with defaults applied.
type SandboxRequest struct {
	Image          string
	Name           string // generated when it was omitted
	Labels         map[string]string
	User           string
	Resources      Resources
	Env            map[string]string
	IdempotencyKey string
	CreateTimeout  time.Duration
	Persistent     bool
	Spot           bool
	Policy         LifecyclePolicy
	// NamedByCaller is true when the name was given, so that the
	// idempotency key is derived from it.
	NamedByCaller bool
}

var (
	namePattern = pattern(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	envPattern  = pattern(`^[A-Za-z_][A-Za-z0-9_]*$`)
	userPattern = pattern(`^[A-Za-z0-9_][A-Za-z0-9_.-]*\$?$`)
)

// pattern compiles at the first use: shims, whose start is waited for, need none.
func pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// reservedPrefixes are refused in names of images and snapshots ("Linux
// Sandboxes" page, memory snapshot, parameter "name").
var reservedPrefixes = []string{"sbx_", "vol_", "fn_", "img_", "snap_", "snap-", "build-", "refs", "by-digest", "prj-", "glb-"}

// ValidateSandboxName checks the display name of a sandbox. An identifier
// prefix is refused, so that a name never looks like an id.
func ValidateSandboxName(name string) error {
	if err := validateName("name", name); err != nil {
		return err
	}
	if strings.HasPrefix(name, sandboxPrefix) {
		return Invalid("name", "reserved_prefix", sandboxPrefix, "cannot start with the reserved prefix %q", sandboxPrefix)
	}
	return nil
}

// ValidateImageName checks a name in the name space that images and snapshots
// share. Image names may be references with "/", ":" and "@" as registries
// write them.
func ValidateImageName(field, name string) error {
	if name == "" || len(name) > 255 {
		return Invalid(field, "length", "1 to 255 characters", "must be 1 to 255 characters, is %d", len(name))
	}
	for _, p := range reservedPrefixes {
		if strings.HasPrefix(name, p) {
			return Invalid(field, "reserved_prefix", p, "cannot start with the reserved prefix %q", p)
		}
	}
	if name[0] == '.' || strings.Trim(name, nameCharacters+"/:@") != "" {
		return Invalid(field, "pattern", "letters, digits and . _ - / : @", "may only hold letters, digits and . _ - / : @, and cannot start with a dot")
	}
	return nil
}

const nameCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

func validateName(field, name string) error {
	if name == "" || len(name) > MaxNameLength {
		return Invalid(field, "length", fmt.Sprintf("1 to %d characters", MaxNameLength), "must be 1 to %d characters, is %d", MaxNameLength, len(name))
	}
	if !namePattern().MatchString(name) {
		return Invalid(field, "pattern", namePattern().String(), "may only hold letters, digits, '.', '_' and '-', and cannot start with '.' or '-'")
	}
	return nil
}

// ValidateLabels checks labels as given by a caller.
func ValidateLabels(labels map[string]string) error {
	if len(labels) > MaxLabels {
		return Invalid("labels", "max_items", fmt.Sprint(MaxLabels), "at most %d labels, are %d", MaxLabels, len(labels))
	}
	for k, v := range labels {
		if k == "" || len(k) > MaxLabelKeyLength || !utf8.ValidString(k) || strings.ContainsAny(k, "=,\x00\n") {
			return Invalid("labels", "key", fmt.Sprintf("1 to %d characters without '=' and ','", MaxLabelKeyLength), "key %q must be 1 to %d characters without '=', ',' and line breaks", k, MaxLabelKeyLength)
		}
		if len(v) > MaxLabelValueLength || !utf8.ValidString(v) {
			return Invalid("labels", "value_length", fmt.Sprint(MaxLabelValueLength), "value of %q must be at most %d bytes of UTF-8, is %d", k, MaxLabelValueLength, len(v))
		}
	}
	return nil
}

// ValidateEnv checks environment variables. Values may hold any bytes but NUL.
func ValidateEnv(field string, env map[string]string) error {
	total := 0
	for k, v := range env {
		if !envPattern().MatchString(k) {
			return Invalid(field, "name_pattern", envPattern().String(), "%q is not a name for an environment variable", k)
		}
		if strings.IndexByte(v, 0) >= 0 {
			return Invalid(field, "no_nul", "no NUL byte", "value of %s holds a NUL byte", k)
		}
		if len(k)+len(v)+2 > MaxEnvValueBytes {
			return Invalid(field, "max_bytes", fmt.Sprintf("%d bytes each", MaxEnvValueBytes), "%s is %d bytes, a variable can have at most %d with its name", k, len(v), MaxEnvValueBytes)
		}
		total += len(k) + len(v) + 2
	}
	if total > MaxEnvBytes {
		return Invalid(field, "max_total_bytes", fmt.Sprintf("%d bytes", MaxEnvBytes), "all variables together are %d bytes, at most %d are allowed", total, MaxEnvBytes)
	}
	return nil
}

// ValidateUser checks the name (or number) of an OS user.
func ValidateUser(user string) error {
	if len(user) > MaxUserLength || !userPattern().MatchString(user) {
		return Invalid("user", "pattern", userPattern().String(), "%q is not a user name of 1 to %d characters", user, MaxUserLength)
	}
	return nil
}

// ValidateIdempotencyKey checks the key of a create or a restore.
func ValidateIdempotencyKey(key string) error {
	if key == "" || len(key) > MaxIdempotencyKey || strings.ContainsFunc(key, func(r rune) bool { return r < '!' || r > '~' }) {
		return Invalid("idempotency_key", "pattern", "1 to 255 printable ASCII characters", "must be 1 to %d printable ASCII characters without spaces", MaxIdempotencyKey)
	}
	return nil
}

// ResolveCreateTimeout applies default, maximum and the meaning of -1 (the
// maximum) to create_timeout_seconds.
func ResolveCreateTimeout(seconds *int) (time.Duration, error) {
	switch {
	case seconds == nil:
		return DefaultCreateTimeout, nil
	case *seconds == -1:
		return MaxCreateTimeout, nil
	case *seconds < 1 || *seconds > 86400:
		return 0, Invalid("create_timeout_seconds", "range", "1 to 86400, or -1", "must be 1 to 86400, or -1 for the maximum, is %d", *seconds)
	}
	return time.Duration(*seconds) * time.Second, nil
}

// ResolveWait bounds wait_seconds to what the server holds, MaxServerWait.
func ResolveWait(seconds *int) (time.Duration, error) {
	if seconds == nil {
		return min(DefaultWaitSeconds*time.Second, MaxServerWait), nil
	}
	if *seconds < 0 {
		return 0, Invalid("wait_seconds", "min", "0", "must not be negative, is %d", *seconds)
	}
	// Bounded before it is multiplied, which could overflow.
	return time.Duration(min(*seconds, int(MaxServerWait/time.Second))) * time.Second, nil
}
