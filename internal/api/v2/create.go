package v2

import (
	"context"
	"maps"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"skerry.dev/skerry"
)

// createBody is the body of a create. Fields are pointers where an omitted one
// differs from an empty one; null means omitted.
type createBody struct {
	Image     *string                  `json:"image,omitempty" doc:"Registered image, by name or img_ id. Default: the image whose default field is true."`
	Name      *string                  `json:"name,omitempty" doc:"Display name, 1 to 128 letters, digits, '.', '_' and '-', not starting with '.', '-' or sbx_. Generated when omitted. Also stored as the label name."`
	Labels    map[string]string        `json:"labels,omitempty" doc:"At most 64; keys of 1 to 128 characters without '=' and ',', values of at most 1024 bytes."`
	User      *string                  `json:"user,omitempty" doc:"Default OS user of commands. Default: the image's USER; root if it sets none, sets root, or sets a number."`
	Resources *skerry.ResourcesRequest `json:"resources,omitempty" doc:"Size of the machine."`
	Mode      *skerry.Mode             `json:"mode,omitempty" enum:"burstable,dedicated" doc:"burstable, the default: guaranteed is what resources asks for, and what is idle may be used up to its limits. dedicated: exactly what resources asks for."`
	Env       map[string]string        `json:"env,omitempty" doc:"Environment variables inside the sandbox, 1 MiB together."`

	Persistent      *bool                 `json:"persistent,omitempty" doc:"Keep the disk when the machine ends: the sandbox can be stopped, started, paused and forked. It cannot be changed later."`
	Spot            *bool                 `json:"spot,omitempty" doc:"Capacity that the operator can reclaim at any time: a persistent sandbox is then paused, another deleted. It cannot be changed later."`
	LifecyclePolicy *skerry.PolicyRequest `json:"lifecycle_policy,omitempty" doc:"Timeout and idle timeout; what is omitted takes the server's defaults."`

	IdempotencyKey       *string `json:"idempotency_key,omitempty" doc:"1 to 255 printable ASCII characters. A create that is retried with the same key returns the same sandbox. Default: derived from name, if that is given."`
	CreateTimeoutSeconds *int    `json:"create_timeout_seconds,omitempty" doc:"Seconds to reach running before the sandbox is deleted, 1 to 86400, or -1 for the maximum. Default 3600."`
	WaitSeconds          *int    `json:"wait_seconds,omitempty" doc:"Seconds to wait for the start; the server holds the request for at most 3. 0 returns at once. Default 60."`

	Region  *string `json:"region,omitempty" doc:"Only this server's own region."`
	CPUArch *string `json:"cpu_arch,omitempty" enum:"amd64,arm64" doc:"Only the architecture of this server's runners."`

	UnsupportedFields
}

// UnsupportedFields are the parameters of the "Linux Sandboxes" and "Sandboxes"
// pages that this version knows by name only. Any value that would have an
// effect is refused.
type UnsupportedFields struct {
	Ports         any `json:"ports,omitempty" doc:"Inbound ports."`
	Volumes       any `json:"volumes,omitempty" doc:"Volumes to attach."`
	Secrets       any `json:"secrets,omitempty" doc:"Project secrets, by name."`
	NetworkPolicy any `json:"network_policy,omitempty" doc:"Outbound network policy."`
	CPUType       any `json:"cpu_type,omitempty" doc:"CPU hardware tier."`
	Snapshot      any `json:"snapshot,omitempty" doc:"Memory snapshot to restore from: use POST /v2/snapshots/{id}/restore."`
	GPU           any `json:"gpu,omitempty" doc:"Graphics processors."`
}

// TransformSchema marks the unsupported fields in the OpenAPI document.
func (createBody) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	for _, name := range unsupportedNames() {
		p := s.Properties[name]
		p.Description = strings.TrimSuffix(p.Description, ".") + ". Not supported by this version: a value other than null, false or empty is refused with code unsupported."
		p.Extensions = map[string]any{"x-skerry-unsupported": true}
	}
	return s
}

