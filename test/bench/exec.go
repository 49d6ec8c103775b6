package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

const (
	noop = "/bin/true"
	// helperPath is where this program is put in a sandbox.
	helperPath = "/root/skerry-bench"
)

// withHelper calls do with the toolbox of a new sandbox that has this program.
func (b *bench) withHelper(ctx context.Context, s *server, do func(id skerry.SandboxID, box *client.Toolbox) error) (err error) {
	sb, err := s.create(ctx, client.CreateSandbox{Image: b.image.Name, User: "root"})
	defer func() {
		_, derr := b.remove(context.WithoutCancel(ctx), s, sb.ID)
		err = errors.Join(err, derr)
	}()
	if err != nil {
		return err
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	box := s.Toolbox(sb.ID)
	if err := box.Upload(ctx, helperPath, 0o755, self); err != nil {
		return fmt.Errorf("upload the helper: %w", err)
	}
	return do(sb.ID, box)
}

// measureExec measures round trips in a sandbox that runs, and what the guest
// itself takes to start and reap the same program.
func (b *bench) measureExec(ctx context.Context, s *server) error {
	return b.withHelper(ctx, s, func(id skerry.SandboxID, box *client.Toolbox) error {
		api := b.newSeries("exec", "GET /v2/version (API, no sandbox)")
		version := b.newSeries("exec", "GET toolbox /version (no process)")
		buffered := b.newSeries("exec", "exec of %s, buffered", noop)
		streamed := b.newSeries("exec", "exec of %s, streamed", noop)
		spawn := b.newSeries("exec", "the guest's own fork, exec and wait of %s", noop)
		calls := []struct {
			series *series
			call   func() error
		}{
			{api, func() error { return s.get(ctx, "/v2/version") }},
			{version, func() error { return s.get(ctx, "/toolbox/"+string(id)+"/version") }},
			{buffered, func() error { _, err := execute(ctx, box, noop); return err }},
			{streamed, func() error {
				res, err := box.Run(ctx, client.RunOptions{Argv: []string{noop}})
				if err == nil && (res.ExitCode == nil || *res.ExitCode != 0) {
					err = fmt.Errorf("%s ended with %+v", noop, res)
				}
				return err
			}},
		}
		// In turn, so that what else the host does meets all alike. The first
		// rounds fill caches and do not count.
		const unheeded = 3
		for i := range b.opt.n + unheeded {
			for _, c := range calls {
				start := time.Now()
				err := c.call()
				took := time.Since(start)
				if err := s.alive(ctx); err != nil {
					return err
				}
				switch {
				case err != nil:
					c.series.fail(err)
				case i >= unheeded:
					c.series.add(took)
				}
			}
		}
		samples, err := guestHelper[[]float64](ctx, box, "spawn", noop, fmt.Sprint(max(b.opt.n, 20)))
		if err != nil {
			return err
		}
		for _, v := range samples {
			spawn.addValue(v)
		}
		beyond := b.newSeries("exec", "exec beyond the guest's own fork and exec (difference of P50)")
		beyond.promise = b.promises.exec
		beyond.note = "buffered; streamed " + number(streamed.summary().P50-spawn.summary().P50)
		if len(buffered.samples) > 0 {
			beyond.addValue(buffered.summary().P50 - spawn.summary().P50)
		}
		b.finish(api, version, buffered, streamed, spawn, beyond)
		return nil
	})
}

// measureLoop runs the same program, memory-bound, in the guest and on the host
// in turn. The figures are the host's time over the guest's: 1 is as fast.
func (b *bench) measureLoop(ctx context.Context, s *server) error {
	return b.withHelper(ctx, s, func(_ skerry.SandboxID, box *client.Toolbox) error {
		for _, loop := range []struct{ name, title string }{
			{"chase", "dependent loads over 64 MiB"},
			{"sum", "sequential loads over 64 MiB"},
		} {
			ratio := b.newSeries("loop", "%s, guest's speed over the host's", loop.title)
			ratio.unit = "x"
			ratio.promise = b.promises.loop
			var guest, host []float64
			for range min(b.opt.n, 5) {
				h, err := hostHelper[float64](ctx, loop.name)
				if err != nil {
					return fmt.Errorf("on the host: %w", err)
				}
				g, err := guestHelper[float64](ctx, box, loop.name)
				if err != nil {
					return fmt.Errorf("in the guest: %w", err)
				}
				guest, host = append(guest, g), append(host, h)
				ratio.addValue(h / g)
			}
			ratio.note = fmt.Sprintf("%s ns a load in the guest, %s on the host", number(summarize(guest, 0).P50), number(summarize(host, 0).P50))
			b.finish(ratio)
		}
		return nil
	})
}

// guestHelper runs this program in the sandbox and decodes what it prints.
func guestHelper[T any](ctx context.Context, box *client.Toolbox, args ...string) (T, error) {
	var v T
	out, err := execute(ctx, box, append([]string{helperPath, helperCommand}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &v)
	}
	return v, err
}

func hostHelper[T any](ctx context.Context, args ...string) (T, error) {
	var v T
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{helperCommand}, args...)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return v, fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	return v, json.Unmarshal(out, &v)
}
