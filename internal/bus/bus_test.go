package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"skerry.dev/skerry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is how long a test waits for what must come.
const limit = 20 * time.Second

func openBus(t testing.TB, cfg Config) *Bus {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	b, err := Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeBus(t, b) })
	return b
}

func closeBus(t testing.TB, b *Bus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Error(err)
	}
}

// forEach runs the test on the embedded server and on a server of its own that
// is reached by TCP, as a cluster is: one connection for the control plane, one
// for the runner.
func forEach(t *testing.T, test func(t *testing.T, control, runner *Bus)) {
	t.Run("embedded", func(t *testing.T) {
		b := openBus(t, Config{Dir: t.TempDir()})
		test(t, b, b)
	})
	t.Run("cluster", func(t *testing.T) {
		ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: t.TempDir(), MaxPayload: MaxMessageBytes, MaxPending: 8 * MaxMessageBytes})
		if err != nil {
			t.Fatal(err)
		}
		ns.Start()
		t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
		if !ns.ReadyForConnections(limit) {
			t.Fatal("server is not ready")
		}
		test(t, openBus(t, Config{URL: ns.ClientURL()}), openBus(t, Config{URL: ns.ClientURL(), Runner: true}))
	})
}

// run starts a Consume or Serve method; it is stopped, and its error checked,
// at the end of the test or by stop.
func run(t testing.TB, fn func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := fn(ctx); err != nil {
			t.Errorf("stopped consumer: %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(limit):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitForMessages waits until the stream holds want messages.
func waitForMessages(t *testing.T, b *Bus, stream string, want uint64) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		s, err := b.js.Stream(t.Context(), stream)
		must(t, err)
		info, err := s.Info(t.Context())
		must(t, err)
		if info.State.Msgs == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("stream %s holds %d messages, want %d", stream, info.State.Msgs, want)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func job(id string) CreateJob {
	return CreateJob{SandboxID: skerry.SandboxID(id), Region: "earth", Arch: "amd64", Env: map[string]string{"A": "<b>"}}
}

func TestJobs(t *testing.T) {
	forEach(t, func(t *testing.T, control, runner *Bus) {
		ctx := t.Context()
		must(t, control.PublishJob(ctx, job("early"))) // waits for a consumer
		other := job("arm")
		other.Arch = "arm64"
		must(t, control.PublishJob(ctx, other))

		got := make(chan CreateJob, 10)
		var failures atomic.Int32
		stop := run(t, func(ctx context.Context) error {
			return runner.ConsumeJobs(ctx, "earth", "amd64", 2, func(_ context.Context, j CreateJob) error {
				got <- j
				if j.SandboxID == "fails" && failures.Add(1) < 4 {
					return errors.New("no room")
				}
				return nil
			})
		})
		if j := receive(t, got); j.SandboxID != "early" || j.Env["A"] != "<b>" {
			t.Errorf("got %+v", j)
		}
		must(t, control.PublishJob(ctx, job("fails")))
		for range 4 {
			if j := receive(t, got); j.SandboxID != "fails" {
				t.Errorf("got %s", j.SandboxID)
			}
		}
		must(t, control.PublishJob(ctx, job("fails"))) // is offered again
		if j := receive(t, got); j.SandboxID != "fails" {
			t.Errorf("got %s", j.SandboxID)
		}
		must(t, control.PublishJob(ctx, job("last")))
		if j := receive(t, got); j.SandboxID != "last" {
			t.Errorf("got %s", j.SandboxID)
		}
		waitForMessages(t, control, streamJobs, 1) // the one for arm64
		stop()
		if len(got) != 0 {
			t.Errorf("got %+v besides", <-got)
		}
	})
}

// TestParallel: no more handlers than asked for, and no message waits at a busy
// consumer while another is idle.
func TestParallel(t *testing.T) {
	b := openBus(t, Config{Dir: t.TempDir()})
	release := make(chan struct{})
	started := make(chan string, 10)
	busy := func(name string, workers int) {
		run(t, func(ctx context.Context) error {
			return b.ConsumeJobs(ctx, "earth", "amd64", workers, func(context.Context, CreateJob) error {
				started <- name
				<-release
				return nil
			})
		})
	}
	defer close(release)
	busy("a", 2)
	for i := range 2 {
		must(t, b.PublishJob(t.Context(), job(fmt.Sprint(i))))
	}
	receive(t, started)
	receive(t, started)
	for i := range 3 {
		must(t, b.PublishJob(t.Context(), job(fmt.Sprint("more", i))))
	}
	busy("b", 3)
	for range 3 {
		if name := receive(t, started); name != "b" {
			t.Errorf("consumer %s took another job", name)
		}
	}
}

func TestLongHandlerKeepsItsMessage(t *testing.T) {
	b := openBus(t, Config{Dir: t.TempDir()})
	b.ackWait = 150 * time.Millisecond
	var calls atomic.Int32
	release, started := make(chan struct{}), make(chan struct{}, 10)
	run(t, func(ctx context.Context) error {
		return b.ConsumeCommands(ctx, "run_a", func(_ context.Context, c Command) error {
			if c.Kind == CommandPullImage {
				calls.Add(1)
				started <- struct{}{}
				<-release
			}
			return nil
		})
	})
	must(t, b.PublishCommand(t.Context(), "run_a", "", Command{Kind: CommandPullImage, ImageID: "img_a"}))
	receive(t, started)
	<-time.After(5 * b.ackWait) // the time that must pass is what is tested
	close(release)
	waitForMessages(t, b, streamCommands, 0)
	if n := calls.Load(); n != 1 {
		t.Errorf("delivered %d times", n)
	}
}

func TestDeadConsumersMessageComesAgain(t *testing.T) {
	dir := t.TempDir()
	b := openBus(t, Config{Dir: dir})
	must(t, b.PublishJob(t.Context(), job("a")))
	// A consumer that takes the message and is never heard of again.
	cfg := jobsConsumer("earth", "amd64")
	cfg.AckPolicy, cfg.AckWait = jetstream.AckExplicitPolicy, time.Hour // comes again although its time is not up
	consumer, err := b.js.CreateOrUpdateConsumer(t.Context(), streamJobs, cfg)
	must(t, err)
	_, err = consumer.Next()
	must(t, err)
	closeBus(t, b)

	b = openBus(t, Config{Dir: dir})
	got := make(chan CreateJob, 1)
	run(t, func(ctx context.Context) error {
		return b.ConsumeJobs(ctx, "earth", "amd64", 1, func(_ context.Context, j CreateJob) error { got <- j; return nil })
	})
	if j := receive(t, got); j.SandboxID != "a" {
		t.Errorf("got %s", j.SandboxID)
	}
}

func TestCommands(t *testing.T) {
	forEach(t, func(t *testing.T, control, runner *Bus) {
		ctx := t.Context()
		pull := Command{Kind: CommandPullImage, ImageID: "img_a", Pull: &skerry.PullRequest{Reference: "old"}}
		must(t, control.PublishCommand(ctx, "run_a", "1", pull))
		pull.Pull.Reference = "new"
		must(t, control.PublishCommand(ctx, "run_a", "2", pull)) // replaces the first
		must(t, control.PublishCommand(ctx, "run_b", "", Command{Kind: CommandReport}))

		got, pulling, release := make(chan Command, 10), make(chan Command), make(chan struct{})
		run(t, func(ctx context.Context) error {
			return runner.ConsumeCommands(ctx, "run_a", func(_ context.Context, c Command) error {
				if c.Kind == CommandPullImage {
					pulling <- c
					<-release
				}
				got <- c
				return nil
			})
		})
		if c := receive(t, pulling); c.Pull.Reference != "new" {
			t.Errorf("got %+v", c.Pull)
		}
		// While the pull goes on, others are handled, the delete of two
		// machines of one sandbox among them.
		for _, c := range []Command{
			{Kind: CommandDeleteSandbox, SandboxID: "sbx_a", MachineID: "mch_a"},
			{Kind: CommandDeleteSandbox, SandboxID: "sbx_a", MachineID: "mch_b"},
			{Kind: CommandDeleteImage, ImageID: "img_a"},
			{Kind: CommandDeleteSnapshot, SnapshotID: "snap_a"},
			{Kind: CommandDeleteSnapshot, SnapshotID: "snap_b"},
			{Kind: CommandReport},
		} {
			must(t, control.PublishCommand(ctx, "run_a", "", c))
			if g := receive(t, got); g.Kind != c.Kind || g.MachineID != c.MachineID {
				t.Errorf("got %+v, want %+v", g, c)
			}
		}
		close(release)
		if c := receive(t, got); c.Kind != CommandPullImage {
			t.Errorf("got %+v", c)
		}
		waitForMessages(t, control, streamCommands, 1) // run_b's
	})
}

func TestEventsKeepTheirOrder(t *testing.T) {
	forEach(t, func(t *testing.T, control, runner *Bus) {
		const count = 50
		publish := func(from, to int) {
			for i := from; i < to; i++ {
				must(t, runner.PublishEvent(t.Context(), Event{Kind: EventSandbox, RunnerID: "run_a", Reason: fmt.Sprint(i)}))
			}
		}
		got := make(chan string, 2*count)
		seen := map[string]int{}
		handler := func(_ context.Context, e Event) error {
			seen[e.Reason]++
			if e.Reason[len(e.Reason)-1] == '7' && seen[e.Reason] < 3 {
				return errors.New("database is away")
			}
			got <- e.Reason
			return nil
		}
		consume := func(ctx context.Context) error { return control.ConsumeEvents(ctx, handler) }
		publish(0, count/2)
		stop := run(t, consume)
		for i := range count / 2 {
			if r := receive(t, got); r != fmt.Sprint(i) {
				t.Fatalf("got event %s, want %d", r, i)
			}
		}
		waitForMessages(t, control, streamEvents, 0)
		stop()
		publish(count/2, count)
		run(t, consume)
		for i := count / 2; i < count; i++ {
			if r := receive(t, got); r != fmt.Sprint(i) {
				t.Fatalf("got event %s, want %d", r, i)
			}
		}
	})
}

func TestClaims(t *testing.T) {
	forEach(t, func(t *testing.T, control, runner *Bus) {
		replies := make(chan ClaimReply, 1)
		go func() { // before a control plane is there
			reply, err := runner.Claim(t.Context(), ClaimRequest{SandboxID: "sbx_a", RunnerID: "run_a", Epoch: 1 << 62})
			if err != nil {
				t.Error(err)
			}
			replies <- reply
		}()
		var calls atomic.Int32
		stop := run(t, func(ctx context.Context) error {
			return control.ServeClaims(ctx, func(_ context.Context, r ClaimRequest) (ClaimReply, error) {
				if calls.Add(1) < 3 {
					return ClaimReply{}, errors.New("database is away")
				}
				return ClaimReply{OK: r.Epoch == 1<<62, Reason: string(r.SandboxID)}, nil
			})
		})
		if r := receive(t, replies); !r.OK || r.Reason != "sbx_a" {
			t.Errorf("got %+v", r)
		}
		stop()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := runner.Claim(ctx, ClaimRequest{}); err == nil {
			t.Error("claim without a control plane was answered")
		}
	})
}

func TestHeartbeats(t *testing.T) {
	forEach(t, func(t *testing.T, control, runner *Bus) {
		got := make(chan Heartbeat, 100)
		run(t, func(ctx context.Context) error {
			return control.ConsumeHeartbeats(ctx, func(_ context.Context, h Heartbeat) error { got <- h; return errors.New("is only logged") })
		})
		for len(got) < 2 { // those before the subscription are lost
			must(t, runner.PublishHeartbeat(Heartbeat{Runner: skerry.Runner{ID: "run_a", CPUs: 2}, Region: "earth"}))
			<-time.After(time.Millisecond)
		}
		if h := receive(t, got); h.Runner.CPUs != 2 || h.Region != "earth" {
			t.Errorf("got %+v", h)
		}
	})
}

func TestMessagesSurviveRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "bus")
	b := openBus(t, Config{Dir: dir})
	must(t, b.PublishJob(t.Context(), job("a")))
	must(t, b.PublishEvent(t.Context(), Event{Kind: EventImage, RunnerID: "run_a"}))
	closeBus(t, b)
	b = openBus(t, Config{Dir: dir})
	waitForMessages(t, b, streamJobs, 1)
	waitForMessages(t, b, streamEvents, 1)
	info, err := os.Stat(dir)
	must(t, err)
	if got := info.Mode().Perm(); got != 0o700 {
		t.Errorf("directory has mode %o, want 700", got)
	}
}

func TestNoPort(t *testing.T) {
	b := openBus(t, Config{Dir: t.TempDir()})
	if addr := b.server.ns.Addr(); addr != nil {
		t.Errorf("listens on %s", addr)
	}
}

// TestDamage: whatever happens to its files, the embedded server starts, with
// the streams set up and usable; what it could not read is set aside.
func TestDamage(t *testing.T) {
	each := func(glob string, change func(path string) error) func(string) error {
		return func(dir string) error {
			paths, err := filepath.Glob(filepath.Join(dir, "jetstream", "$G", "streams", "JOBS", glob))
			if err != nil || len(paths) == 0 {
				return fmt.Errorf("no files %s: %v", glob, err)
			}
			for _, path := range paths {
				if err := change(path); err != nil {
					return err
				}
			}
			return nil
		}
	}
	garbage := func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("garbage ", 64)), 0o600) }
	cut := func(path string) error { return os.Truncate(path, 7) }
	tests := []struct {
		name   string
		damage func(dir string) error
		aside  bool
	}{
		{"stream description", each("meta.inf", garbage), true},
		{"stream description empty", each("meta.inf", func(p string) error { return os.Truncate(p, 0) }), true},
		{"stream description gone", each("meta.inf", os.Remove), true},
		{"checksum", each("meta.sum", garbage), true},
		{"messages", each("msgs/*.blk", garbage), false},
		{"messages cut", each("msgs/*.blk", cut), false},
		{"messages gone", each("msgs/*.blk", os.Remove), false},
		{"consumer description", each("obs/*/meta.inf", garbage), true},
		{"consumer state", each("obs/*/o.dat", garbage), true},
		{"stream is a file", func(dir string) error {
			path := filepath.Join(dir, "jetstream", "$G", "streams", "JOBS")
			return errors.Join(os.RemoveAll(path), garbage(path))
		}, true},
		{"store is a file", func(dir string) error {
			path := filepath.Join(dir, "jetstream")
			return errors.Join(os.RemoveAll(path), garbage(path))
		}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "bus")
			b := openBus(t, Config{Dir: dir})
			must(t, b.PublishJob(t.Context(), job("a")))
			must(t, b.PublishJob(t.Context(), job("b")))
			got := make(chan skerry.SandboxID, 10)
			consume := func(ctx context.Context) error {
				return b.ConsumeJobs(ctx, "earth", "amd64", 1, func(_ context.Context, j CreateJob) error { got <- j.SandboxID; return nil })
			}
			stop := run(t, consume)
			receive(t, got)
			stop()
			closeBus(t, b)
			must(t, test.damage(dir))
			must(t, os.MkdirAll(dir+".damaged/of-an-earlier-time", 0o700))

			b = openBus(t, Config{Dir: dir})
			must(t, b.PublishJob(t.Context(), job("new")))
			run(t, consume)
			for receive(t, got) != "new" {
			}
			aside, err := filepath.Glob(dir + ".damaged/*")
			must(t, err)
			if moved := !slices.Contains(aside, dir+".damaged/of-an-earlier-time"); moved != test.aside {
				t.Errorf("set aside: %v, want %v", moved, test.aside)
			}
		})
	}
}

func TestUnusableDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file", "bus")
	must(t, os.WriteFile(filepath.Dir(path), nil, 0o600))
	b, err := Open(t.Context(), Config{Dir: path, Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		closeBus(t, b)
		t.Fatal("was opened")
	}
	if !strings.Contains(err.Error(), path) {
		t.Errorf("error %q does not name the directory", err)
	}
}

func TestSizes(t *testing.T) {
	b := openBus(t, Config{Dir: t.TempDir()})
	got := make(chan CreateJob, 1)
	run(t, func(ctx context.Context) error {
		return b.ConsumeJobs(ctx, "earth", "amd64", 1, func(_ context.Context, j CreateJob) error { got <- j; return nil })
	})
	largest := job("largest")
	for i := 0; len(largest.Env)*100<<10 < skerry.MaxEnvBytes; i++ {
		largest.Env[fmt.Sprint("A", i)] = strings.Repeat("\x01", 100<<10)
	}
	must(t, b.PublishJob(t.Context(), largest))
	if j := receive(t, got); len(j.Env) != len(largest.Env) || j.Env["A0"] != largest.Env["A0"] {
		t.Errorf("got %d variables", len(j.Env))
	}
	over := job("over")
	over.Env["A"] = strings.Repeat("x", MaxMessageBytes)
	if err := b.PublishJob(t.Context(), over); !errors.Is(err, ErrTooLarge) {
		t.Errorf("error %v, want ErrTooLarge", err)
	}
}

