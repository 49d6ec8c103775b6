package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"skerry.dev/skerry"
)

const debianRelease = "bookworm"

// debianSuites are the parts of the Debian archive that make up Debian 12.
var debianSuites = []string{debianRelease, debianRelease + "-updates", debianRelease + "-security"}

// aptSource is one suite at one mirror.
type aptSource struct {
	uri   string // may hold a login
	suite string
}

func (a aptSource) line() string { return fmt.Sprintf("deb %s %s main\n", a.uri, a.suite) }

// suiteSource is where one suite comes from.
type suiteSource struct {
	build aptSource // for the build on this host
	guest aptSource // what stands in the image
}

// debianSources returns where to get each suite of Debian 12. The image is
// built from the mirror that the host's apt is configured with, else from the
// default one of mmdebstrap. A host's other sources are left out, so that the
// image is Debian's and the same everywhere.
func debianSources(ctx context.Context, dir string) ([]suiteSource, error) {
	configured, err := hostSources("/")
	if err != nil {
		return nil, err
	}
	defaults, err := defaultSources(ctx, dir)
	if err != nil {
		return nil, err
	}
	return chooseSources(configured, defaults)
}

// chooseSources takes each suite from the first list that has it.
func chooseSources(configured, defaults []aptSource) ([]suiteSource, error) {
	var out []suiteSource
	for _, suite := range debianSuites {
		named := func(c aptSource) bool { return c.suite == suite && usableURI(c.uri) }
		build, ok := find(configured, named)
		fallback, haveFallback := find(defaults, named)
		switch {
		case !haveFallback:
			return nil, fmt.Errorf("mmdebstrap has no mirror for suite %s", suite)
		case !ok:
			build = fallback
		}
		out = append(out, suiteSource{build: build, guest: guestSource(build, fallback)})
	}
	return out, nil
}

func find(sources []aptSource, is func(aptSource) bool) (aptSource, bool) {
	at := slices.IndexFunc(sources, is)
	if at < 0 {
		return aptSource{}, false
	}
	return sources[at], true
}

// hostSources returns the sources of the host's apt, whose configuration is
// below root ("/" outside tests).
func hostSources(root string) ([]aptSource, error) {
	files := []string{filepath.Join(root, "etc/apt/sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		more, err := filepath.Glob(filepath.Join(root, "etc/apt/sources.list.d", pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	var configured []aptSource
	for _, f := range files {
		data, err := os.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(f, ".sources") {
			configured = append(configured, parseDeb822(data)...)
		} else {
			configured = append(configured, parseOneLine(data)...)
		}
	}
	return configured, nil
}

// defaultSources returns the sources that mmdebstrap itself takes for Debian 12.
// It shows them only by writing them into a new root, so it is made to begin one
// below dir: its first hook prints them and ends it, before anything is fetched.
// Mode chrootless is the one that needs no rights for that.
func defaultSources(ctx context.Context, dir string) ([]aptSource, error) {
	cmd := exec.CommandContext(ctx, "mmdebstrap", "--quiet", "--mode=chrootless", "--variant=custom", "--format=null",
		"--keyring="+debianKeyring, `--setup-hook=cat "$1/etc/apt/sources.list"; exit 1`, debianRelease, "/dev/null")
	cmd.Dir = dir
	cmd.Env = buildEnv(os.Environ(), dir)
	out, err := cmd.CombinedOutput() // the output of hooks is on stderr
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	sources := parseOneLine(out)
	if len(sources) == 0 {
		return nil, skerry.Errorf(skerry.CodeUnavailable, "ask mmdebstrap for its mirrors: %w: %s", err, lastLines(out, 3))
	}
	return sources, nil
}

// usableURI accepts what both apt and a shell's single quotes take as it is.
func usableURI(uri string) bool {
	u, err := url.Parse(uri)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && !strings.ContainsAny(uri, "' \t\r\n\\[]")
}

// parseOneLine reads the one-line format (sources.list(5)).
func parseOneLine(data []byte) []aptSource {
	var out []aptSource
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb ")
		if !ok {
			continue
		}
		if rest = strings.TrimSpace(rest); strings.HasPrefix(rest, "[") {
			_, rest, _ = strings.Cut(rest, "]")
		}
		f := strings.Fields(rest)
		if len(f) < 3 || !slices.Contains(f[2:], "main") {
			continue
		}
		out = append(out, aptSource{uri: f[0], suite: f[1]})
	}
	return out
}

// parseDeb822 reads the stanzas of a .sources file (sources.list(5)).
func parseDeb822(data []byte) []aptSource {
	var out []aptSource
	fields := make(map[string]string)
	last := ""
	flush := func() {
		types, components := strings.Fields(fields["types"]), strings.Fields(fields["components"])
		if slices.Contains(types, "deb") && slices.Contains(components, "main") && !isNo(fields["enabled"]) {
			for _, uri := range strings.Fields(fields["uris"]) {
				for _, suite := range strings.Fields(fields["suites"]) {
					out = append(out, aptSource{uri, suite})
				}
			}
		}
		fields, last = make(map[string]string), ""
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		line := lines.Text()
		key, value, ok := strings.Cut(line, ":")
		switch {
		case strings.TrimSpace(line) == "":
			flush()
		case line[0] == '#':
		case line[0] == ' ' || line[0] == '\t':
			fields[last] += " " + line
		case ok:
			last = strings.ToLower(key)
			fields[last] = value
		}
	}
	flush()
	return out
}

func isNo(s string) bool {
	return slices.Contains([]string{"no", "false", "without", "off", "disable"}, strings.ToLower(strings.TrimSpace(s)))
}

// guestSource is a source as it may stand in the image: without the host's login
// for it, and the fallback in place of a mirror that only the host reaches.
func guestSource(a, fallback aptSource) aptSource {
	u, err := url.Parse(a.uri)
	if err != nil || onlyHere(u.Hostname()) {
		return fallback
	}
	return aptSource{withoutLogin(a.uri), a.suite}
}

// withoutLogin removes user and password from a usable URI.
func withoutLogin(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		return ""
	}
	u.User = nil
	return u.String()
}

// onlyHere tells names and addresses that mean nothing, or nothing allowed, in a
// sandbox.
func onlyHere(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return !addr.IsGlobalUnicast() || addr.IsPrivate()
	}
	return !strings.Contains(host, ".") || strings.HasSuffix(host, ".local") || strings.HasSuffix(host, ".localhost")
}
