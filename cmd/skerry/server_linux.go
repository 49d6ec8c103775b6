package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
	"skerry.dev/skerry/internal/app"
	"skerry.dev/skerry/internal/host"
)

// serverCommands are the commands that only a Linux host has.
func serverCommands(c *cli) []*cobra.Command {
	return []*cobra.Command{serverCommand(c), doctorCommand(c), kernelCommand(c)}
}

// serverFlags binds the flags that server and doctor share.
func serverFlags(cmd *cobra.Command, cfg *app.Config) {
	f := cmd.Flags()
	f.StringVar(&cfg.DataDir, "data-dir", cfg.DataDir, "where sandboxes, images and state are kept")
	f.StringVar(&cfg.Accel, "accel", cfg.Accel, "auto, kvm or tcg (software emulation)")
	f.StringVar(&cfg.QEMU, "qemu", cfg.QEMU, "QEMU binary")
	f.StringVar(&cfg.Kernel, "kernel", "", "guest kernel image instead of Debian's; goes with --modules")
	f.StringVar(&cfg.Modules, "modules", "", "directory of the kernel's modules, .../lib/modules/VERSION")
	cmd.MarkFlagsRequiredTogether("kernel", "modules")
}

const serverHelp = `Run a server: API, control plane and runner in one process.

It needs no root. With root it also enforces CPU shares and limits, as it does in
a control group that was delegated to it (systemd-run --user --scope -p Delegate=yes
skerry server), and gives each hypervisor a user id of its own. The first start makes
an API key and sets the command line up for this server. Sandboxes go on running
when the server ends, and the next one takes them over.`

func serverCommand(c *cli) *cobra.Command {
	cfg, defErr := app.Defaults()
	var logLevel slog.LevelVar
	cmd := &cobra.Command{
		Use: "server", Short: "Run a server", Long: serverHelp, Args: cobra.NoArgs,
		Example: "  skerry server\n  skerry server --listen 0.0.0.0:3986 --tls-cert cert.pem --tls-key key.pem",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if defErr != nil && !cmd.Flags().Changed("data-dir") {
				return defErr
			}
			cfg.Logger = c.logger(&logLevel)
			return runServer(cmd.Context(), cfg)
		},
	}
	serverFlags(cmd, &cfg)
	f := cmd.Flags()
	f.StringVar(&cfg.Listen, "listen", cfg.Listen, "address and port of the API; beyond loopback only with TLS")
	f.StringVar(&cfg.TLSCert, "tls-cert", "", "certificate, PEM")
	f.StringVar(&cfg.TLSKey, "tls-key", "", "its key, PEM")
	f.StringSliceVar(&cfg.Hosts, "host", nil, "further host names that clients use for this server")
	f.IntVar(&cfg.Zygotes, "zygotes", cfg.Zygotes, "images and sizes of the last creates for which a machine to fork others from is kept, under software emulation")
	f.IntVar(&cfg.PoolSize, "pool", cfg.PoolSize, "started machines kept ready")
	f.IntVar(&cfg.Parallel, "parallel", 0, "machines started at once (default the number of processors)")
	f.Int64Var(&cfg.MemoryMiB, "memory-mib", 0, "memory for sandboxes together: guaranteed, and lent to those that grow (default all of the host's)")
	f.Float64Var(&cfg.CPUBurst, "max-cpu-burst", cfg.CPUBurst, "cores that a sandbox may use which asks for no limit (cpu_max), a multiple of 0.5")
	f.StringSliceVar(&cfg.AllowEgress, "allow-egress", nil, "address prefixes that sandboxes may reach although they are closed by default (10.1.2.0/24)")
	policyFlags(cmd, &cfg.Policy)
	f.BoolVar(&cfg.ColdBoot, "cold-boot", false, "boot every sandbox instead of restoring a template, for comparison")
	f.TextVar(&logLevel, "log-level", &logLevel, "debug, info, warn or error")
	return cmd
}