func TestMalformedMessagesAreDropped(t *testing.T) {
	b := openBus(t, Config{Dir: t.TempDir()})
	for _, data := range []string{"", "null]", "{\"sandbox_id\":5}", "\xff"} {
		_, err := b.js.Publish(t.Context(), "jobs.create.earth.amd64.x"+fmt.Sprint(len(data)), []byte(data))
		must(t, err)
	}
	must(t, b.PublishJob(t.Context(), job("good")))
	got := make(chan skerry.SandboxID, 10)
	run(t, func(ctx context.Context) error {
		return b.ConsumeJobs(ctx, "earth", "amd64", 1, func(_ context.Context, j CreateJob) error { got <- j.SandboxID; return nil })
	})
	if id := receive(t, got); id != "good" {
		t.Errorf("got %q", id)
	}
	waitForMessages(t, b, streamJobs, 0)
}

func TestClosed(t *testing.T) {
	b := openBus(t, Config{Dir: t.TempDir()})
	errs := make(chan error, 4)
	ctx := context.Background()
	go func() {
		errs <- b.ConsumeEvents(ctx, func(context.Context, Event) error { return nil })
	}()
	go func() {
		errs <- b.ServeClaims(ctx, func(context.Context, ClaimRequest) (ClaimReply, error) { return ClaimReply{}, nil })
	}()
	closeBus(t, b)
	for range 2 {
		if err := receive(t, errs); !errors.Is(err, ErrClosed) {
			t.Errorf("consumer returned %v, want ErrClosed", err)
		}
	}
	if err := b.PublishJob(ctx, job("a")); !errors.Is(err, ErrClosed) {
		t.Errorf("publish: %v, want ErrClosed", err)
	}
	if _, err := b.Claim(ctx, ClaimRequest{}); !errors.Is(err, ErrClosed) {
		t.Errorf("claim: %v, want ErrClosed", err)
	}
	if err := b.PublishHeartbeat(Heartbeat{}); !errors.Is(err, ErrClosed) {
		t.Errorf("heartbeat: %v, want ErrClosed", err)
	}
}

