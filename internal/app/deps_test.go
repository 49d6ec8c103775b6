package app_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "skerry.dev/skerry"

// layer is the height of each package: imports only point down. Packages of one
// height are siblings and do not import one another, except where a package
// has its own name in front of it (store/sqlite may import store).
var layer = map[string]int{
	"":                          0, // the vocabulary
	"internal/problem":          1,
	"internal/programs":         1,
	"internal/guestapi":         1,
	"internal/host":             1,
	"internal/image":            1,
	"internal/disk":             1,
	"internal/disk/erofs":       0,
	"internal/tarfuzz":          0, // for tests
	"internal/kernel":           1,
	"internal/procfork":         1,
	"internal/usernet":          1,
	"internal/machine":          1,
	"internal/machine/qemu":     2, // implements machine
	"internal/machine/qemu/qmp": 0,
	"internal/store":            1,
	"internal/store/sqlite":     2, // implements store
	"internal/bus":              1,
	"client":                    2,
	"internal/guest/toolbox":    2,
	"internal/guest":            4,
	"internal/shim":             3,
	"internal/hypervisor":       4, // wires machine/qemu for shim
	"internal/runner":           4,
	"internal/control":          3,
	"internal/gateway":          3,
	"internal/api":              4,
	"internal/api/v2":           5,
	"internal/app":              6,
	"cmd/skerry":                7,
	"cmd/skerry-guest":          7,
	"cmd/skerry-shim":           5, // a create waits for it to start
}

// never lists imports that no height can express, with the reason.
var never = []struct{ from, to, why string }{
	{"internal/control", "internal/runner", "they meet in bus messages only, so that they can be on different hosts"},
	{"internal/runner", "internal/control", "they meet in bus messages only, so that they can be on different hosts"},
	{"internal/runner", "internal/store", "a runner never sees the database"},
	{"internal/shim", "internal/bus", "a shim outlives the bus"},
	{"internal/shim", "internal/machine/qemu", "the hypervisor is behind the Machine interface"},
	{"internal/guest", "internal/machine", "host and guest meet in guestapi only"},
	{"internal/guest", "internal/shim", "host and guest meet in guestapi only"},
	{"client", "internal/control", "a client needs a server's URL only"},
	{"client", "internal/bus", "a client needs a server's URL only"},
}

type pkg struct {
	ImportPath string
	Imports    []string
}

// TestImportsPointDown holds the rule of docs/ARCHITECTURE.md.
func TestImportsPointDown(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		height, ok := heightOf(from)
		if !ok {
			t.Errorf("%s has no place in the table of layers", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			if imp != module && !strings.HasPrefix(imp, module+"/") {
				if from == "" && strings.Contains(imp, ".") {
					t.Errorf("the vocabulary imports %s; it may import the standard library only", imp)
				}
				continue
			}
			to := strings.TrimPrefix(strings.TrimPrefix(imp, module), "/")
			target, _ := heightOf(to)
			if target >= height && !within(from, to) {
				t.Errorf("%s (height %d) imports %s (height %d): imports point down", from, height, to, target)
			}
			for _, n := range never {
				if under(from, n.from) && under(to, n.to) {
					t.Errorf("%s imports %s: %s", from, to, n.why)
				}
			}
		}
	}
}

// heightOf finds the height of a package, or of the nearest one above it.
func heightOf(path string) (int, bool) {
	for p := path; ; {
		if h, ok := layer[p]; ok && (p != "" || path == "") {
			return h, true
		}
		i := strings.LastIndexByte(p, '/')
		if i < 0 {
			return 0, false
		}
		p = p[:i]
	}
}

// within reports whether one package is a part of the other's tree that has no
// height of its own.
func within(a, b string) bool { return root(a) == root(b) }

func root(path string) string {
	for p := path; p != ""; {
		if _, ok := layer[p]; ok {
			return p
		}
		i := strings.LastIndexByte(p, '/')
		if i < 0 {
			break
		}
		p = p[:i]
	}
	return path
}

func under(path, top string) bool { return path == top || strings.HasPrefix(path, top+"/") }

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		// Test support and tools may see everything.
		if strings.HasSuffix(p.ImportPath, "test") || strings.HasPrefix(p.ImportPath, module+"/test") {
			continue
		}
		all = append(all, p)
	}
}
