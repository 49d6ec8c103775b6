package pid1

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/guestapi"
)

// A step is one part of a longer work, named for errors and the trace.
type step struct {
	name string
	run  func() error
}

// runSteps runs steps in order and returns the microseconds each took.
func runSteps(steps []step) (map[string]int64, error) {
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

// prepareSteps make the sandbox's root. Randomness comes first: nothing after
// it may use captured state.
func (s *System) prepareSteps(ctx context.Context, t time.Time, entropy []byte, sectors int64) []step {
	return []step{
		{"entropy", func() error { return reseed(entropy) }},
		{"clock", func() error { return setClock(t) }},
		{"scratch", func() error { return s.mountScratch(ctx, sectors) }},
		{"root", s.mountRoot},
		{"switch_root", s.switchRoot},
		{"names", func() error { return s.bindIdentity(s.identityFiles(guestapi.Activation{})) }},
	}
}

// Prepare does what needs only the writable disk. It is part of Activate if it
// was not called before.
func (s *System) Prepare(ctx context.Context, p guestapi.Preparation) error {
	steps := s.prepareSteps(ctx, p.Time, p.Entropy, p.ScratchSectors)
	_, err := runSteps(append(steps, step{"limits", func() error { return s.groups.setMemory(p.MemoryMiB, false) }}))
	s.prepared = err == nil
	return err
}

// Activate makes the machine one sandbox. It returns the microseconds each step
// took. After an error the machine is of no use and runs nothing.
func (s *System) Activate(ctx context.Context, a guestapi.Activation) (map[string]int64, error) {
	steps := s.prepareSteps(ctx, a.Time, a.Entropy, a.ScratchSectors)
	if s.prepared {
		// Time has passed, and the disk may be a larger copy of the one the
		// root was made on.
		steps = append(steps[:2], step{"grow", func() error { return s.growScratch(ctx, a.ScratchSectors) }})
	}
	return runSteps(append(steps,
		step{"hostname", func() error { return unix.Sethostname([]byte(a.Hostname)) }},
		step{"limits", func() error { return s.groups.setMemory(a.MemoryMiB, a.FixedMemory) }},
		step{"identity", func() error { return s.writeIdentity(s.identityFiles(a)) }},
	))
}

// Renew gives a machine that was restored with a sandbox in it fresh randomness,
// the time and, if it is another sandbox now, its names. Nothing of the user
// may run meanwhile.
func (s *System) Renew(r guestapi.Renewal) error {
	steps := []step{
		{"entropy", func() error { return reseed(r.Entropy) }},
		{"clock", func() error { return setClock(r.Time) }},
	}
	if id := r.Identity; id != nil {
		steps = append(steps,
			step{"hostname", func() error { return unix.Sethostname([]byte(id.Hostname)) }},
			step{"identity", func() error { return s.writeIdentity(s.identityFiles(*id)) }},
		)
	}
	_, err := runSteps(steps)
	return err
}

// SetMAC changes the interface's address. It is no part of Activate, because the
// driver waits for the device, and nobody but the sandbox sees the address.
func (s *System) SetMAC(mac string) error {
	if mac == "" {
		return nil
	}
	return setMAC(mac)
}

// Tune sets the limits for a new size of the machine.
func (s *System) Tune(t guestapi.Tuning) error { return s.groups.setMemory(t.MemoryMiB, t.FixedMemory) }
