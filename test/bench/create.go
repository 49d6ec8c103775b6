package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

// burstSize is how many sandboxes are created at once.
const burstSize = 20

// firstOutput notes when the first byte arrives.
type firstOutput struct {
	bytes.Buffer
	at time.Time
}

func (f *firstOutput) Write(p []byte) (int, error) {
	if f.at.IsZero() {
		f.at = time.Now()
	}
	return f.Buffer.Write(p)
}

// attempt is one create with a first command.
type attempt struct {
	id      skerry.SandboxID // "" if the create failed
	machine skerry.MachineID
	running time.Duration // to the answer that it is running
	output  time.Duration // to the first byte of the command's output
}

// createAndEcho creates a sandbox and runs a command in it, on one clock. The
// sandbox is there, whatever the error, if the attempt has an id.
func (b *bench) createAndEcho(ctx context.Context, s *server, req client.CreateSandbox) (attempt, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	const word = "first-output"
	var a attempt
	var out firstOutput
	req.Image = b.image.Name
	start := time.Now()
	sb, err := s.create(ctx, req)
	a.id, a.machine, a.running = sb.ID, sb.Machine, time.Since(start)
	if err != nil {
		return a, fmt.Errorf("create: %w", err)
	}
	res, err := s.Toolbox(sb.ID).Run(ctx, client.RunOptions{Argv: []string{"echo", word}, Stdout: &out})
	a.output = out.at.Sub(start)
	if err != nil {
		return a, fmt.Errorf("run echo: %w", err)
	}
	if res.ExitCode == nil || *res.ExitCode != 0 || out.String() != word+"\n" {
		return a, fmt.Errorf("echo ended with %+v and wrote %q", res, out.String())
	}
	return a, nil
}

// remove deletes the sandbox of an attempt, if there is one, and returns how
// long that took.
func (b *bench) remove(ctx context.Context, s *server, id skerry.SandboxID) (time.Duration, error) {
	if id == "" {
		return 0, nil
	}
	start := time.Now()
	err := s.delete(ctx, id)
	return time.Since(start), err
}

// warmUp makes one sandbox that does not count: it makes or loads the template
// of the shape, and a machine to fork others from and the ready pool are of that
// shape from then on.
func (b *bench) warmUp(ctx context.Context, s *server, req client.CreateSandbox) error {
	a, err := b.createAndEcho(ctx, s, req)
	_, derr := b.remove(ctx, s, a.id)
	if err := errors.Join(err, derr); err != nil {
		return fmt.Errorf("first sandbox: %w", err)
	}
	size, err := json.Marshal(req.Resources)
	if err != nil {
		return err
	}
	return s.waitZygote(ctx, string(size))
}

// sequence is n creates to first output, one after the other.
type sequence struct {
	set, name string
	n         int
	paced     bool // wait for the ready pool to be full before each
	deletes   bool // report the deletes too
	promise   *Promise
}

func (b *bench) measureSequence(ctx context.Context, s *server, q sequence) error {
	output := b.newSeries(q.set, "%s", q.name)
	output.promise = q.promise
	removed := b.newSeries(q.set, "delete, until nothing is left of it")
	fromPool := 0
	for range q.n {
		if q.paced {
			if err := s.waitPool(ctx); err != nil {
				return err
			}
		}
		a, err := b.createAndEcho(ctx, s, client.CreateSandbox{})
		if err != nil {
			output.fail(err)
		} else {
			output.add(a.output)
		}
		took, derr := b.remove(ctx, s, a.id)
		if derr != nil {
			removed.fail(derr)
		} else if a.id != "" {
			removed.add(took)
		}
		if err == nil {
			// The log line comes before the delete's end.
			steps, pooled := s.log.of(a.id)
			output.addSteps(steps, map[string]float64{"client: create": ms(a.running), "client: first command": ms(a.output - a.running)})
			if pooled {
				fromPool++
			}
		}
		if err := s.alive(ctx); err != nil {
			return err
		}
	}
	if s.pool > 0 {
		output.note = fmt.Sprintf("%d of %d from the pool", fromPool, q.n)
	}
	b.finish(output)
	if q.deletes {
		b.finish(removed)
	} else {
		b.countFailures(removed)
	}
	return nil
}

// measureBurst creates burstSize sandboxes at once; a sample is the time until
// the last of them has run a command.
func (b *bench) measureBurst(ctx context.Context, s *server, name string, rounds int, promise *Promise) error {
	all := b.newSeries("burst", "%d creates at once%s, until all are usable", burstSize, name)
	all.promise = promise
	each := b.newSeries("burst", "%d creates at once%s, each to first output", burstSize, name)
	for range rounds {
		if err := s.waitPool(ctx); err != nil {
			return err
		}
		attempts, errs := make([]attempt, burstSize), make([]error, burstSize)
		var wg sync.WaitGroup
		start := time.Now()
		for i := range burstSize {
			wg.Go(func() { attempts[i], errs[i] = b.createAndEcho(ctx, s, client.CreateSandbox{}) })
		}
		wg.Wait()
		took := time.Since(start)
		if err := errors.Join(errs...); err != nil {
			all.fail(err)
		} else {
			all.add(took)
		}
		for i, a := range attempts {
			if errs[i] != nil {
				each.failed++ // printed with the round
			} else {
				each.add(a.output)
			}
		}
		if err := s.deleteAll(ctx); err != nil {
			return err
		}
	}
	b.finish(all, each)
	return nil
}

// measureTemplate makes the template of the default shape anew and again, each
// time by a server that finds none.
func (b *bench) measureTemplate(ctx context.Context) error {
	made := b.newSeries("template", "template creation (boot and capture)")
	first := b.newSeries("template", "first create of an image to first output, template included")
	for range min(b.opt.n, 3) {
		if err := os.RemoveAll(filepath.Join(b.dataDir(), "templates")); err != nil {
			return err
		}
		err := b.withServer(ctx, serverConfig{name: "template", dataDir: b.dataDir()}, func(s *server) error {
			a, err := b.createAndEcho(ctx, s, client.CreateSandbox{})
			if err != nil {
				first.fail(err)
			} else {
				first.add(a.output)
			}
			if _, err := b.remove(ctx, s, a.id); err != nil {
				return err
			}
			for _, v := range s.log.templatesMade() {
				made.addValue(v)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	b.finish(made, first)
	return nil
}
