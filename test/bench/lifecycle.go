package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/client"
)

// guestLoad is a sandbox whose operations are measured.
type guestLoad struct {
	name      string
	memoryMax float64 // GiB
	memory    float64 // GiB, or 0
	dirtyMiB  int     // written into its memory, which saves then have to keep
	rounds    int
	promise   *Promise // of the standstill of a snapshot or fork
}

// operations collects the figures of one guestLoad.
type operations struct {
	stop, start, pause, pauseBytes, resume   *series
	snapshot, still, snapshotBytes, restored *series
	fork, forkStill, capture, captureStill   *series
}

func (b *bench) newOperations(l guestLoad) *operations {
	of := func(format string) *series { return b.newSeries("lifecycle", format+", %s", l.name) }
	o := &operations{
		stop: of("stop"), start: of("start to first output"), pause: of("pause"), resume: of("resume to first output"),
		snapshot: of("memory snapshot, until it is ready"), restored: of("restore of a snapshot to first output"),
		fork: of("fork, until the child has run a command"), capture: of("capture, until the image is ready"),
		still: of("standstill of the source of a snapshot"), forkStill: of("standstill of the source of a fork"),
		captureStill: of("writes held back by a capture"),
		pauseBytes:   of("written by a pause"), snapshotBytes: of("memory stored by a snapshot"),
	}
	o.pauseBytes.unit, o.snapshotBytes.unit = "MiB", "MiB"
	o.still.promise, o.forkStill.promise = l.promise, l.promise
	return o
}

