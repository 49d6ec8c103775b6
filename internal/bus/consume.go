package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"skerry.dev/skerry"
)

const (
	// defaultAckWait is when a message whose consumer died is delivered
	// again. A handler that lives extends it, so it can be short.
	defaultAckWait = 5 * time.Second
	// firstRetry and lastRetry bound the pause after a handler's error,
	// which doubles each time.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 15 * time.Second
	// commandWorkers is how many commands of one kind a runner handles at once.
	commandWorkers = 16
	// setupRetry is the pause before a lost consumer is set up again.
	setupRetry = 500 * time.Millisecond
)

// ConsumeJobs takes jobs, at most parallel at a time, shared with the other
// runners of the region and architecture. The job is done when the handler
// returns nil, which it should do as soon as the sandbox is claimed (or is
// refused); after an error it is delivered again, here or elsewhere.
func (b *Bus) ConsumeJobs(ctx context.Context, region, arch string, parallel int, handler func(context.Context, CreateJob) error) error {
	return b.consume(ctx, streamJobs, jobsConsumer(region, arch), parallel, decoded(handler))
}

func jobsConsumer(region, arch string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       "jobs-" + region + "-" + arch,
		FilterSubject: "jobs.create." + region + "." + arch + ".*",
	}
}

// ConsumeCommands handles the commands for a runner, those for sandboxes, for
// images, for snapshots and for the runner itself side by side, so that a delete does not wait
// for a pull. After an error a command is delivered again.
func (b *Bus) ConsumeCommands(ctx context.Context, runner skerry.RunnerID, handler func(context.Context, Command) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, noun := range []string{"sandbox", "image", "snapshot", "runner"} {
		group.Go(func() error {
			return b.consume(ctx, streamCommands, jetstream.ConsumerConfig{
				Durable:       noun + "-" + string(runner),
				FilterSubject: "commands." + string(runner) + "." + noun + ".>",
			}, commandWorkers, decoded(handler))
		})
	}
	return group.Wait()
}

// ConsumeEvents handles the events of all runners, one at a time and in the
// order of their publication. After an error the same event is delivered again
// before the next.
func (b *Bus) ConsumeEvents(ctx context.Context, handler func(context.Context, Event) error) error {
	return b.consume(ctx, streamEvents, jetstream.ConsumerConfig{
		Durable:       "control",
		FilterSubject: "events.>",
		MaxAckPending: 1, // keeps the order over redeliveries, and over several control planes
	}, 1, decoded(handler))
}

var errMalformed = errors.New("malformed message")

func decoded[M any](handler func(context.Context, M) error) func(context.Context, []byte) error {
	return func(ctx context.Context, data []byte) error {
		var m M
		if err := json.Unmarshal(data, &m); err != nil {
			return fmt.Errorf("%w: %w", errMalformed, err)
		}
		return handler(ctx, m)
	}
}

// consume runs workers that each wait for a message and handle it, so that no
// message waits at a busy consumer while another is free.
func (b *Bus) consume(ctx context.Context, stream string, cfg jetstream.ConsumerConfig, workers int, handler func(context.Context, []byte) error) error {
	cfg.AckPolicy = jetstream.AckExplicitPolicy
	cfg.AckWait = b.ackWait
	cfg.MaxDeliver = -1
	for ctx.Err() == nil {
		consumer, err := b.js.CreateOrUpdateConsumer(ctx, stream, cfg)
		if err == nil {
			err = b.runWorkers(ctx, consumer, workers, handler)
		}
		if ctx.Err() != nil {
			break
		}
		if b.conn.IsClosed() {
			return ErrClosed
		}
		b.logger.Warn("message consumer stopped, setting it up again", "consumer", cfg.Durable, "err", err)
		pause(ctx, setupRetry)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (b *Bus) runWorkers(ctx context.Context, consumer jetstream.Consumer, workers int, handler func(context.Context, []byte) error) error {
	group, fetchCtx := errgroup.WithContext(ctx)
	for range workers {
		group.Go(func() error {
			for {
				msg, err := consumer.Next(jetstream.FetchContext(fetchCtx))
				switch {
				case fetchCtx.Err() != nil:
					return fetchCtx.Err()
				case errors.Is(err, nats.ErrTimeout), errors.Is(err, jetstream.ErrNoMessages):
					continue // nothing came in 30 s; ask again
				case err != nil:
					return err
				}
				b.handle(ctx, msg, handler)
			}
		})
	}
	return group.Wait()
}

// handle runs the handler and settles the message. If the settlement gets lost
// the message comes again, so its error is of no use.
func (b *Bus) handle(ctx context.Context, msg jetstream.Msg, handler func(context.Context, []byte) error) {
	stop := extend(msg, b.ackWait/3)
	err := handler(ctx, msg.Data())
	stop()
	switch {
	case err == nil:
		msg.Ack()
	case errors.Is(err, errMalformed):
		b.logger.Error("drop message", "subject", msg.Subject(), "err", err)
		msg.Term()
	case ctx.Err() != nil:
		msg.Nak() // stopping: let the next consumer have it at once
	default:
		delay := firstRetry
		if meta, metaErr := msg.Metadata(); metaErr == nil {
			delay = retryDelay(meta.NumDelivered)
		}
		b.logger.Warn("message not handled, trying again", "subject", msg.Subject(), "err", err, "pause_ms", delay.Milliseconds())
		msg.NakWithDelay(delay)
	}
}

// retryDelay is the pause after the given number of deliveries.
func retryDelay(deliveries uint64) time.Duration {
	delay := firstRetry
	for i := uint64(1); i < deliveries && delay < lastRetry; i++ {
		delay *= 2
	}
	return min(delay, lastRetry)
}

// extend tells the server until stop that the message is being worked on.
func extend(msg jetstream.Msg, every time.Duration) (stop func()) {
	var mu sync.Mutex
	var timer *time.Timer // guarded by mu; nil once stopped
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(every, func() {
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			msg.InProgress()
			timer.Reset(every)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
		timer = nil
	}
}
