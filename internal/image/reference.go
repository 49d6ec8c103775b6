package image

import (
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"skerry.dev/skerry"
)

// maxReference bounds a reference: a repository name has at most 255 characters
// (OCI distribution specification), a tag 128, a digest 71.
const maxReference = 512

// repositoryPattern is the grammar of repository names and tagPattern that of
// tags (OCI distribution specification, "Pulling manifests"). The library takes
// more, "../x" for example.
var (
	repositoryPattern = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagPattern        = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
)

// parseReference reads a registry reference; without a registry it is Docker
// Hub's, without a tag "latest", as everywhere.
func parseReference(ref string, plainHTTP bool) (name.Reference, error) {
	if ref == "" {
		return nil, skerry.Invalid("reference", "required", "", "an image reference is needed")
	}
	if len(ref) > maxReference {
		return nil, skerry.Invalid("reference", "max_length", fmt.Sprint(maxReference), "is too long")
	}
	if strings.Contains(ref, "://") {
		return nil, skerry.Invalid("reference", "pattern", "registry/repository:tag", "is a URL, not a reference: leave out %q", ref[:strings.Index(ref, "://")+3])
	}
	opts := []name.Option{name.WeakValidation}
	if plainHTTP {
		opts = append(opts, name.Insecure)
	}
	parsed, err := name.ParseReference(ref, opts...)
	if err != nil {
		return nil, skerry.Invalid("reference", "pattern", "registry/repository:tag", "%v", err)
	}
	tag, isTag := parsed.(name.Tag)
	if !repositoryPattern.MatchString(parsed.Context().RepositoryStr()) || isTag && !tagPattern.MatchString(tag.TagStr()) {
		return nil, skerry.Invalid("reference", "pattern", "registry/repository:tag", "%q is no image reference", ref)
	}
	return parsed, nil
}

// sameName reports whether two image names mean the same image: "alpine" and
// "docker.io/library/alpine:latest" do.
func sameName(a, b string) bool {
	if a == b {
		return true
	}
	pa, errA := name.ParseReference(a, name.WeakValidation)
	pb, errB := name.ParseReference(b, name.WeakValidation)
	return errA == nil && errB == nil && pa.Name() == pb.Name()
}

// parsePlatform reads "linux/arm64" or "linux/arm/v7"; "" is Linux on this
// machine's architecture.
func parsePlatform(s string) (v1.Platform, error) {
	if s == "" {
		return normalPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}), nil
	}
	parts := strings.Split(s, "/")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") || len(s) > 64 {
		return v1.Platform{}, skerry.Invalid("platform", "pattern", "os/architecture[/variant]", "%q is no platform", s)
	}
	p := v1.Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	if p.OS != "linux" {
		return v1.Platform{}, skerry.Unsupported("platform", "sandboxes run Linux, not %s", p.OS)
	}
	return normalPlatform(p), nil
}

// normalPlatform spells a platform in one way: other names of architectures are
// replaced, and the variant that is implied is written out, so that variants can
// be compared.
func normalPlatform(p v1.Platform) v1.Platform {
	n := v1.Platform{OS: strings.ToLower(p.OS), Architecture: strings.ToLower(p.Architecture), Variant: strings.ToLower(p.Variant)}
	switch n.Architecture {
	case "x86_64", "x86-64":
		n.Architecture = "amd64"
	case "aarch64":
		n.Architecture = "arm64"
	case "armhf":
		n.Architecture, n.Variant = "arm", "v7"
	case "armel":
		n.Architecture, n.Variant = "arm", "v6"
	}
	if n.Variant == "" {
		switch n.Architecture {
		case "amd64":
			n.Variant = "v1"
		case "arm64":
			n.Variant = "v8"
		case "arm":
			n.Variant = "v7"
		}
	}
	if n.Variant[:min(1, len(n.Variant))] != "v" && n.Variant != "" {
		n.Variant = "v" + n.Variant
	}
	return n
}

// platformName is the short spelling of a platform: implied variants are left out.
func platformName(p v1.Platform) string {
	n := normalPlatform(p)
	if implied := normalPlatform(v1.Platform{Architecture: n.Architecture}); n.Variant == implied.Variant {
		n.Variant = ""
	}
	return n.String()
}

// suits reports whether an image for have runs on want: same system and
// architecture, and a variant that is not newer (an arm/v7 machine runs arm/v6
// code, an amd64/v3 machine amd64/v1 code).
func suits(have, want v1.Platform) bool {
	h, w := normalPlatform(have), normalPlatform(want)
	return h.OS == w.OS && h.Architecture == w.Architecture && compareVariant(h.Variant, w.Variant) <= 0
}

// compareVariant orders "v6" < "v7" < "v8" < "v8.1" < "v10".
func compareVariant(a, b string) int {
	as, bs := strings.Split(strings.TrimPrefix(a, "v"), "."), strings.Split(strings.TrimPrefix(b, "v"), ".")
	for i := range min(len(as), len(bs)) {
		if len(as[i]) != len(bs[i]) { // numbers without leading zeros
			return len(as[i]) - len(bs[i])
		}
		if c := strings.Compare(as[i], bs[i]); c != 0 {
			return c
		}
	}
	return len(as) - len(bs)
}

// choosePlatform picks the best entry of an index for want: of those that suit,
// the newest variant; of equals the first. Entries that name no platform come
// last: what they are is known only from their configuration. An entry for the
// platform "unknown/unknown" is an attestation, not an image.
func choosePlatform(entries []v1.Descriptor, want v1.Platform) (v1.Descriptor, error) {
	var best, unnamed *v1.Descriptor
	var have []string
	for i := range entries {
		e := &entries[i]
		switch {
		case e.Platform == nil || e.Platform.OS == "" && e.Platform.Architecture == "":
			if unnamed == nil && (e.MediaType.IsImage() || e.MediaType.IsIndex()) {
				unnamed = e
			}
			continue
		case e.Platform.OS == "unknown":
			continue
		}
		if len(have) < 32 {
			have = append(have, platformName(*e.Platform))
		}
		if suits(*e.Platform, want) && (best == nil ||
			compareVariant(normalPlatform(*e.Platform).Variant, normalPlatform(*best.Platform).Variant) > 0) {
			best = e
		}
	}
	switch {
	case best != nil:
		return *best, nil
	case unnamed != nil:
		return *unnamed, nil
	}
	return v1.Descriptor{}, skerry.Unsupported("platform", "the image is not made for %s (it is for: %s)",
		platformName(want), strings.Join(have, ", "))
}