// measureLifecycle measures what can be done with a sandbox that is kept.
func (b *bench) measureLifecycle(ctx context.Context, s *server) error {
	for _, l := range []guestLoad{
		{name: "idle guest of 256 MiB", memoryMax: .25, rounds: b.fewer(), promise: b.promises.still},
		{name: "guest with 1 GiB dirty", memory: 2, memoryMax: 2, dirtyMiB: 1024, rounds: 3},
	} {
		if err := b.measureOperations(ctx, s, l); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	return errors.Join(b.measureCycles(ctx, s), b.measureForks(ctx, s))
}

func (l guestLoad) request() client.CreateSandbox {
	r := &skerry.ResourcesRequest{MemoryMax: &l.memoryMax}
	if l.memory > 0 {
		r.Memory = &l.memory
	}
	return client.CreateSandbox{Persistent: true, User: "root", Resources: r}
}

// withKept calls do with a persistent sandbox that is loaded as l says.
func (b *bench) withKept(ctx context.Context, s *server, l guestLoad, do func(skerry.Sandbox) error) (err error) {
	req := l.request()
	req.Image = b.image.Name
	sb, err := s.create(ctx, req)
	defer func() {
		_, derr := b.remove(context.WithoutCancel(ctx), s, sb.ID)
		err = errors.Join(err, derr)
	}()
	if err != nil {
		return err
	}
	return do(sb)
}

// dirty fills memory with what no template has.
func (l guestLoad) dirty(ctx context.Context, s *server, id skerry.SandboxID) error {
	if l.dirtyMiB == 0 {
		return nil
	}
	script := fmt.Sprintf("mount -o remount,size=90%% /dev/shm && yes $$ | head -c %dM > /dev/shm/dirty", l.dirtyMiB)
	_, err := execute(ctx, s.Toolbox(id), "sh", "-c", script)
	return err
}

func (b *bench) measureOperations(ctx context.Context, s *server, l guestLoad) error {
	o := b.newOperations(l)
	err := b.withKept(ctx, s, l, func(sb skerry.Sandbox) error {
		// The first start makes a template, which later ones find.
		if err := s.cycle(ctx, sb.ID, skerry.Stop); err != nil {
			return err
		}
		for i := range l.rounds {
			if err := l.dirty(ctx, s, sb.ID); err != nil {
				return err
			}
			if err := b.operationsRound(ctx, s, o, sb.ID, i); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.finish(o.snapshot, o.still, o.snapshotBytes, o.restored, o.fork, o.forkStill, o.capture, o.captureStill,
		o.pause, o.pauseBytes, o.resume, o.stop, o.start)
	return nil
}

// operationsRound goes once through all operations.
func (b *bench) operationsRound(ctx context.Context, s *server, o *operations, id skerry.SandboxID, round int) error {
	for _, step := range []func() error{
		func() error { return b.snapshotRound(ctx, s, o, id, round) },
		func() error { return b.forkRound(ctx, s, o, id) },
		func() error { return b.captureRound(ctx, s, o, id, round) },
		func() error { return timed(o.pause, func() error { return s.operate(ctx, id, skerry.Pause) }) },
		func() error {
			bytes, err := allocated(filepath.Join(s.dataDir, "sandboxes", string(id), "memory"))
			o.pauseBytes.addValue(float64(bytes) / (1 << 20))
			return err
		},
		func() error { return timed(o.resume, func() error { return s.operateAndEcho(ctx, id, skerry.Resume) }) },
		func() error { return timed(o.stop, func() error { return s.operate(ctx, id, skerry.Stop) }) },
		func() error { return timed(o.start, func() error { return s.operateAndEcho(ctx, id, skerry.Start) }) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// timed adds how long do took, if it went well.
func timed(to *series, do func() error) error {
	begin := time.Now()
	err := do()
	if err == nil {
		to.add(time.Since(begin))
	}
	return err
}

func (b *bench) snapshotRound(ctx context.Context, s *server, o *operations, id skerry.SandboxID, round int) error {
	name := fmt.Sprintf("bench-%s-%d", id[len(id)-6:], round)
	var snapshot skerry.Snapshot
	err := timed(o.snapshot, func() (err error) {
		if _, err = s.CreateSnapshot(ctx, string(id), name); err == nil {
			snapshot, err = s.WaitSnapshot(ctx, name, attemptTimeout)
		}
		return err
	})
	if err != nil {
		return err
	}
	o.still.addValue(s.log.stillOf(id))
	o.snapshotBytes.addValue(float64(snapshot.MemoryBytes) / (1 << 20))
	for range 2 { // the first one loads the snapshot into memory
		var sb skerry.Sandbox
		begin := time.Now()
		sb, err = s.RestoreSnapshot(ctx, name, skerry.RestoreRequest{})
		if err == nil {
			err = s.awaitEcho(ctx, sb.ID)
		}
		o.restored.add(time.Since(begin))
		_, derr := b.remove(ctx, s, sb.ID)
		if err = errors.Join(err, derr); err != nil {
			return err
		}
	}
	return s.DeleteSnapshot(ctx, name)
}

func (b *bench) forkRound(ctx context.Context, s *server, o *operations, id skerry.SandboxID) error {
	var child skerry.SandboxID
	err := timed(o.fork, func() error {
		children, err := s.ForkSandbox(ctx, string(id), skerry.ForkRequest{})
		if err != nil {
			return err
		}
		child = children[0].ID
		return s.awaitEcho(ctx, child)
	})
	o.forkStill.addValue(s.log.stillOf(id))
	_, derr := b.remove(ctx, s, child)
	return errors.Join(err, derr)
}

func (b *bench) captureRound(ctx context.Context, s *server, o *operations, id skerry.SandboxID, round int) error {
	// Something for the image to hold.
	if _, err := execute(ctx, s.Toolbox(id), "sh", "-c", fmt.Sprintf("head -c 16M /dev/urandom > /root/captured-%d", round)); err != nil {
		return err
	}
	var image skerry.Image
	err := timed(o.capture, func() (err error) {
		if image, err = s.CaptureImage(ctx, string(id), skerry.CaptureRequest{}); err == nil {
			image, err = s.WaitImage(ctx, string(image.ID), attemptTimeout, nil)
		}
		return err
	})
	o.captureStill.addValue(s.log.frozenOf(id))
	if err == nil && image.Status != skerry.ImageReady {
		err = fmt.Errorf("the image failed: %s", image.Error)
	}
	return errors.Join(err, s.DeleteImage(ctx, string(image.ID)))
}

// cycles is how often a sandbox is stopped and started, and paused and resumed.
const cycles = 50

// measureCycles takes a sandbox through many stops and pauses. A digest over all
// its files that changes fails the run.
func (b *bench) measureCycles(ctx context.Context, s *server) error {
	n := min(cycles, max(5, b.opt.n/2))
	stops := b.newSeries("lifecycle", "stop and start, one of %d in a row, digests checked", n)
	pauses := b.newSeries("lifecycle", "pause and resume, one of %d in a row, digests checked", n)
	l := guestLoad{memoryMax: .25}
	err := b.withKept(ctx, s, l, func(sb skerry.Sandbox) error {
		const files = "mkdir -p /root/files && cd /root/files && for i in $(seq 40); do head -c ${i}0000 /dev/urandom > f$i; done"
		if _, err := execute(ctx, s.Toolbox(sb.ID), "sh", "-c", files); err != nil {
			return err
		}
		digest := func() (string, error) {
			return execute(ctx, s.Toolbox(sb.ID), "sh", "-c", "cat /root/files/* | sha256sum")
		}
		want, err := digest()
		if err != nil {
			return err
		}
		for _, c := range []struct {
			of   *series
			down skerry.Action
		}{{stops, skerry.Stop}, {pauses, skerry.Pause}} {
			for i := range n {
				if err := timed(c.of, func() error { return s.cycle(ctx, sb.ID, c.down) }); err != nil {
					return fmt.Errorf("cycle %d: %w", i, err)
				}
				if got, err := digest(); err != nil || got != want {
					return fmt.Errorf("cycle %d: digest %q, want %q: %w", i, got, want, err)
				}
			}
		}
		return nil
	})
	b.finish(stops, pauses)
	return err
}

// measureForks makes many children of one sandbox at once.
func (b *bench) measureForks(ctx context.Context, s *server) error {
	all := b.newSeries("lifecycle", "fork of one into %d, until all have run a command", burstSize)
	l := guestLoad{memoryMax: .25}
	err := b.withKept(ctx, s, l, func(sb skerry.Sandbox) error {
		var children []skerry.Sandbox
		err := timed(all, func() (err error) {
			if children, err = s.ForkSandbox(ctx, string(sb.ID), skerry.ForkRequest{Count: burstSize}); err != nil {
				return err
			}
			errs := make(chan error, len(children))
			for _, c := range children {
				go func() { errs <- s.awaitEcho(ctx, c.ID) }()
			}
			for range children {
				err = errors.Join(err, <-errs)
			}
			return err
		})
		for _, c := range children {
			_, derr := b.remove(ctx, s, c.ID)
			err = errors.Join(err, derr)
		}
		return err
	})
	b.finish(all)
	return err
}

// operate asks for an operation and waits for its end.
func (s *server) operate(ctx context.Context, id skerry.SandboxID, a skerry.Action) error {
	do := map[skerry.Action]struct {
		ask func(context.Context, string) (skerry.Sandbox, error)
		end skerry.Status
	}{
		skerry.Stop:   {s.StopSandbox, skerry.StatusStopped},
		skerry.Pause:  {s.PauseSandbox, skerry.StatusPaused},
		skerry.Start:  {s.StartSandbox, skerry.StatusRunning},
		skerry.Resume: {s.ResumeSandbox, skerry.StatusRunning},
	}[a]
	if _, err := do.ask(ctx, string(id)); err != nil {
		return err
	}
	_, err := s.WaitOperation(ctx, string(id), attemptTimeout, do.end)
	return err
}

func (s *server) operateAndEcho(ctx context.Context, id skerry.SandboxID, a skerry.Action) error {
	if err := s.operate(ctx, id, a); err != nil {
		return err
	}
	_, err := execute(ctx, s.Toolbox(id), "echo", "first-output")
	return err
}

// cycle takes a sandbox down and up again.
func (s *server) cycle(ctx context.Context, id skerry.SandboxID, down skerry.Action) error {
	if err := s.operate(ctx, id, down); err != nil {
		return err
	}
	return s.operateAndEcho(ctx, id, skerry.Start)
}

// awaitEcho waits until a new sandbox has run a command.
func (s *server) awaitEcho(ctx context.Context, id skerry.SandboxID) error {
	if sb, err := s.WaitSandbox(ctx, string(id), attemptTimeout, skerry.StatusRunning); err != nil {
		return fmt.Errorf("%w (%s)", err, sb.Reason)
	}
	_, err := execute(ctx, s.Toolbox(id), "echo", "first-output")
	return err
}

// allocated is what the files of a directory take on the disk, those that are
// linked to from elsewhere not counted.
func allocated(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if st := info.Sys().(*syscall.Stat_t); st.Nlink == 1 {
			bytes += st.Blocks * 512
		}
		return nil
	})
	return bytes, err
}
