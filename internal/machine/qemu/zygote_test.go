package qemu

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/machine/machinetest"
)

// zygoteDisk is the size of the writable disk of a zygote of the tests.
const zygoteDisk = 1 << 30

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
	fits := cfg.Template != nil && cfg.Template == f.template
	if fits && f.zygote == nil {
		f.zygote = makeZygote(f.t, f.Driver, cfg)
	}
	f.mu.Unlock()
	if !fits {
		return f.Driver.Start(ctx, cfg)
	}
	if cfg.Scratch == nil { // without one a machine cannot be forked
		cfg.Scratch = machinetest.Disk(f.t, zygoteDisk)
	}
	ours, theirs := originPair(f.t)
	f.forks.Go(func() {
		if err := f.zygote.Fork(context.Background(), theirs); err != nil {
			f.t.Errorf("fork: %v", err)
		}
		theirs.Close()
	})
	defer ours.Close()
	cfg.Origin = ours
	return f.Driver.Start(ctx, cfg)
}

// originPair is a connection, ours for a machine to be forked, theirs for the
// zygote.
func originPair(t *testing.T) (ours *os.File, theirs *net.UnixConn) {
	t.Helper()
	conn, ours := machinetest.Pair(t)
	return ours, conn.(*net.UnixConn)
}

// answering starts a machine that can become a zygote, whose guest has answered
// once.
func answering(t *testing.T, d *Driver, cfg machine.Config) machine.Zygote {
	t.Helper()
	cfg.Scratch, cfg.Zygote = machinetest.Disk(t, zygoteDisk), true
	v := machinetest.Start(t, d, cfg)
	v.Resume()
	v.Hello()
	v.Leave()
	return v.Machine.(machine.Zygote)
}

func makeZygote(t *testing.T, d *Driver, cfg machine.Config) machine.Zygote {
	t.Helper()
	z := answering(t, d, cfg)
	if err := z.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	return z
}

// unprivileged is a driver whose machines run as another user if this one is
// root, as those of a server do.
func unprivileged(t *testing.T) *Driver {
	t.Helper()
	if !CanFork("tcg") {
		t.Skip("machines cannot be forked on this system")
	}
	o := Options{PortName: "org.skerry.agent"}
	if os.Geteuid() == 0 {
		o.UID, o.GID = 65534, 65534
	}
	return New(o)
}

// TestForkedConformance has a fork do what a restored machine does.
func TestForkedConformance(t *testing.T) {
	f := &forking{Driver: unprivileged(t), t: t}
	machinetest.Run(t, machinetest.Implementation{Driver: f, Load: LoadTemplate, RestoredOnly: true})
	f.zygote.Kill()
	f.forks.Wait()
}

// TestZygoteEnds has the processes around a fork end, in turn.
func TestZygoteEnds(t *testing.T) {
	d := unprivileged(t)
	shape := machine.Shape{VCPUs: 1, BaseMiB: 256, MaxMemMiB: 1280}
	image := machinetest.Image(t)
	template := machinetest.Capture(t, machinetest.Implementation{Driver: d, Load: LoadTemplate}, machinetest.Guest(t), image, shape)
	cfg := machine.Config{Shape: shape, Image: image, Template: template}
	z := answering(t, d, cfg)

	// fork starts a fork that answers; served has what became of it.
	fork := func() (v *machinetest.VM, origin *os.File, served chan error) {
		t.Helper()
		ours, theirs := originPair(t)
		served = make(chan error, 1)
		go func() { served <- z.Fork(context.Background(), theirs) }()
		cfg := cfg
		cfg.Scratch, cfg.Origin = machinetest.Disk(t, zygoteDisk), ours
		v = machinetest.Start(t, d, cfg)
		v.Resume()
		v.Hello()
		return v, ours, served
	}
	// ask makes a request without a machine, and returns what Fork does and what
	// is answered.
	ask := func(files int) (reply forkReply, err error) {
		t.Helper()
		ours, theirs := originPair(t)
		conn, cerr := unixConn(ours)
		if cerr != nil {
			t.Fatal(cerr)
		}
		defer conn.Close()
		ours.Close()
		if files > 0 {
			if err := send(conn, forkRequest{PID: os.Getpid()}, sameFile(t, files)...); err != nil {
				t.Fatal(err)
			}
		} else {
			conn.CloseWrite()
		}
		err = z.Fork(t.Context(), theirs)
		theirs.Close()
		_, _ = receive(conn, &reply) // of some there is none
		return reply, err
	}

	if reply, err := ask(roles); err == nil || !strings.Contains(reply.Error, "not frozen") {
		t.Errorf("not frozen: got %v and the answer %+v", err, reply)
	}
	if err := z.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, roles - 1, roles + 1} {
		if reply, err := ask(n); err == nil || reply.PID != 0 {
			t.Errorf("%d descriptors: got %v and the answer %+v", n, err, reply)
		}
	}
	if reply, err := ask(0); err != nil || reply.PID != 0 {
		t.Errorf("nobody asks: got %v and the answer %+v", err, reply)
	}

	v, origin, served := fork()
	if err := unix.Shutdown(int(origin.Fd()), unix.SHUT_WR); err != nil { // as the end of its process does
		t.Fatal(err)
	}
	<-v.Done()
	if err := v.Err(); err == nil || errors.Is(err, machine.ErrKilled) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("a fork whose starter has ended: %v", err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}

	a, _, aServed := fork()
	b, bOrigin, bServed := fork()
	if err := syscall.Kill(z.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-z.Done()
	if err := z.Err(); err == nil || errors.Is(err, machine.ErrKilled) {
		t.Errorf("Err of the zygote: %v", err)
	}
	if reply, err := ask(roles); err == nil || reply.Error == "" {
		t.Errorf("a zygote that has ended: got %v and the answer %+v", err, reply)
	}
	for _, v := range []*machinetest.VM{a, b} {
		if got := v.Do("echo on"); got != "on" {
			t.Errorf("a fork answers %q", got)
		}
	}
	if err := a.Kill(); err != nil || !errors.Is(a.Err(), machine.ErrKilled) {
		t.Errorf("kill: %v, %v", err, a.Err())
	}
	// Nobody is left to tell how this one ends.
	if err := unix.Shutdown(int(bOrigin.Fd()), unix.SHUT_RD); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(b.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-b.Done()
	if err := b.Err(); err == nil || errors.Is(err, machine.ErrKilled) {
		t.Errorf("Err of a fork that was killed: %v", err)
	}
	for _, served := range []chan error{aServed, bServed} {
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// sameFile is one file many times.
func sameFile(t *testing.T, n int) (files []*os.File) {
	t.Helper()
	f := machinetest.Disk(t, 0)
	for range n {
		files = append(files, f)
	}
	return files
}
