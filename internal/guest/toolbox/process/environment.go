package process

import (
	"fmt"
	"slices"
	"strings"

	"skerry.dev/skerry/internal/guest/toolbox/account"
)

// DefaultPath is PATH where neither image nor sandbox set one.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// The kernel refuses longer strings (MAX_ARG_STRLEN, 32 pages, execve(2)) and
// more in all than a quarter of the stack limit, by default 2 MiB.
const (
	maxString    = 128<<10 - 1
	maxArguments = 2<<20 - 64<<10
)

// environment is an ordered set of variables; the last value set counts.
type environment struct {
	order  []string
	values map[string]string
}

func (e *environment) set(name, value string) {
	if _, ok := e.values[name]; !ok {
		e.order = append(e.order, name)
	}
	e.values[name] = value
}

func (e *environment) setAll(vars map[string]string) {
	names := make([]string, 0, len(vars))
	for name := range vars {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		e.set(name, vars[name])
	}
}

func (e *environment) list() []string {
	list := make([]string, len(e.order))
	for i, name := range e.order {
		list[i] = name + "=" + e.values[name]
	}
	return list
}

// buildEnvironment joins, later ones winning: our defaults, the image's
// environment as it is, the sandbox's, the request's. Values are passed on byte
// for byte.
func buildEnvironment(d *Defaults, user account.User, terminal string, request map[string]string) *environment {
	e := &environment{values: make(map[string]string, 8+len(d.ImageEnv)+len(d.Env)+len(request))}
	e.set("PATH", DefaultPath)
	e.set("HOME", user.Home)
	e.set("USER", user.Name)
	if user.Shell != "" {
		e.set("SHELL", user.Shell)
	}
	if terminal != "" {
		e.set("TERM", terminal)
	}
	for _, entry := range d.ImageEnv {
		if name, value, ok := strings.Cut(entry, "="); ok && name != "" && !strings.Contains(entry, "\x00") {
			e.set(name, value)
		}
	}
	e.setAll(d.Env)
	e.setAll(request)
	return e
}

// CheckEnvironment returns an error that names the first variable whose name
// or value cannot be passed on: names are [A-Za-z_][A-Za-z0-9_]*, values hold
// no NUL, and both together have at most 131,070 bytes.
func CheckEnvironment(vars map[string]string) error {
	for name, value := range vars {
		if !validName(name) {
			return fmt.Errorf("variable %.64q: a name is letters, digits and _, the first no digit", name)
		}
		if strings.Contains(value, "\x00") {
			return fmt.Errorf("variable %.64s: value holds a NUL byte", name)
		}
		if len(name)+1+len(value) > maxString {
			return fmt.Errorf("variable %.64s: %d bytes with its name, at most %d", name, len(name)+1+len(value), maxString)
		}
	}
	return nil
}

func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// checkSize refuses what execve(2) would answer with E2BIG.
func checkSize(argv, env []string) error {
	total := 0
	for i, s := range argv {
		if strings.Contains(s, "\x00") {
			return fmt.Errorf("argument %d holds a NUL byte", i)
		}
		if len(s) > maxString {
			return fmt.Errorf("argument %d has %d bytes, at most %d", i, len(s), maxString)
		}
		total += len(s) + 9 // with its end and its pointer
	}
	for _, s := range env {
		total += len(s) + 9
	}
	if total > maxArguments {
		return fmt.Errorf("arguments and environment have %d bytes together, at most %d", total, maxArguments)
	}
	return nil
}
