package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"skerry.dev/skerry/internal/disk"
	"skerry.dev/skerry/internal/guestapi"
	"skerry.dev/skerry/internal/machine"
)

// freeze makes of a restored machine a zygote: it goes through a rehearsal, so
// that all which a create and a first command need is in memory and translated,
// and stands still for good.
func (s *shim) freeze(ctx context.Context, wg *sync.WaitGroup) error {
	z, ok := s.machine.(machine.Zygote)
	if !ok {
		return errors.New("machines of this hypervisor cannot be forked")
	}
	if err := s.rehearse(ctx, true); err != nil {
		return err
	}
	s.link.Close()
	if !pause(ctx, settle) {
		return ctx.Err()
	}
	if err := z.Freeze(ctx); err != nil {
		return err
	}
	if err := s.tryFork(ctx, z); err != nil {
		return fmt.Errorf("trial: %w", err)
	}
	l, err := listen(s.cfg.Dir, OriginSock)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	wg.Go(func() { s.acceptForks(ctx, l, z) })
	return nil
}

// tryFork forks a machine that does what the later ones will do, so that they can
// begin with memory of their own where it has written to; and so that a host on
// which forks do not work has no zygote.
func (s *shim) tryFork(ctx context.Context, z machine.Zygote) (err error) {
	dir := filepath.Join(s.cfg.Dir, "trial")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var pairs [3][2]*os.File // ours, theirs
	for i, name := range []string{"control", "net", "origin"} {
		if pairs[i][0], pairs[i][1], err = socketpair(name); err != nil {
			return err
		}
		defer pairs[i][0].Close()
		defer pairs[i][1].Close()
	}
	control, network, origin := pairs[0], pairs[1], pairs[2]
	path := filepath.Join(dir, ScratchFile)
	if err := disk.CopyScratch(path, s.scratchPath(), s.spec.TemplateScratchBytes>>20); err != nil {
		return err
	}
	cfg, err := s.machineConfig(network[1], path)
	if err != nil {
		return err
	}
	defer cfg.Scratch.Close()
	cfg.Dir, cfg.Control, cfg.Origin = dir, control[1], origin[0]
	served := make(chan error, 1)
	conn, err := net.FileConn(origin[1])
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() { served <- z.Fork(ctx, conn.(*net.UnixConn)) }()
	m, err := s.driver.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Kill(), <-served) }()
	if err := m.Resume(ctx); err != nil {
		return err
	}
	port, err := net.FileConn(control[0])
	if err != nil {
		return err
	}
	defer port.Close()
	link, err := guestapi.Dial(ctx, port)
	if err != nil {
		return fmt.Errorf("guest agent: %w", err)
	}
	defer link.Close()
	if err := rehearse(ctx, link, s.spec.Shape.BaseMiB, false); err != nil {
		return err
	}
	return z.Learn(m)
}

// acceptForks serves a fork on each connection. It does not wait for the
// machines to end: they outlive this process.
func (s *shim) acceptForks(ctx context.Context, l net.Listener, z machine.Zygote) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			err := z.Fork(context.WithoutCancel(ctx), conn.(*net.UnixConn))
			if errors.Is(err, machine.ErrNoFork) {
				s.fail(err)
			} else if err != nil {
				s.log.Warn("fork", "err", err) // who asked for it has gone
			}
		}()
	}
}

// DialOrigin connects to the zygote whose shim works in dir, for Source.
func DialOrigin(ctx context.Context, dir string) (*os.File, error) {
	conn, err := dial(ctx, dir, OriginSock)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*net.UnixConn).File()
}
