package image

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// suites are the parts of the Debian archive that make up Debian 12, and where
// they are if the host does not say.
var suites = []aptSource{
	{"http://deb.debian.org/debian", debianRelease},
	{"http://deb.debian.org/debian", debianRelease + "-updates"},
	{"http://deb.debian.org/debian-security", debianRelease + "-security"},
}

const debianRelease = "bookworm"

// aptSource is one suite at one mirror.
type aptSource struct {
	uri   string // may hold a login
	suite string
}

func (a aptSource) line() string { return fmt.Sprintf("deb %s %s main\n", a.uri, a.suite) }

// debianSources returns where to get each suite of Debian 12: from the mirror
// that the host's apt is configured with (below root, "/" outside tests), else
// from Debian's own. A host's other sources are left out, so that the image is
// Debian's and the same everywhere.
func debianSources(root string) ([]aptSource, error) {
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
	out := slices.Clone(suites)
	for i, s := range out {
		at := slices.IndexFunc(configured, func(c aptSource) bool { return c.suite == s.suite && usableURI(c.uri) })
		if at >= 0 {
			out[i] = configured[at]
		}
	}
	return out, nil
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
// for it, and without a mirror that only the host reaches.
func guestSource(a, official aptSource) aptSource {
	u, err := url.Parse(a.uri)
	if err != nil || onlyHere(u.Hostname()) {
		return official
	}
	u.User = nil
	return aptSource{u.String(), a.suite}
}

// onlyHere tells names and addresses that mean nothing, or nothing allowed, in a
// sandbox.
func onlyHere(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return !addr.IsGlobalUnicast() || addr.IsPrivate()
	}
	return !strings.Contains(host, ".") || strings.HasSuffix(host, ".local") || strings.HasSuffix(host, ".localhost")
}
