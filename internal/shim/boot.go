package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/guestapi"
	"skerry.dev/skerry/internal/machine"
)

// linkTimeout bounds the wait for the agent of a restored machine, bootTimeout
// for one that boots: software emulation on a busy host takes seconds.
const (
	linkTimeout = 30 * time.Second
	bootTimeout = 120 * time.Second
)

// startMachine starts the network and the hypervisor. A machine from a
// template is loaded and paused afterwards, a cold boot runs.
func (s *shim) startMachine(ctx context.Context, wg *sync.WaitGroup) error {
	control, guestControl, err := socketpair("control")
	if err != nil {
		return err
	}
	defer guestControl.Close()
	defer control.Close() // net.FileConn has its own copy by then
	network, guestNet, err := socketpair("net")
	if err != nil {
		return err
	}
	defer guestNet.Close()
	defer network.Close()

	if err := s.startNetwork(ctx, wg, network); err != nil {
		return err
	}
	cfg, err := s.machineConfig(guestNet, s.scratchPath())
	if err != nil {
		return err
	}
	defer cfg.Scratch.Close()
	cfg.Control = guestControl
	cfg.Zygote, cfg.Origin = s.spec.Zygote, s.cfg.Source.Origin
	m, err := s.driver.Start(ctx, cfg)
	if err != nil && cfg.Origin != nil && ctx.Err() == nil {
		s.log.Warn("the machine could not be forked, it is restored", "err", err)
		m, err = s.restoreInstead(ctx, cfg)
	}
	if err != nil {
		return err
	}
	conn, err := net.FileConn(control)
	if err != nil {
		return errors.Join(err, m.Kill())
	}
	if err := s.setMachine(m); err != nil {
		return errors.Join(err, m.Kill())
	}
	wg.Go(func() { s.watch(ctx, m) })
	wg.Go(func() { s.keepRoom(ctx, m) })
	s.mu.Lock()
	s.controlConn = conn
	s.mu.Unlock()
	if s.spec.Boot != nil {
		return s.connect(ctx, bootTimeout)
	}
	return nil
}

// machineConfig is what every machine of this shim has. The caller closes the
// writable disk, the file at scratch, which is nil for a bare capture.
func (s *shim) machineConfig(net *os.File, scratch string) (machine.Config, error) {
	cfg := machine.Config{Shape: s.spec.Shape, Dir: s.cfg.Dir, Image: machine.ImageDisk{Extents: s.spec.Image},
		Net: net, Boot: s.spec.Boot, Template: s.template()}
	if s.spec.Bare {
		return cfg, nil
	}
	var err error
	cfg.Scratch, err = os.OpenFile(scratch, os.O_RDWR, 0)
	return cfg, err
}

// restoreInstead starts a machine that could not be forked from the template, with
// the disk that goes with that.
func (s *shim) restoreInstead(ctx context.Context, cfg machine.Config) (machine.Machine, error) {
	info, err := cfg.Scratch.Stat()
	if err != nil {
		return nil, err
	}
	if err := os.Remove(s.scratchPath()); err != nil {
		return nil, err
	}
	if err := disk.CopyScratch(s.scratchPath(), s.spec.TemplateScratch, info.Size()>>20); err != nil {
		return nil, err
	}
	if cfg.Scratch, err = os.OpenFile(s.scratchPath(), os.O_RDWR, 0); err != nil {
		return nil, err
	}
	defer cfg.Scratch.Close()
	cfg.Origin = nil
	return s.driver.Start(ctx, cfg)
}

// template is what the machine is restored from, or nil.
func (s *shim) template() *machine.Template {
	tpl := s.cfg.Source.Template
	if tpl == nil {
		return nil
	}
	return &machine.Template{RAM: tpl.RAM, State: tpl.State, ScratchBytes: s.spec.TemplateScratchBytes}
}

func (s *shim) setMachine(m machine.Machine) error {
	ticks, err := StartTicks(m.PID())
	if err != nil {
		return fmt.Errorf("hypervisor process: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machine = m
	s.status.MachinePID, s.status.MachineStartTicks = m.PID(), ticks
	s.publishLocked()
	return nil
}

func (s *shim) startNetwork(ctx context.Context, wg *sync.WaitGroup, end *os.File) error {
	n, err := s.cfg.NewNetwork(s.spec.Network, s.log, end)
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	wg.Go(func() {
		if err := n.Run(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("network ended", "err", err)
		}
	})
	return nil
}

// connect makes the link to the agent of a machine that runs.
func (s *shim) connect(ctx context.Context, timeout time.Duration) error {
	s.mu.Lock()
	conn, link := s.controlConn, s.link
	s.mu.Unlock()
	if link != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	link, err := s.dialAgent(ctx, conn)
	if err != nil {
		return fmt.Errorf("guest agent: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = link
	return nil
}

// firstAnswer is how long the agent of a saved machine may take to answer
// before it gets a new connection: a port that was saved in the middle of a
// write never says anything to the first one.
const firstAnswer = 3 * time.Second

// dialAgent makes the link on conn, or on a new connection in its place if a
// saved machine does not answer there.
func (s *shim) dialAgent(ctx context.Context, conn net.Conn) (*guestapi.Link, error) {
	if !s.spec.Saved {
		return guestapi.Dial(ctx, conn)
	}
	for {
		try, cancel := context.WithTimeout(ctx, firstAnswer)
		link, err := guestapi.Dial(try, conn)
		cancel()
		if err == nil || ctx.Err() != nil {
			return link, err
		}
		s.log.Warn("the agent of a saved machine did not answer, connecting anew", "err", err)
		conn.Close()
		if conn, err = s.reconnect(ctx); err != nil {
			return nil, err
		}
	}
}

// reconnect gives the agent's port a new host end.
func (s *shim) reconnect(ctx context.Context) (net.Conn, error) {
	ours, theirs, err := socketpair("control")
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	defer theirs.Close()
	if err := s.machine.Reconnect(ctx, theirs); err != nil {
		return nil, err
	}
	return net.FileConn(ours)
}

// warm runs a restored machine through a rehearsal, so that the emulator has
// translated the code that a create and the first command need, and pauses it.
func (s *shim) warm(ctx context.Context) error {
	if err := s.rehearse(ctx, false); err != nil {
		return err
	}
	return s.machine.Pause(ctx)
}

func (s *shim) rehearse(ctx context.Context, thorough bool) error {
	if err := s.machine.Resume(ctx); err != nil {
		return err
	}
	if err := s.connect(ctx, linkTimeout); err != nil {
		return err
	}
	return rehearse(ctx, s.link, s.spec.Shape.BaseMiB, thorough)
}

// socketpair returns the two ends of a stream connection, closed on exec
// unless they are handed over on purpose.
func socketpair(name string) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name+"-guest"), nil
}
