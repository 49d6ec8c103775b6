package pid1

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"skerry.dev/skerry/internal/guestapi"
)

// Activate makes the machine one sandbox. It returns the microseconds each step
// took. After an error the machine is of no use and runs nothing.
func (s *System) Activate(ctx context.Context, a guestapi.Activation) (map[string]int64, error) {
	// The directory of the identity files is out of reach after the switch.
	identity, err := os.OpenRoot(identityDir)
	if err != nil {
		return nil, err
	}
	defer identity.Close()
	steps := []struct {
		name string
		run  func() error
	}{
		// Randomness first: nothing after it may use captured state.
		{"entropy", func() error { return reseed(a.Entropy) }},
		{"clock", func() error { return setClock(a.Time) }},
		{"hostname", func() error { return unix.Sethostname([]byte(a.Hostname)) }},
		{"mac", func() error {
			if a.MAC == "" {
				return nil
			}
			return setMAC(a.MAC)
		}},
		{"limits", func() error {
			if err := s.groups.limitProcesses(); err != nil {
				return err
			}
			return s.groups.setMemory(a.MemoryMiB)
		}},
		{"scratch", func() error { return s.mountScratch(ctx, a.ScratchSectors) }},
		{"root", s.mountRoot},
		{"switch_root", s.switchRoot},
		{"identity", func() error { return bindIdentity(identity, s.identityFiles(a)) }},
	}
	micros := make(map[string]int64, len(steps))
	for _, step := range steps {
		start := time.Now()
		if err := step.run(); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		micros[step.name] = time.Since(start).Microseconds()
	}
	return micros, nil
}

// Tune sets the limits for a new size of the machine.
func (s *System) Tune(memMiB int64) error { return s.groups.setMemory(memMiB) }