func unsupportedNames() []string {
	var names []string
	for f := range reflect.TypeFor[UnsupportedFields]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// refuse returns an error for the first field that asks for something.
func (u UnsupportedFields) refuse() error {
	v := reflect.ValueOf(u)
	for i, name := range unsupportedNames() {
		if !asksNothing(v.Field(i).Interface()) {
			return skerry.Unsupported(name, "is not supported by this version of the server")
		}
	}
	return nil
}

// asksNothing reports whether a JSON value is null, false or empty.
func asksNothing(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// resolveCreate checks a create and applies the defaults of the "Linux
// Sandboxes" page. The duration is how long to hold the request.
func (s *server) resolveCreate(ctx context.Context, b *createBody) (req skerry.SandboxRequest, wait time.Duration, err error) {
	req.Persistent, req.Spot = isTrue(b.Persistent), isTrue(b.Spot)
	checks := []func() error{
		b.refuse,
		func() error { return s.checkPlacement(ctx, b) },
		func() error { return b.resolveNames(&req) },
		func() error { return skerry.ValidateEnv("env", b.Env) },
		func() error { req.Resources, err = b.resolveResources(); return err },
		func() error {
			req.CreateTimeout, err = skerry.ResolveCreateTimeout(b.CreateTimeoutSeconds)
			return err
		},
		func() error {
			var q skerry.PolicyRequest
			if b.LifecyclePolicy != nil {
				q = *b.LifecyclePolicy
			}
			req.Policy, err = q.Resolve(s.Policy, req.Persistent)
			return err
		},
		func() error { wait, err = skerry.ResolveWait(b.WaitSeconds); return err },
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return skerry.SandboxRequest{}, 0, err
		}
	}
	req.Env = b.Env
	return req, wait, nil
}

func (b *createBody) resolveResources() (skerry.Resources, error) {
	var asked skerry.Mode
	if b.Mode != nil {
		asked = *b.Mode
	}
	mode, err := skerry.ResolveMode(asked)
	if err != nil {
		return skerry.Resources{}, err
	}
	var q skerry.ResourcesRequest
	if b.Resources != nil {
		q = *b.Resources
	}
	return q.Resolve(mode)
}

func isTrue(b *bool) bool { return b != nil && *b }

// resolveNames checks and fills what names the sandbox and what it is made of.
func (b *createBody) resolveNames(req *skerry.SandboxRequest) error {
	if b.Image != nil {
		if err := validateImageReference("image", *b.Image); err != nil {
			return err
		}
		req.Image = *b.Image
	}
	if req.NamedByCaller = b.Name != nil; req.NamedByCaller {
		if err := skerry.ValidateSandboxName(*b.Name); err != nil {
			return err
		}
		req.Name = *b.Name
	} else {
		req.Name = "sandbox-" + skerry.RandomToken(12)
	}
	if err := skerry.ValidateLabels(b.Labels); err != nil {
		return err
	}
	if label, ok := b.Labels[skerry.NameLabel]; ok && label != req.Name {
		return skerry.Invalid("labels", "reserved_key", skerry.NameLabel, "the key %q is taken by the sandbox's name", skerry.NameLabel)
	}
	req.Labels = map[string]string{skerry.NameLabel: req.Name}
	maps.Copy(req.Labels, b.Labels)
	if b.User != nil {
		if err := skerry.ValidateUser(*b.User); err != nil {
			return err
		}
		req.User = *b.User
	}
	if b.IdempotencyKey != nil {
		if err := skerry.ValidateIdempotencyKey(*b.IdempotencyKey); err != nil {
			return err
		}
		req.IdempotencyKey = *b.IdempotencyKey
	}
	return nil
}

// validateImageReference accepts what an image can be found by: its name or
// its id.
func validateImageReference(field, ref string) error {
	if skerry.ImageID(ref).Valid() {
		return nil
	}
	return skerry.ValidateImageName(field, ref)
}

// checkPlacement refuses regions and architectures that this server lacks.
func (s *server) checkPlacement(ctx context.Context, b *createBody) error {
	if b.Region != nil && *b.Region != s.Region {
		return skerry.Unsupported("region", "this server's region is %q", s.Region)
	}
	if b.CPUArch == nil {
		return nil
	}
	runners, err := s.Control.Runners(ctx)
	if err != nil {
		return err
	}
	for _, r := range runners {
		if r.Online && r.Arch == *b.CPUArch {
			return nil
		}
	}
	return skerry.Unsupported("cpu_arch", "no runner of this server provides %s", *b.CPUArch)
}
