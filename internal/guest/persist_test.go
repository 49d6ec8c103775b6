package guest_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"skerry.dev/skerry/internal/guest/guesttest"
	"skerry.dev/skerry/internal/guestapi"
)

// TestPersist: a disk is used by one machine after the other, whether the one
// before was shut down or crashed. Case "writes lost over stop/start".
func TestPersist(t *testing.T) {
	image := map[string]string{"prog": "/prog", "var/lib/docker/": "", "etc/hosts": "of the image",
		"etc/resolv.conf": "-> ../run/systemd/resolve/stub-resolv.conf"}
	o := guesttest.Options{Agent: programs().agent, Layers: []string{layer(t, image)}}
	vm := guesttest.Boot(t, o)
	o.Scratch = vm.Scratch()
	a := vm.Activation()
	vm.Activate(a)
	vm.StartProcess("sleep")
	vm.Output("loop", "/tmp/device")
	vm.Output("loop", "/var/lib/docker/device") // on the disk itself
	vm.Output("fill", "/big", "50")
	sum := vm.Output("sum", "/big")
	// Once more, and right before the end.
	vm.Output("fill", "/again", "50")
	if err := vm.Control(t.Context(), guestapi.PathShutdown, guestapi.Shutdown{GraceMillis: 1000}, nil); err != nil {
		t.Fatalf("%v\nconsole:\n%s", err, vm.Console())
	}
	vm.CheckScratch()

	vm = guesttest.Boot(t, o)
	vm.Activate(a)
	for _, path := range []string{"/big", "/again"} {
		if got := vm.Output("sum", path); got != sum {
			t.Errorf("%s after a shutdown: %s, was %s", path, got, sum)
		}
	}
	vm.Output("save", "/saved", "on the disk")
	vm.Output("write", "/unsaved", "perhaps")
	vm.Output("save", "/var/lib/docker/saved", "too")
	vm.Kill()

	vm = guesttest.Boot(t, o)
	a.Hostname = "third-life"
	vm.Activate(a)
	if got := vm.Output("cat", "/saved", "/var/lib/docker/saved", "/etc/hostname"); got != "on the disktoothird-life\n" {
		t.Errorf("after a crash: %q", got)
	}
	if got := vm.Output("sum", "/big"); got != sum {
		t.Errorf("/big after a crash: %s, was %s", got, sum)
	}
	if err := vm.Control(t.Context(), guestapi.PathShutdown, guestapi.Shutdown{GraceMillis: 1000}, nil); err != nil {
		t.Fatal(err)
	}
	vm.CheckScratch()
}

// TestBareTemplate captures a machine that has not seen a writable disk, and
// restores it with the disk of a sandbox that was stopped.
func TestBareTemplate(t *testing.T) {
	layers := []string{layer(t, distroless)}
	o := guesttest.Options{Agent: programs().agent, Layers: layers}
	vm := guesttest.Boot(t, o)
	vm.Activate(vm.Activation())
	t.Logf("cold boot to activated: %v of processor time", vm.CPU())
	vm.Output("save", "/kept", "of the first life")
	if err := vm.Control(t.Context(), guestapi.PathShutdown, guestapi.Shutdown{}, nil); err != nil {
		t.Fatal(err)
	}
	vm.Kill()
	disk := vm.Scratch()

	o.Scratch = filepath.Join(t.TempDir(), "placeholder")
	if err := os.WriteFile(o.Scratch, make([]byte, 4096), 0o644); err != nil {
		t.Fatal(err)
	}
	o.Template = true
	bare := guesttest.Boot(t, o)
	t.Logf("cold boot to hello: %v of processor time", bare.CPU())
	tpl := bare.Capture(t.Context())
	for range 2 {
		var cpu time.Duration
		clone := tpl.RestoreOn(t.Context(), disk, func() {})
		cpu = clone.CPU()
		clone.Dial(t.Context())
		out := clone.Activate(clone.Activation())
		t.Logf("restore %v, activate %v of processor time, steps %v", cpu, clone.CPU()-cpu, out.StepMicros)
		if got := clone.Output("cat", "/kept"); got != "of the first life" {
			t.Errorf("file = %q", got)
		}
		clone.Output("save", "/kept", "of the second")
		if err := clone.Control(t.Context(), guestapi.PathShutdown, guestapi.Shutdown{}, nil); err != nil {
			t.Error(err)
		}
		clone.CheckScratch()
	}
}
