package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// MaxMessageBytes bounds a message. The largest is a CreateJob with the largest
// environment (1 MiB), each byte of which JSON may write as six ("\u0001").
const MaxMessageBytes = 8 << 20

// ErrTooLarge is returned for a message over MaxMessageBytes.
var ErrTooLarge = errors.New("message is too large")

// Config says where the bus is. With a URL it is a NATS cluster, otherwise a
// server embedded in this process, which no other process can reach.
type Config struct {
	Dir    string // of the embedded server, for it alone; made when missing
	Logger *slog.Logger

	URL         string // "tls://nats.example:4222", or several with commas
	Credentials string // file with the JWT and key of this runner or control plane
	// Runner is true for a runner on a cluster, whose credentials do not
	// reach so far as to set up streams; the control plane has done so.
	Runner bool
}

// Bus is a connection to the messages of a Skerry installation. Its methods
// can be called from several goroutines. Those named Consume and Serve call
// their handler until ctx ends and then wait for the calls under way; the error
// they return is nil if ctx ended, and ErrClosed after Close.
type Bus struct {
	logger *slog.Logger
	server *embedded // nil on a cluster
	conn   *nats.Conn
	js     jetstream.JetStream

	ackWait time.Duration
}

// ErrClosed is returned when the bus was closed.
var ErrClosed = errors.New("bus is closed")

// Open connects, starts the embedded server if there is to be one, and sets up
// the streams. If the embedded server's files are damaged they are moved away
// and it starts with empty ones: the control plane publishes again what its
// database says, and asks the runners for a report.
func Open(ctx context.Context, cfg Config) (*Bus, error) {
	if cfg.URL != "" {
		return openCluster(ctx, cfg)
	}
	b, err := openEmbedded(ctx, cfg)
	if err == nil || ctx.Err() != nil {
		return b, err
	}
	aside, moveErr := setAside(cfg.Dir)
	if moveErr != nil {
		return nil, errors.Join(err, moveErr)
	}
	cfg.Logger.Warn("message store is damaged, starting with an empty one", "err", err, "moved_to", aside)
	return openEmbedded(ctx, cfg)
}

func openEmbedded(ctx context.Context, cfg Config) (_ *Bus, err error) {
	server, err := startServer(cfg)
	if err != nil {
		return nil, fmt.Errorf("start message server in %s: %w", cfg.Dir, err)
	}
	b := &Bus{logger: cfg.Logger, server: server, ackWait: defaultAckWait}
	defer func() {
		if err != nil {
			b.Close(ctx)
		}
	}()
	if err := b.connect("", nats.InProcessServer(server.ns)); err != nil {
		return nil, fmt.Errorf("connect to message server: %w", err)
	}
	if err := b.resetConsumers(ctx, cfg.Dir); err != nil {
		return nil, fmt.Errorf("message store in %s: %w", cfg.Dir, err)
	}
	if err := b.createStreams(ctx); err != nil {
		return nil, fmt.Errorf("message store in %s: %w", cfg.Dir, err)
	}
	return b, nil
}

func openCluster(ctx context.Context, cfg Config) (*Bus, error) {
	var options []nats.Option
	if cfg.Credentials != "" {
		options = append(options, nats.UserCredentials(cfg.Credentials))
	}
	b := &Bus{logger: cfg.Logger, ackWait: defaultAckWait}
	if err := b.connect(cfg.URL, options...); err != nil {
		return nil, fmt.Errorf("connect to message bus: %w", err)
	}
	if cfg.Runner {
		return b, nil
	}
	if err := b.createStreams(ctx); err != nil {
		b.Close(ctx)
		return nil, fmt.Errorf("set up message bus: %w", err)
	}
	return b, nil
}

func (b *Bus) connect(url string, options ...nats.Option) (err error) {
	options = append(options,
		nats.Name("skerry"),
		nats.MaxReconnects(-1), // it comes back, or this process is ended
		nats.ReconnectWait(250*time.Millisecond),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			b.logger.Warn("message bus error", "err", err)
		}),
	)
	if b.conn, err = nats.Connect(url, options...); err != nil {
		return err
	}
	b.js, err = jetstream.New(b.conn)
	return err
}

// Close ends the connection and, when ctx ends at the latest, the embedded
// server. The Consume and Serve methods must have returned before.
func (b *Bus) Close(ctx context.Context) error {
	if b.conn != nil {
		b.conn.Close() // published messages were confirmed, so none is buffered
	}
	if b.server == nil {
		return nil
	}
	return b.server.stop(ctx)
}
