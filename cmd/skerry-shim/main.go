// Skerry-shim is the process that each sandbox has on its host. A server
// carries it and starts it with the directory of the machine; it is a program
// of its own because a create waits for it to start. It lives until it is told
// to stop.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"skerry.dev/skerry/internal/hypervisor"
	"skerry.dev/skerry/internal/machine"
	"skerry.dev/skerry/internal/shim"
	"skerry.dev/skerry/internal/usernet"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "skerry-shim is started by a server, with the directory of a machine")
		os.Exit(2)
	}
	// It was executed by the number of a descriptor, which says nothing.
	if err := os.WriteFile("/proc/self/comm", []byte(shim.ProgramName), 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	// A shim ends when its runner says so; a signal to the terminal's
	// process group is not meant for it.
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) error {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	spec, err := shim.ReadSpec(dir)
	if err != nil {
		return err
	}
	return shim.Run(ctx, shim.Config{Dir: dir, Spec: spec, Logger: log,
		Listening:  inherited(shim.FDListening, "listening"),
		NewDriver:  func(spec shim.DriverSpec) (machine.Driver, error) { return hypervisor.New(spec), nil },
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
