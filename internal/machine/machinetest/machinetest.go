// Package machinetest is the suite that every machine.Driver passes. It boots
// a real kernel with a tiny init; nothing of it is faked.
package machinetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skerry.dev/skerry/internal/machine"
)

// Implementation is what is tested.
type Implementation struct {
	Driver machine.Driver
	// Load opens a captured template.
	Load func(ramPath, statePath string) (*machine.Template, error)
	// RestoredOnly leaves out the tests of which no machine is started from the
	// template that all share, or only as a part of much else.
	RestoredOnly bool
}

// shape is that of most tests: 256 MiB and room for as much again and more.
var shape = machine.Shape{VCPUs: 1, BaseMiB: 256, MaxMemMiB: 1280}

// suite is what the tests share: one boot, one template.
type suite struct {
	Implementation
	boot     machine.Boot
	image    machine.ImageDisk
	template *machine.Template
	ramPath  string // of the template
}

// Run runs the suite.
func Run(t *testing.T, impl Implementation) {
	s := &suite{Implementation: impl, boot: Guest(t)}
	s.image = Image(t)
	ram, state := CaptureFiles(t, impl.Driver, s.boot, s.image, shape)
	s.ramPath, s.template = ram, Load(t, impl, ram, state)
	for _, test := range []struct {
		name     string
		f        func(*testing.T, *suite)
		restores bool
	}{
		{"ColdBoot", testColdBoot, false},
		{"Siblings", testSiblings, true},
		{"SetScratch", testSetScratch, false},
		{"PauseResume", testPauseResume, true},
		{"PlugMemory", testPlugMemory, true},
		{"FreePageReporting", testFreePageReporting, true},
		{"DiskCopy", testDiskCopy, true},
		{"DiskCopyEnds", testDiskCopyEnds, true},
		{"Save", testSave, true},
		{"SaveChain", testSaveChain, false},
		{"SaveFails", testSaveFails, true},
		{"SaveBooted", testSaveBooted, false},
		{"Stalled", testStalled, true},
		{"Reconnect", testReconnect, true},
		{"Kill", testKill, true},
		{"KilledFromOutside", testKilledFromOutside, true},
		{"GuestEnds", testGuestEnds, true},
		{"VCPUs", testVCPUs, false},
		{"BadConfig", testBadConfig, false},
	} {
		if test.restores || !impl.RestoredOnly {
			t.Run(test.name, func(t *testing.T) { test.f(t, s) })
		}
	}
}

// patternMiB is memory that guestinit fills before the capture, so that clones
// can tell whether the template's memory is still right ("check").
const patternMiB = 48

// Capture boots a machine cold and makes it a template.
func Capture(t testing.TB, impl Implementation, boot machine.Boot, image machine.ImageDisk, shape machine.Shape) *machine.Template {
	t.Helper()
	ram, state := CaptureFiles(t, impl.Driver, boot, image, shape)
	return Load(t, impl, ram, state)
}

// CaptureFiles is Capture, but returns the template's files.
func CaptureFiles(t testing.TB, d machine.Driver, boot machine.Boot, image machine.ImageDisk, shape machine.Shape) (ram, state string) {
	t.Helper()
	dir := t.TempDir()
	m, err := d.Start(t.Context(), machine.Config{Shape: shape, Dir: dir, Image: image, Boot: &boot})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	defer m.Kill()
	v := Connect(t, m, dir)
	v.Hello()
	v.Do(fmt.Sprintf("alloc %d 7", patternMiB))
	v.Leave() // a template has a quiet port
	ram = filepath.Join(dir, "ram")
	state = statePath(ram)
	if err := m.Capture(t.Context(), state, ram); err != nil {
		t.Fatalf("capture: %v; %s", err, v.logs())
	}
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}
	return ram, state
}

// statePath is where the suite puts the state that belongs to a memory file.
func statePath(ramPath string) string { return ramPath + "-state" }

// Load opens a template until t's end.
func Load(t testing.TB, impl Implementation, ram, state string) *machine.Template {
	t.Helper()
	template, err := impl.Load(ram, state)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	t.Cleanup(func() { template.RAM.Close(); template.State.Close() })
	return template
}

// Image is an image disk of two files, with a mark at the start of each.
func Image(t testing.TB) machine.ImageDisk {
	t.Helper()
	dir := t.TempDir()
	var image machine.ImageDisk
	for _, name := range []string{"first", "second"} {
		path := filepath.Join(dir, name)
		const sectors = 64
		if err := os.WriteFile(path, []byte(name+strings.Repeat("\x00", sectors*512-len(name))), 0o600); err != nil {
			t.Fatal(err)
		}
		image.Extents = append(image.Extents, machine.Extent{Path: path, Sectors: sectors})
	}
	return image
}

// restore starts a clone of the suite's template and lets it run.
func (s *suite) restore(t *testing.T, scratch *os.File) *VM {
	t.Helper()
	v := Start(t, s.Driver, machine.Config{Shape: shape, Image: s.image, Scratch: scratch, Template: s.template})
	v.Resume()
	v.Hello()
	return v
}
