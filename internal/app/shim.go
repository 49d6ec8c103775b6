package app

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/shim"
	"skerry.dev/skerry/internal/usernet"
)

// RunShim is the process `skerry shim DIR`. It lives until it is told to stop.
func RunShim(ctx context.Context, dir string) error {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	spec, err := shim.ReadSpec(dir)
	if err != nil {
		return err
	}
	return shim.Run(ctx, shim.Config{Dir: dir, Spec: spec, Logger: log,
		Listening:  inherited(shim.FDListening, "listening"),
		NewDriver:  func(spec shim.DriverSpec) (machine.Driver, error) { return NewDriver(spec, log), nil },
		NewNetwork: newNetwork,
		Source:     inheritedSource(spec),
	})
}

// inheritedSource returns what the runner has handed over for a spec. A machine
// that boots has nothing; the Go runtime then uses the numbers of its
// descriptors for its own files.
func inheritedSource(spec shim.Spec) (from shim.Source) {
	if spec.Boot != nil {
		return from
	}
	from.Template = &machine.Template{RAM: inherited(shim.FDRAM, "ram"), State: inherited(shim.FDState, "state")}
	if spec.Forked {
		from.Origin = inherited(shim.FDOrigin, "origin")
	}
	return from
}

// inherited returns a descriptor handed over at the start, nil if there is
// none. It is marked so that QEMU does not inherit it by accident.
func inherited(fd int, name string) *os.File {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); errors.Is(err, unix.EBADF) {
		return nil
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name)
}

func newNetwork(spec shim.NetworkSpec, log *slog.Logger, end *os.File) (shim.Network, error) {
	var allow []netip.Prefix
	for _, s := range spec.AllowPrefixes {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, err
		}
		allow = append(allow, p)
	}
	conn, err := net.FileConn(end)
	if err != nil {
		return nil, err
	}
	return usernet.New(usernet.Config{Conn: conn, Policy: usernet.OpenPolicy(allow), Logger: log})
}

// network is the part of the configuration that every shim gets.
func (c *Config) network() shim.NetworkSpec { return shim.NetworkSpec{AllowPrefixes: c.AllowEgress} }
