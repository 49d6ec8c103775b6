package bus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// readyTimeout bounds the start of the embedded server, which takes
	// about 50 ms with empty streams.
	readyTimeout = 30 * time.Second
	// maxStoreBytes bounds the embedded server's files; the streams share it.
	maxStoreBytes = 1 << 30
	domain        = "skerry" // of JetStream, should the server join others
)

// embedded is the NATS server in this process. It listens on no port.
type embedded struct {
	ns *server.Server
}

func startServer(cfg Config) (*embedded, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	ns, err := server.NewServer(&server.Options{
		ServerName:             "skerry",
		DontListen:             true,
		NoSigs:                 true,
		JetStream:              true,
		JetStreamDomain:        domain,
		JetStreamMaxStore:      maxStoreBytes,
		StoreDir:               cfg.Dir,
		MaxPayload:             MaxMessageBytes,
		MaxPending:             8 * MaxMessageBytes,
		DisableJetStreamBanner: true,
	})
	if err != nil {
		return nil, err
	}
	log := &serverLog{logger: cfg.Logger}
	ns.SetLoggerV2(log, false, false, false)
	e := &embedded{ns: ns}
	ns.Start() // returns when JetStream has recovered its streams
	if fatal := log.fatal.Load(); fatal != nil {
		err = errors.New(*fatal)
	} else if !ns.ReadyForConnections(readyTimeout) {
		err = fmt.Errorf("is not ready after %v", readyTimeout)
	}
	if err != nil {
		e.stop(context.Background())
		return nil, err
	}
	return e, nil
}

// stop shuts the server down, and waits for that until ctx ends.
func (e *embedded) stop(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.ns.Shutdown()
		e.ns.WaitForShutdown()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop message server: %w", ctx.Err())
	}
}

// resetConsumers removes the consumers of an earlier run, so that what it had
// not acknowledged is delivered at once instead of when its time is up: nobody
// else can have it. It reports streams and consumers that are on disk but that
// the server could not read: it leaves those out with a warning. Damaged
// messages it drops.
func (b *Bus) resetConsumers(ctx context.Context, dir string) error {
	dir = filepath.Join(dir, server.JetStreamStoreDir, server.DEFAULT_GLOBAL_ACCOUNT, "streams")
	names, err := entries(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		stream, err := b.js.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("recover stream %s: %w", name, err)
		}
		consumers, err := entries(filepath.Join(dir, name, "obs"))
		if err != nil {
			return err
		}
		for _, consumer := range consumers {
			if err := stream.DeleteConsumer(ctx, consumer); err != nil {
				return fmt.Errorf("recover consumer %s of stream %s: %w", consumer, name, err)
			}
		}
	}
	return nil
}

// entries lists a directory, which need not be there.
func entries(dir string) (names []string, err error) {
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, entry := range list {
		names = append(names, entry.Name())
	}
	return names, nil
}

// setAside moves a damaged store away, over the one moved away before.
func setAside(dir string) (string, error) {
	aside := filepath.Clean(dir) + ".damaged"
	if err := os.RemoveAll(aside); err != nil {
		return "", err
	}
	return aside, os.Rename(dir, aside)
}

// serverLog passes the server's log on. Its notices are of no interest to an
// operator of Skerry.
type serverLog struct {
	logger *slog.Logger
	fatal  atomic.Pointer[string] // why the server gave up, or nil
}

var _ server.Logger = (*serverLog)(nil)

func (l *serverLog) message(level slog.Level, format string, v []any) {
	l.logger.Log(context.Background(), level, "message server", "text", strings.TrimSpace(fmt.Sprintf(format, v...)))
}

func (l *serverLog) Noticef(format string, v ...any) { l.message(slog.LevelDebug, format, v) }
func (l *serverLog) Warnf(format string, v ...any)   { l.message(slog.LevelWarn, format, v) }
func (l *serverLog) Errorf(format string, v ...any)  { l.message(slog.LevelError, format, v) }
func (l *serverLog) Debugf(format string, v ...any)  {}
func (l *serverLog) Tracef(format string, v ...any)  {}

// Fatalf keeps the message for the caller of Start, which returns after it.
func (l *serverLog) Fatalf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.fatal.Store(&text)
}
