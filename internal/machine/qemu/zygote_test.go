package qemu

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"

	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/machine/machinetest"
)

// forking starts machines of the first template that it sees as forks.
type forking struct {
	*Driver
	t *testing.T

	mu       sync.Mutex
	template *machine.Template
	zygote   machine.Zygote
	forks    sync.WaitGroup
}

func (f *forking) Start(ctx context.Context, cfg machine.Config) (machine.Machine, error) {
	f.mu.Lock()
	if f.template == nil {
		f.template = cfg.Template
	}
	fits := cfg.Template != nil && cfg.Template == f.template && cfg.Scratch != nil
	if fits && f.zygote == nil {
		f.zygote = f.makeZygote(cfg)
	}
	f.mu.Unlock()
	if !fits {
		return f.Driver.Start(ctx, cfg)
	}
	ours, theirs, err := filePair("origin")
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	conn, err := net.FileConn(theirs)
	theirs.Close()
	if err != nil {
		return nil, err
	}
	f.forks.Go(func() {
		defer conn.Close()
		if err := f.zygote.Fork(context.Background(), conn.(*net.UnixConn)); err != nil {
			f.t.Errorf("fork: %v", err)
		}
	})
	cfg.Origin = ours
	return f.Driver.Start(ctx, cfg)
}

// makeZygote freezes a machine whose guest has answered once.
func (f *forking) makeZygote(cfg machine.Config) machine.Zygote {
	cfg.Scratch = machinetest.Disk(f.t, 1<<30)
	cfg.Zygote = true
	v := machinetest.Start(f.t, f.Driver, cfg)
	v.Resume()
	v.Hello()
	v.Leave()
	z := v.Machine.(machine.Zygote)
	if err := z.Freeze(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	return z
}

// TestForkedConformance has a fork do all that a restored machine does.
func TestForkedConformance(t *testing.T) {
	if !CanFork("tcg") {
		t.Skip("machines cannot be forked on this system")
	}
	for _, user := range []uint32{0, 65534} {
		name := "as this user"
		if user != 0 {
			name = "as another user"
			if os.Geteuid() != 0 {
				t.Skip("needs root")
			}
		}
		t.Run(name, func(t *testing.T) {
			f := &forking{Driver: New(Options{PortName: "org.skerry.agent", UID: user, GID: user}), t: t}
			machinetest.Run(t, machinetest.Implementation{Driver: f, Load: LoadTemplate})
			f.zygote.Kill()
			f.forks.Wait()
		})
	}
}