func TestCloseIsBounded(t *testing.T) {
	b := openBus(t, Config{Dir: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("close: %v", err)
	}
}

func TestRetryDelay(t *testing.T) {
	for deliveries, want := range map[uint64]time.Duration{0: firstRetry, 1: firstRetry, 2: 2 * firstRetry, 4: 8 * firstRetry, 30: lastRetry, 1 << 63: lastRetry} {
		if got := retryDelay(deliveries); got != want {
			t.Errorf("retryDelay(%d) = %v, want %v", deliveries, got, want)
		}
	}
}

// BenchmarkHops measures what a create spends in the bus: a job to a runner, a
// claim, and two events back.
func BenchmarkHops(b *testing.B) {
	bus := openBus(b, Config{Dir: b.TempDir()})
	jobs, events := make(chan CreateJob), make(chan Event)
	run(b, func(ctx context.Context) error {
		return bus.ConsumeJobs(ctx, "earth", "amd64", 2, func(_ context.Context, j CreateJob) error { jobs <- j; return nil })
	})
	run(b, func(ctx context.Context) error {
		return bus.ServeClaims(ctx, func(context.Context, ClaimRequest) (ClaimReply, error) { return ClaimReply{OK: true}, nil })
	})
	run(b, func(ctx context.Context) error {
		return bus.ConsumeEvents(ctx, func(_ context.Context, e Event) error { events <- e; return nil })
	})
	var total []time.Duration
	var parts [3][]time.Duration
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		must(b, bus.PublishJob(b.Context(), job(fmt.Sprint("s", i))))
		<-jobs
		taken := time.Now()
		_, err := bus.Claim(b.Context(), ClaimRequest{})
		must(b, err)
		claimed := time.Now()
		must(b, bus.PublishEvent(b.Context(), Event{Kind: EventSandbox, RunnerID: "run_a"}))
		<-events
		must(b, bus.PublishEvent(b.Context(), Event{Kind: EventSandbox, RunnerID: "run_a"}))
		<-events
		end := time.Now()
		total = append(total, end.Sub(start))
		for p, d := range []time.Duration{taken.Sub(start), claimed.Sub(taken), end.Sub(claimed)} {
			parts[p] = append(parts[p], d)
		}
	}
	report := func(name string, times []time.Duration, at int) {
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)*at/100].Microseconds())/1000, name)
	}
	report("p50-ms", total, 50)
	report("p99-ms", total, 99)
	report("job-p50-ms", parts[0], 50)
	report("claim-p50-ms", parts[1], 50)
	report("2events-p50-ms", parts[2], 50)
}

func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		bus, err := Open(b.Context(), Config{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
		must(b, err)
		closeBus(b, bus)
	}
}
