package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"skerry.dev/skerry"
)

// maxEnvEntry is the longest string that Linux passes to a program, with its
// NUL byte (MAX_ARG_STRLEN, execve(2)).
const maxEnvEntry = 128 << 10

// imageConfig takes from an image configuration what a sandbox honours.
// Warnings say what it leaves out, and why.
func imageConfig(cfg *v1.Config) (skerry.ImageConfig, []string) {
	var warnings []string
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }

	out := skerry.ImageConfig{User: cfg.User, Entrypoint: cfg.Entrypoint, Cmd: cfg.Cmd}
	out.Env = imageEnv(cfg.Env, warn)
	if strings.ContainsAny(out.User, "\x00\n") {
		warn("user %.40q is not a user name: ignored", out.User)
		out.User = ""
	}
	if hasNUL(out.Entrypoint) || hasNUL(out.Cmd) {
		warn("entrypoint and command hold a NUL byte, which no program can be given: ignored")
		out.Entrypoint, out.Cmd = nil, nil
	}
	switch {
	case strings.Contains(cfg.WorkingDir, "\x00"):
		warn("working directory %.40q is no path: ignored", cfg.WorkingDir)
	case cfg.WorkingDir != "": // relative ones count from the root, as in Docker
		out.WorkingDir = path.Clean("/" + cfg.WorkingDir)
	}
	if n := len(cfg.Volumes); n > 0 {
		warn("%d VOLUME entries are ignored: a sandbox's whole file system is its own and writable", n)
	}
	if n := len(cfg.ExposedPorts); n > 0 {
		warn("%d EXPOSE entries are ignored: they open nothing", n)
	}
	if cfg.Healthcheck != nil {
		warn("HEALTHCHECK is ignored: a sandbox is not restarted by its image")
	}
	return out, warnings
}

// imageEnv keeps every entry that a program can be given, names that are no
// shell identifiers included. Of two with one name the last counts, in the place
// of the first.
func imageEnv(env []string, warn func(string, ...any)) []string {
	var out []string
	place := make(map[string]int)
	for _, e := range env {
		key, _, ok := strings.Cut(e, "=")
		switch {
		case !ok || key == "":
			warn("environment entry %.40q is not NAME=value: ignored", e)
			continue
		case strings.Contains(e, "\x00"):
			warn("environment entry %.40q holds a NUL byte: ignored", key)
			continue
		case len(e)+1 > maxEnvEntry:
			warn("environment entry %.40q is longer than the %d bytes a program can be given: ignored", key, maxEnvEntry)
			continue
		}
		if at, seen := place[key]; seen {
			out[at] = e
			continue
		}
		place[key] = len(out)
		out = append(out, e)
	}
	return out
}

func hasNUL(args []string) bool {
	for _, a := range args {
		if strings.Contains(a, "\x00") {
			return true
		}
	}
	return false
}

// fetchConfig reads an image's configuration, from the store if it is there. Its
// size was checked.
func (s *Store) fetchConfig(ctx context.Context, src source, d v1.Descriptor) ([]byte, error) {
	if data, err := os.ReadFile(s.path(blobName(d.Digest))); err == nil && digestOf(data) == d.Digest {
		return data, nil
	}
	var buf bytes.Buffer
	err := s.retry(ctx, func() (bool, error) {
		buf.Reset()
		body, _, err := src.open(ctx, d, 0)
		if err != nil {
			return false, err
		}
		defer body.Close()
		n, err := io.Copy(&buf, io.LimitReader(body, d.Size+1))
		if err == nil && n < d.Size {
			err = &transient{err: fmt.Errorf("%w after %d of %d bytes", errShort, n, d.Size)}
		}
		return false, err
	})
	if err != nil {
		return nil, err
	}
	if got := digestOf(buf.Bytes()); got != d.Digest {
		return nil, badDigest("blob", d.Digest.String(), got.String())
	}
	return buf.Bytes(), nil
}

// noSource has nothing: it stands in where everything should be in the store.
type noSource struct{}

func (noSource) open(_ context.Context, blob v1.Descriptor, _ int64) (io.ReadCloser, int64, error) {
	return nil, 0, &skerry.Error{Code: skerry.CodeUnavailable, Err: ErrDamaged,
		Message: fmt.Sprintf("blob %s is missing or damaged: pull or import the image again", blob.Digest)}
}
