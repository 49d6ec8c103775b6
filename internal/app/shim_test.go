package app

import (
	"os"
	"testing"

	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/shim"
)

// In a process that inherited none, the descriptors of a template are the
// runtime's: taking them for one fails every cold boot.
func TestMachineThatBootsInheritsNoTemplate(t *testing.T) {
	for last := uintptr(0); last <= shim.FDState; {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		last = f.Fd()
	}
	if got := inheritedTemplate(shim.Spec{Boot: &machine.Boot{}}); got != nil {
		t.Errorf("got %+v, want no template", got)
	}
}
