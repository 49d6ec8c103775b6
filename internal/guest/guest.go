// Package guest is the guest agent: PID 1 of every sandbox.
package guest

import (
	"context"
	"fmt"
	"log/slog"
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
	agent := control.New(system, newToolbox(spawner, log), hello, log)
	defer agent.Close()
	return guestapi.Serve(ctx, system.Port(), agent.Handle)
}
