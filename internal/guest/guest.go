// Package guest is the guest agent: PID 1 of every sandbox.
package guest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"skerry.dev/skerry/internal/guest/control"
	"skerry.dev/skerry/internal/guest/pid1"
	"skerry.dev/skerry/internal/guest/spawn"
	"skerry.dev/skerry/internal/guest/toolbox"
	"skerry.dev/skerry/internal/guestapi"
)

// userGroups is where the sandbox's processes get their control groups.
const userGroups = "/sys/fs/cgroup"

// NewToolbox makes the part that runs processes for the sandbox's user.
type NewToolbox func(toolbox.Spawner, *slog.Logger) control.Toolbox

// Main is the agent's main function.
func Main(ctx context.Context, build string, newToolbox NewToolbox, log *slog.Logger) {
	// The kernel runs the agent's file as its modprobe, see package pid1.
	if args := os.Args; len(args) == 4 && args[1] == "-q" && args[2] == "--" {
		if err := pid1.Modprobe(args[3]); err != nil {
			os.Exit(1) // the kernel asks for many that are not there
		}
		return
	}
	if args := os.Args; len(args) == 2 && args[1] == control.RehearsalArg {
		return
	}
	if os.Getpid() != 1 {
		log.Error("the guest agent is PID 1 of a sandbox and runs nowhere else")
		os.Exit(2)
	}
	err := Run(ctx, build, newToolbox, log)
	log.Error("agent ends, and the machine with it", "err", err)
	os.Exit(1)
}

// Run boots the machine and serves hosts until the machine ends. Every error it
// returns is fatal: the end of PID 1 is a kernel panic, which ends the machine.
func Run(ctx context.Context, build string, newToolbox NewToolbox, log *slog.Logger) error {
	system, err := pid1.Boot(ctx, log)
	if err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	kernel, err := pid1.Kernel()
	if err != nil {
		return err
	}
	spawner, reaper := spawn.New(userGroups)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { reaper.Run(ctx) })

	hello := guestapi.Hello{Version: guestapi.Version, Build: build, Kernel: kernel}
	agent := control.New(machine{system, spawner}, newToolbox(spawner, log), hello, log)
	defer agent.Close()
	return guestapi.Serve(ctx, system.Port(), agent.Handle)
}
