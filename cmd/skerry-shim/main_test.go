package main

import (
	"os"
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