// policyFlags binds what the operator says of timeouts.
func policyFlags(cmd *cobra.Command, d *skerry.PolicyDefaults) {
	f := cmd.Flags()
	f.IntVar(&d.TimeoutSeconds, "default-timeout-seconds", 0, "timeout of sandboxes that are created without one; 0 is none")
	f.StringVar((*string)(&d.OnTimeout), "default-timeout-action", string(skerry.ActionDelete), "what it does: delete, stop or pause; ephemeral sandboxes are deleted")
	f.IntVar(&d.IdleExpirySeconds, "default-idle-seconds", 0, "idle timeout of sandboxes that are created without one, at least 60; 0 is none")
	f.StringVar((*string)(&d.OnIdleTimeout), "default-idle-action", string(skerry.ActionDelete), "what it does: delete, stop or pause; ephemeral sandboxes are deleted")
	f.BoolVar(&d.PlatformTimeout, "platform-timeout", false, "delete sandboxes without any timeout after 300 s; off because on a host of one's own nothing but the owner's work is lost by it")
	f.IntVar(&d.MaxTimeoutSeconds, "max-timeout-seconds", skerry.MaxTimeoutSeconds, "longest timeout that can be asked for")
	for _, flag := range []string{"default-timeout-action", "default-idle-action"} {
		completeTimerActions(cmd, flag)
	}
}

// logger writes JSON, and text where a person looks on.
func (c *cli) logger(level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if term.IsTerminal(int(c.stderr.Fd())) {
		return slog.New(slog.NewTextHandler(c.stderr, opts))
	}
	return slog.New(slog.NewJSONHandler(c.stderr, opts))
}

func runServer(ctx context.Context, cfg app.Config) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if cfg.ClientConfig, err = client.FilePath(); err != nil {
		return err
	}
	cfg.Version = version
	cfg.Step = crashStep()
	s, err := app.Open(ctx, cfg)
	if err != nil {
		return err
	}
	cfg.Logger.Info("listening", "url", s.URL(), "data_dir", cfg.DataDir)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	err = s.Run(ctx)
	if cerr := s.Close(); err == nil {
		err = cerr
	}
	return err
}

// crashStepEnv names the step of a create or delete at which the server kills
// itself, for tests of what a crash leaves.
const crashStepEnv = "SKERRY_DEBUG_CRASH_AT"

func crashStep() func(string) {
	at := os.Getenv(crashStepEnv)
	if at == "" {
		return nil
	}
	return func(step string) {
		if step == at {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}

func doctorCommand(c *cli) *cobra.Command {
	cfg, defErr := app.Defaults()
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check what this host needs to run sandboxes", Args: cobra.NoArgs,
		Long: "Check each prerequisite, say what is wrong and what to type. Exits with 1 if sandboxes cannot run.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if defErr != nil && !cmd.Flags().Changed("data-dir") {
				return defErr
			}
			cfg.Logger = slog.New(slog.DiscardHandler)
			checks, err := app.Doctor(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if err := c.printChecks(checks); err != nil {
				return err
			}
			if host.Failed(checks) {
				return exitError{exitError1}
			}
			return nil
		},
	}
	serverFlags(cmd, &cfg)
	return cmd
}

func (c *cli) printChecks(checks []skerry.Check) error {
	if !c.tables() {
		return c.printJSON(checks)
	}
	marks := map[skerry.CheckLevel]string{skerry.CheckOK: "ok  ", skerry.CheckWarn: "warn", skerry.CheckFail: "FAIL"}
	for _, k := range checks {
		fmt.Fprintf(c.stdout, "%s  %-15s %s\n", marks[k.Level], k.Name, k.Detail)
		if k.Fix != "" && k.Level != skerry.CheckOK {
			fmt.Fprintf(c.stdout, "      %-15s -> %s\n", "", k.Fix)
		}
	}
	return nil
}

func kernelCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "kernel", Short: "The guest kernel"}
	var dir, deb string
	fetch := &cobra.Command{
		Use: "fetch", Short: "Fetch Debian's kernel package and unpack it", Args: cobra.NoArgs,
		Long: "Fetch Debian's kernel package with apt-get (no root needed) and unpack it. A server does so by itself when it starts.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				cfg, err := app.Defaults()
				if err != nil {
					return err
				}
				dir = filepath.Join(cfg.DataDir, "kernel", "debian")
			}
			k, err := app.FetchKernel(cmd.Context(), dir, deb)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.stdout, k.Version)
			return nil
		},
	}
	fetch.Flags().StringVar(&dir, "dir", "", "where to unpack it (default the data directory's kernel/debian)")
	fetch.Flags().StringVar(&deb, "deb", "", "package file to unpack instead of fetching one")
	cmd.AddCommand(fetch)
	return cmd
}
