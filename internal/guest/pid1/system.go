// Package pid1 makes a Linux system out of a bare kernel: it is the part of the
// guest agent that does what an initramfs and an init do elsewhere.
//
// Boot brings the machine to the anonymous state, in which it can be captured
// and restored many times. Activate makes one sandbox of it. All that does not
// depend on the sandbox belongs into Boot, because a restore skips it.
package pid1

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"

	"skerry.dev/skerry/internal/guestapi"

	"golang.org/x/sys/unix"
)

// System is a booted machine.
type System struct {
	boot   guestapi.Boot
	log    *slog.Logger
	groups *groups
	layers layers
	port   *Port
	// identity is the directory identityDir, whose path is gone after the
	// switch to the sandbox's root.
	identity *os.Root
	// What is bound over files of the image, by path, and its content.
	identityFile map[string]*os.File
	identityText map[string]string
	prepared     bool // the root is switched
	// scratchMounted is set by Activate; Stats and Shutdown are then useful.
	scratchMounted bool
	scratchFD      int   // its root directory
	scratchSectors int64 // its size of 512-byte sectors, as mounted
	disk           diskFreezer
}

// Boot runs the steps of the anonymous state in order.
func Boot(ctx context.Context, log *slog.Logger) (*System, error) {
	s := &System{log: log}
	steps := []struct {
		name string
		run  func(context.Context) error
	}{
		{"mount kernel file systems", s.mountKernel},
		{"calm the runtime", s.calmMonitor},
		{"read command line", s.readCommandLine},
		{"load modules", s.loadModules},
		{"make control groups", s.makeGroups},
		{"configure network", s.configureNetwork},
		{"mount layers", s.mountLayers},
		{"open agent port", s.openPort},
		{"empty initramfs", s.emptyInitramfs},
	}
	for _, step := range steps {
		if err := step.run(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return s, nil
}

func (s *System) readCommandLine(context.Context) error {
	text, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	s.boot, err = guestapi.ParseBoot(string(text))
	return err
}

// emptyInitramfs frees its memory. The agent itself stays as an unlinked file
// that runs.
func (s *System) emptyInitramfs(context.Context) error {
	if err := os.RemoveAll(modulesDir); err != nil {
		return err
	}
	return os.Remove("/init")
}

// Port returns the agent port.
func (s *System) Port() *Port { return s.port }

// Quiesce collects garbage, for a capture. Freed pages stay mapped: every clone
// would fault them in again, which costs more than the few pages are worth.
// What is dirty is written now, which each clone would otherwise do.
func (s *System) Quiesce() {
	unix.Sync()
	runtime.GC()
}
