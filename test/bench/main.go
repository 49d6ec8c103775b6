// Command bench measures Skerry from outside, as a client: what a create, a
// command in a sandbox, a delete and an import take, and how much memory a
// sandbox costs. It starts servers of its own, one after the other, on a data
// directory of its own, prints a table with what is promised of each figure, and
// writes all samples as JSON.
//
// It exits with 0 when everything could be measured, whether promises are kept
// or not, and with 1 when something failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

// sets are the parts of a run, in its order.
var sets = []string{"import", "template", "cold", "create", "tti", "burst", "exec", "loop", "memory", "lifecycle", "pool"}

type options struct {
	skerry, kernel, dir, archive, accel, json string
	n, pool                                   int
	only                                      []string
}

// bench is one run.
type bench struct {
	opt      options
	promises promises
	image    skerry.Image
	result   Result
	failures int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == helperCommand {
		exitOn(runHelper(os.Args[2:], os.Stdout))
		return
	}
	opt, err := parseOptions(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	exitOn(err)
	exitOn(run(ctx, opt))
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parseOptions(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&o.skerry, "skerry", "bin/skerry", "binary to measure")
	f.StringVar(&o.dir, "dir", ".cache/bench", "where the run's servers keep their data; images stay there for the next run")
	f.StringVar(&o.kernel, "kernel", "", "directory of the unpacked guest kernel (default the server fetches it)")
	f.StringVar(&o.archive, "archive", "", "image to measure with, an OCI or docker archive that holds node (default the default image, which is built)")
	f.StringVar(&o.accel, "accel", "auto", "auto, kvm or tcg")
	f.StringVar(&o.json, "json", "", "file for the result (default result.json in --dir)")
	f.IntVar(&o.n, "n", 100, "how often the quick things are measured; slow ones are measured less often")
	f.IntVar(&o.pool, "pool", 2, "size of the ready pool")
	only := f.String("only", strings.Join(sets, ","), "what to measure")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.only = strings.Split(*only, ",")
	for _, s := range o.only {
		if !slices.Contains(sets, s) {
			return o, fmt.Errorf("--only: %q is none of %s", s, strings.Join(sets, ","))
		}
	}
	if o.n < 1 || o.pool < 1 || f.NArg() > 0 {
		return o, errors.New("--n and --pool must be at least 1, and there are no arguments")
	}
	for _, path := range []*string{&o.skerry, &o.dir, &o.kernel, &o.archive} {
		if *path == "" {
			continue
		}
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return o, err
		}
	}
	if o.json == "" {
		o.json = filepath.Join(o.dir, "result.json")
	}
	return o, nil
}

func run(ctx context.Context, opt options) error {
	if err := os.MkdirAll(opt.dir, 0o755); err != nil {
		return err
	}
	load, err := observeLoad(ctx)
	if err != nil {
		return err
	}
	b := &bench{opt: opt, result: Result{Time: time.Now().UTC(), Load: load,
		Settings: Settings{N: opt.n, Pool: opt.pool, Sets: opt.only}}}
	for _, w := range load.Warnings {
		b.progress("warning: %s", w)
	}
	err = b.measure(ctx)
	// What was measured before a failure is worth having.
	err = errors.Join(err, b.result.Load.finish(), b.result.writeFile(opt.json))
	b.result.write(os.Stdout)
	fmt.Printf("\nall samples: %s\n", opt.json)
	if err == nil && b.failures > 0 {
		err = fmt.Errorf("%d attempts failed", b.failures)
	}
	return err
}

// measure runs the sets that are wanted, grouped by the server they need.
func (b *bench) measure(ctx context.Context) error {
	if err := b.prepare(ctx); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	type step struct {
		set string
		do  func(context.Context) error
	}
	for _, s := range []step{
		{"import", b.measureImport},
		{"template", b.measureTemplate},
		{"cold", b.measureCold},
		{"create", b.measureRestored},
		{"create,tti,burst,exec,loop,memory,lifecycle", b.measureWithoutPool},
		{"pool,tti,burst", b.measureWithPool},
	} {
		if !slices.ContainsFunc(strings.Split(s.set, ","), b.wants) {
			continue
		}
		if err := s.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.set, err)
		}
	}
	b.compareWithCold()
	return nil
}

// prepare makes the image ready and learns about the host.
func (b *bench) prepare(ctx context.Context) error {
	return b.withServer(ctx, serverConfig{name: "prepare", dataDir: b.dataDir()}, func(s *server) error {
		runners, err := s.Runners(ctx)
		if err != nil {
			return err
		}
		if b.result.Host, err = describeHost(runners[0]); err != nil {
			return err
		}
		if b.result.Version, err = s.ServerVersion(ctx); err != nil {
			return err
		}
		b.promises = promisesFor(runners[0].Accel)
		if b.image, err = b.prepareImage(ctx, s); err != nil {
			return err
		}
		b.result.Settings.Image, b.result.Settings.Digest = b.image.Name, b.image.Digest
		return nil
	})
}

