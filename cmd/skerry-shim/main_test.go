package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/shim"
)

// In a process that inherited none, the descriptors of a template are the
// runtime's: taking them for one fails every cold boot.
func TestMachineThatBootsInheritsNoTemplate(t *testing.T) {
	for last := uintptr(0); last <= shim.FDOrigin; {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		last = f.Fd()
	}
	if got := inheritedSource(shim.Spec{Boot: &machine.Boot{}}); got != (shim.Source{}) {
		t.Errorf("got %+v, want nothing", got)
	}
}

// What is linked in is initialised at each start, which a create waits for.
func TestLinksNothingOfTheServer(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, "skerry.dev/skerry/internal/shim") {
		t.Fatalf("go list: no shim in %q", deps)
	}
	for _, dep := range deps {
		for _, server := range []string{
			"skerry.dev/skerry/internal/app", "skerry.dev/skerry/internal/api", "skerry.dev/skerry/internal/bus",
			"skerry.dev/skerry/internal/control", "skerry.dev/skerry/internal/image", "skerry.dev/skerry/internal/runner",
			"skerry.dev/skerry/internal/store", "github.com/prometheus", "google.golang.org/protobuf", "encoding/gob", "net/http/pprof",
		} {
			if dep == server || strings.HasPrefix(dep, server+"/") {
				t.Errorf("links %s", dep)
			}
		}
	}
}
