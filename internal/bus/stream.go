package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skerry.dev/skerry"
)

// The streams. All are work queues: a message is gone once it was acknowledged.
const (
	streamJobs     = "JOBS"
	streamCommands = "COMMANDS"
	streamEvents   = "EVENTS"
)

// streams describes them. A subject of JOBS and COMMANDS names the object, and
// a subject holds one message: a message published again, after a restart for
// example, replaces the first.
func streams() []jetstream.StreamConfig {
	base := jetstream.StreamConfig{
		Retention:  jetstream.WorkQueuePolicy,
		Storage:    jetstream.FileStorage,
		Discard:    jetstream.DiscardNew, // a full stream refuses; the outbox tries again
		Duplicates: 2 * time.Minute,
		MaxMsgSize: MaxMessageBytes,
	}
	jobs, commands, events := base, base, base
	jobs.Name, jobs.Subjects, jobs.MaxBytes = streamJobs, []string{"jobs.create.*.*.*"}, maxStoreBytes/2
	jobs.MaxMsgsPerSubject = 1
	jobs.MaxAge = skerry.MaxCreateTimeout + time.Hour // by then the sandbox is deleted
	commands.Name, commands.Subjects, commands.MaxBytes = streamCommands, []string{"commands.>"}, maxStoreBytes/4
	commands.MaxMsgsPerSubject = 1
	events.Name, events.Subjects, events.MaxBytes = streamEvents, []string{"events.*.*"}, maxStoreBytes/4
	return []jetstream.StreamConfig{jobs, commands, events}
}

func (b *Bus) createStreams(ctx context.Context) error {
	for _, cfg := range streams() {
		if _, err := b.js.CreateOrUpdateStream(ctx, cfg); err != nil {
			return fmt.Errorf("set up stream %s: %w", cfg.Name, err)
		}
	}
	return nil
}

// publish returns when the stream has the message. A message with an id that
// the stream saw in the last two minutes is dropped.
func (b *Bus) publish(ctx context.Context, stream, subject, id string, message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("publish to %s: %w", subject, err)
	}
	if len(data) > MaxMessageBytes {
		return fmt.Errorf("publish to %s: %w: %d bytes, at most %d", subject, ErrTooLarge, len(data), MaxMessageBytes)
	}
	options := []jetstream.PublishOpt{jetstream.WithExpectStream(stream)}
	if id != "" {
		options = append(options, jetstream.WithMsgID(id))
	}
	if _, err := b.js.Publish(ctx, subject, data, options...); err != nil {
		return fmt.Errorf("publish to %s: %w", subject, closed(err))
	}
	return nil
}

// closed makes ErrClosed of the client's error.
func closed(err error) error {
	if errors.Is(err, nats.ErrConnectionClosed) {
		return ErrClosed
	}
	return err
}

func jobSubject(j CreateJob) string {
	return "jobs.create." + j.Region + "." + j.Arch + "." + string(j.SandboxID)
}

// PublishJob puts a job in the queue of its region and architecture, also one that
// was taken before: it may not have come to its end.
func (b *Bus) PublishJob(ctx context.Context, job CreateJob) error {
	return b.publish(ctx, streamJobs, jobSubject(job), "", job)
}

// commandSubject ends in what the command is about: "sandbox.delete.mch_…".
func commandSubject(runner skerry.RunnerID, c Command) string {
	object := string(c.MachineID)
	if object == "" {
		object = string(c.SandboxID) + string(c.ImageID) + string(c.SnapshotID)
	}
	if object == "" {
		object = "all"
	}
	return "commands." + string(runner) + "." + c.Kind + "." + object
}

// PublishCommand queues a command for a runner. A command with the same kind
// and object that still waits is replaced. An id, if not "", is for
// de-duplication.
func (b *Bus) PublishCommand(ctx context.Context, runner skerry.RunnerID, id string, c Command) error {
	return b.publish(ctx, streamCommands, commandSubject(runner, c), id, c)
}

// PublishEvent appends an event to those of its runner.
func (b *Bus) PublishEvent(ctx context.Context, e Event) error {
	return b.publish(ctx, streamEvents, "events."+string(e.RunnerID)+"."+e.Kind, "", e)
}