func (b *bench) measureCold(ctx context.Context) error {
	return b.withServer(ctx, serverConfig{name: "cold", dataDir: b.dataDir(), coldBoot: true}, func(s *server) error {
		if err := b.warmUp(ctx, s, client.CreateSandbox{}); err != nil {
			return err
		}
		return b.measureSequence(ctx, s, sequence{set: "cold", name: "create to first output, cold boot", n: b.fewer()})
	})
}

// measureRestored measures the creates of a server that has just started, or
// that does not fork machines.
func (b *bench) measureRestored(ctx context.Context) error {
	return b.withServer(ctx, serverConfig{name: "restored", dataDir: b.dataDir()}, func(s *server) error {
		if err := b.warmUp(ctx, s, client.CreateSandbox{}); err != nil {
			return err
		}
		return b.measureSequence(ctx, s, sequence{set: "create", name: "create to first output, restored and not forked", n: b.fewer()})
	})
}

func (b *bench) measureWithoutPool(ctx context.Context) error {
	return b.withServer(ctx, serverConfig{name: "no-pool", dataDir: b.dataDir(), zygotes: true}, func(s *server) error {
		if err := b.warmUp(ctx, s, client.CreateSandbox{}); err != nil {
			return err
		}
		quarter := 0.25 // GiB
		steps := []struct {
			set string
			do  func() error
		}{
			{"create", func() error {
				return b.measureSequence(ctx, s, sequence{set: "create", name: "create to first output, from template", n: b.opt.n,
					deletes: true, promise: b.promises.create})
			}},
			{"tti", func() error { return b.measureInteractive(ctx, s, ", no pool") }},
			{"burst", func() error { return b.measureBurst(ctx, s, "", b.rounds(), b.promises.burst) }},
			{"exec", func() error { return b.measureExec(ctx, s) }},
			{"loop", func() error { return b.measureLoop(ctx, s) }},
			{"memory", func() error {
				return errors.Join(
					b.measureMemory(ctx, s, "256 MiB", &skerry.ResourcesRequest{MemoryMax: &quarter}, b.promises.memory),
					b.measureMemory(ctx, s, "the default size", nil, nil))
			}},
			{"lifecycle", func() error { return b.measureLifecycle(ctx, s) }},
		}
		for _, step := range steps {
			if !b.wants(step.set) {
				continue
			}
			if err := step.do(); err != nil {
				return fmt.Errorf("%s: %w", step.set, err)
			}
		}
		return nil
	})
}

func (b *bench) measureWithPool(ctx context.Context) error {
	return b.withServer(ctx, serverConfig{name: "pool", dataDir: b.dataDir(), pool: b.opt.pool, zygotes: true}, func(s *server) error {
		if err := b.warmUp(ctx, s, client.CreateSandbox{}); err != nil {
			return err
		}
		if b.wants("pool") {
			paced := sequence{set: "pool", name: "create to first output, full pool", n: b.opt.n, paced: true, promise: b.promises.pool}
			backToBack := sequence{set: "pool", name: "create to first output, pool, back to back", n: b.opt.n}
			if err := errors.Join(b.measureSequence(ctx, s, paced), b.measureSequence(ctx, s, backToBack)); err != nil {
				return err
			}
		}
		if b.wants("tti") {
			if err := b.measureInteractive(ctx, s, ", pool, back to back"); err != nil {
				return err
			}
		}
		if b.wants("burst") {
			return b.measureBurst(ctx, s, " with a pool", b.rounds(), b.promises.burst)
		}
		return nil
	})
}

// compareWithCold adds how much faster a template is than a boot, if both were
// measured.
func (b *bench) compareWithCold() {
	p50 := map[string]float64{}
	for _, f := range b.result.Figures {
		if f.Set == "cold" || f.Set == "create" && f.Promise != nil {
			p50[f.Set] = f.P50
		}
	}
	if p50["cold"] == 0 || p50["create"] == 0 {
		return
	}
	ratio := b.newSeries("create", "cold boot over template (ratio of P50)")
	ratio.unit, ratio.promise = "x", b.promises.ratio
	ratio.addValue(p50["cold"] / p50["create"])
	b.finish(ratio)
}

// withServer runs do with a server. Afterwards nothing may be left of any
// sandbox or machine.
func (b *bench) withServer(ctx context.Context, cfg serverConfig, do func(*server) error) error {
	s, err := b.startServer(ctx, cfg)
	if err != nil {
		return err
	}
	err = do(s)
	// Also after Ctrl-C: sandboxes outlive their server.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()
	err = errors.Join(err, s.deleteAll(clean), s.stop())
	if err != nil {
		return err
	}
	left, err := os.ReadDir(filepath.Join(cfg.dataDir, "machines"))
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("server %q has left %d machines, the first is %s", cfg.name, len(left), left[0].Name())
	}
	return err
}

func (b *bench) wants(set string) bool { return slices.Contains(b.opt.only, set) }

func (b *bench) dataDir() string { return filepath.Join(b.opt.dir, "data") }

// fewer is how often something slow is measured.
func (b *bench) fewer() int { return min(b.opt.n, max(3, b.opt.n/10)) }

// rounds is how often burstSize creates at once are measured.
func (b *bench) rounds() int { return max(1, b.opt.n/20) }

// progress tells who waits what goes on.
func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
