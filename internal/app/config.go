// Package app puts the parts together. It is the only package that sees every
// layer; cmd/skerry calls it.
package app

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/runner/cgroup"
)

// DefaultListen is where a server listens unless told otherwise.
const DefaultListen = "127.0.0.1:3986"

// Config is all a server can be told.
type Config struct {
	DataDir string // absolute
	// ClientConfig is the command line's configuration file, to which the
	// first start writes address and key; "" writes none.
	ClientConfig    string
	Listen          string // host:port
	TLSCert, TLSKey string // PEM files; required to listen beyond loopback
	Hosts           []string
	PoolSize        int
	Zygotes         int      // for how many templates
	Parallel        int      // machines started at once; 0 is the number of processors
	Accel           string   // auto, kvm, tcg
	QEMU            string   // binary
	Kernel, Modules string   // of the user's own guest kernel; "" uses Debian's
	AllowEgress     []string // prefixes opened although closed by default
	MemoryMiB       int64    // memory for sandboxes, guaranteed and lent; 0 is all of the host's
	CPUBurst        float64  // cores a sandbox may use that asks for no limit
	ColdBoot        bool     // boot every sandbox, for comparison and debugging
	Policy          skerry.PolicyDefaults
	Version         string // of this build
	Logger          *slog.Logger
	// Step is called at each named step of a create or delete; tests use it
	// to die there. It may be nil.
	Step func(string)

	cgroups *cgroup.Groups
}

// Defaults returns the configuration of a server without flags.
func Defaults() (Config, error) {
	data, err := dataHome()
	if err != nil {
		return Config{}, err
	}
	return Config{DataDir: filepath.Join(data, "skerry"), Listen: DefaultListen,
		PoolSize: 2, Zygotes: 2, CPUBurst: 1, Accel: "auto", QEMU: "qemu-system-x86_64"}, nil
}

// dataHome is $XDG_DATA_HOME (XDG Base Directory Specification).
func dataHome() (string, error) {
	if d := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(d) {
		return d, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("data directory: %w; use --data-dir", err)
	}
	return filepath.Join(home, ".local", "share"), nil
}

// validate checks what does not need the host and fills what was left open.
func (c *Config) validate() error {
	var err error
	if c.DataDir, err = filepath.Abs(c.DataDir); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return skerry.Invalid("--listen", "host_port", "host:port", "%v", err)
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return skerry.Invalid("--tls-cert", "pair", "with --tls-key", "certificate and key go together")
	}
	if c.TLSCert == "" && !loopback(host) {
		return skerry.Invalid("--listen", "loopback", "127.0.0.0/8 or ::1",
			"%s is reached from other machines, and without TLS API keys would cross the network in clear; give --tls-cert and --tls-key, or listen on 127.0.0.1", c.Listen)
	}
	for _, p := range c.AllowEgress {
		if _, err := netip.ParsePrefix(p); err != nil {
			return skerry.Invalid("--allow-egress", "prefix", "address/bits", "%v", err)
		}
	}
	switch c.Accel {
	case "auto", "kvm", "tcg":
	default:
		return skerry.Invalid("--accel", "enum", "auto, kvm, tcg", "is %q", c.Accel)
	}
	if err := validatePolicy(c.Policy); err != nil {
		return err
	}
	if c.Zygotes < 0 {
		return skerry.Invalid("--zygotes", "min", "0", "must not be negative, is %d", c.Zygotes)
	}
	if c.PoolSize < 0 {
		return skerry.Invalid("--pool", "min", "0", "must not be negative, is %d", c.PoolSize)
	}
	if c.Parallel <= 0 {
		c.Parallel = runtime.NumCPU()
	}
	if c.CPUBurst <= 0 || c.CPUBurst > skerry.MaxCPU || math.Mod(c.CPUBurst, 0.5) != 0 {
		return skerry.Invalid("--max-cpu-burst", "multiple", "0.5 cores", "must be a multiple of 0.5 from 0.5 to %v, is %v", skerry.MaxCPU, c.CPUBurst)
	}
	if c.MemoryMiB <= 0 {
		if c.MemoryMiB, err = hostMemoryMiB(); err != nil {
			return err
		}
	}
	return nil
}

// validatePolicy checks the operator's defaults, so that no create can fail of
// them.
func validatePolicy(d skerry.PolicyDefaults) error {
	limit := cmp.Or(d.MaxTimeoutSeconds, skerry.MaxTimeoutSeconds)
	switch {
	case d.MaxTimeoutSeconds < 0:
		return skerry.Invalid("--max-timeout-seconds", "min", "1", "must be at least 1, is %d", d.MaxTimeoutSeconds)
	case d.TimeoutSeconds < 0 || d.TimeoutSeconds > limit:
		return skerry.Invalid("--default-timeout-seconds", "range", fmt.Sprintf("0 to %d", limit), "must be 0 to %d, is %d", limit, d.TimeoutSeconds)
	case d.PlatformTimeout && limit < skerry.PlatformTimeoutSeconds:
		return skerry.Invalid("--platform-timeout", "max", fmt.Sprint(limit), "is %d s, more than --max-timeout-seconds %d allows", skerry.PlatformTimeoutSeconds, limit)
	case d.IdleExpirySeconds != 0 && (d.IdleExpirySeconds < skerry.MinIdleSeconds || d.IdleExpirySeconds > skerry.MaxIdleSeconds):
		return skerry.Invalid("--default-idle-seconds", "range", fmt.Sprintf("0, or %d to %d", skerry.MinIdleSeconds, skerry.MaxIdleSeconds),
			"must be 0 for none, or %d to %d, is %d", skerry.MinIdleSeconds, skerry.MaxIdleSeconds, d.IdleExpirySeconds)
	}
	for _, a := range []struct {
		flag   string
		action skerry.TimerAction
	}{{"--default-timeout-action", d.OnTimeout}, {"--default-idle-action", d.OnIdleTimeout}} {
		switch a.action {
		case "", skerry.ActionDelete, skerry.ActionStop, skerry.ActionPause:
		default:
			return skerry.Invalid(a.flag, "one_of", "delete, stop, pause", "%q is not delete, stop or pause", string(a.action))
		}
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
