package shim

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"skerry.dev/skerry/internal/machine"
)

// freeze makes of a restored machine a zygote: it goes through a rehearsal, so
// that all which a create and a first command need is in memory and translated,
// and stands still for good.
func (s *shim) freeze(ctx context.Context, wg *sync.WaitGroup) error {
	z, ok := s.machine.(machine.Zygote)
	if !ok {
		return fmt.Errorf("machines of this hypervisor cannot be forked")
	}
	if err := s.rehearse(ctx); err != nil {
		return err
	}
	s.link.Close()
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := z.Freeze(ctx); err != nil {
		return err
	}
	l, err := listen(s.cfg.Dir, OriginSock)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	wg.Go(func() { s.acceptForks(ctx, l, z) })
	return nil
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
			if err := z.Fork(context.WithoutCancel(ctx), conn.(*net.UnixConn)); err != nil {
				// What else might be wrong with it nobody knows.
				s.fail(fmt.Errorf("fork: %w", err))
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
