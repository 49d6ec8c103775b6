// Skerry-guest is the guest agent, PID 1 of every sandbox. It is not to be run
// anywhere else.
package main

import (
	"context"
	"log/slog"
	"os"

	"skerry.dev/skerry/internal/guest"
	"skerry.dev/skerry/internal/guest/control"
	"skerry.dev/skerry/internal/guest/toolbox"
	"skerry.dev/skerry/internal/guestapi"
)

// build is set by the linker.
var build = "unversioned"

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)) // the console
	guest.Main(context.Background(), build, newToolbox, log)
}

func newToolbox(spawner toolbox.Spawner, log *slog.Logger) control.Toolbox {
	return newAdapter(toolbox.Config{Spawner: spawner, Logger: log, Version: build})
}

// adapter speaks to the toolbox in its own words.
type adapter struct {
	*toolbox.Server
	config toolbox.Config
}

func newAdapter(c toolbox.Config) adapter { return adapter{toolbox.New(c), c} }

// Activate implements control.Toolbox.
func (t adapter) Activate(a guestapi.Activation) (user, home string, err error) {
	got, err := t.Server.Activate(toolbox.Defaults{
		User: a.User, WorkingDir: a.WorkingDir, ImageEnv: a.ImageEnv, Env: a.Env,
	})
	return got.User, got.Home, err
}

// Stage implements control.Toolbox.
func (t adapter) Stage() control.Toolbox { return newAdapter(t.config) }
