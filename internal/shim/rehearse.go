package shim

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
)

// rehearsals is how often the command is run: the second time goes the ways
// that the first one has laid.
const rehearsals = 2

// rehearse takes an anonymous machine through an activation and a command that
// do not count, so that the real ones find everything in place (see package
// control of the guest), and brings the agent to rest again. A thorough one runs
// what users often run, too.
func rehearse(ctx context.Context, link *guestapi.Link, memMiB int64, thorough bool) error {
	in := guestapi.Activation{Time: time.Now(), Entropy: entropy(), Hostname: "localhost",
		MachineID: "00000000000000000000000000000000", BootID: "00000000-0000-4000-8000-000000000000",
		MAC: "02:00:00:00:00:01", User: "root", MemoryMiB: memMiB}
	var out guestapi.Rehearsal
	if err := link.Control(ctx, guestapi.PathRehearse, in, &out); err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	client := link.HTTPClient(guestapi.StreamRehearsal)
	defer client.CloseIdleConnections()
	for range rehearsals {
		if err := rehearseRun(ctx, client, out.Argv); err != nil {
			return fmt.Errorf("rehearse command %q: %w", out.Argv, err)
		}
	}
	if thorough {
		if err := rehearseUsual(ctx, link, client, out); err != nil {
			return err
		}
	}
	client.CloseIdleConnections()
	if err := link.Control(ctx, guestapi.PathQuiesce, nil, nil); err != nil {
		return fmt.Errorf("quiesce: %w", err)
	}
	return nil
}

// usualTimeout bounds one of the usual programs, and usualLimit how many there
// may be: the guest is not trusted to know.
const (
	usualTimeout = 10 * time.Second
	usualLimit   = 16
)

// rehearseUsual runs the usual programs, and a command by each of the other ways
// to run one. How they end does not matter: an image may have its own ideas of a
// program.
func rehearseUsual(ctx context.Context, link *guestapi.Link, client *http.Client, out guestapi.Rehearsal) error {
	try := func(f func(context.Context) error) {
		ctx, cancel := context.WithTimeout(ctx, usualTimeout)
		defer cancel()
		_ = f(ctx)
	}
	for _, argv := range out.Usual[:min(len(out.Usual), usualLimit)] {
		try(func(ctx context.Context) error { return rehearseRun(ctx, client, argv) })
	}
	// A second later the memory is watched (see keeper).
	try(func(ctx context.Context) error {
		return link.Control(ctx, guestapi.PathPressure, guestapi.PressureWait{Millis: 1}, nil)
	})
	try(func(ctx context.Context) error { return rehearseSocket(ctx, client, out.Argv) })
	try(func(ctx context.Context) error {
		return post(ctx, client, "/process/execute", skerry.ExecuteRequest{Command: ":"})
	})
	return ctx.Err()
}

func rehearseRun(ctx context.Context, client *http.Client, argv []string) error {
	return post(ctx, client, "/processes/run", skerry.RunRequest{ProcessRequest: skerry.ProcessRequest{Argv: argv}})
}

// rehearseSocket is rehearseRun by the way of programs that get input.
func rehearseSocket(ctx context.Context, client *http.Client, argv []string) error {
	conn, _, err := websocket.Dial(ctx, "http://guest/processes/run", &websocket.DialOptions{HTTPClient: client})
	if err != nil {
		return err
	}
	defer conn.CloseNow()
	if err := wsjson.Write(ctx, conn, skerry.RunRequest{ProcessRequest: skerry.ProcessRequest{Argv: argv}}); err != nil {
		return err
	}
	for {
		if _, _, err := conn.Read(ctx); err != nil {
			if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
				return nil
			}
			return err
		}
	}
}

func post(ctx context.Context, client *http.Client, path string, request any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guest"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	// The guest is not trusted to end its answer.
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	return err
}

// entropy is what one activation seeds the guest's random generator with.
func entropy() []byte {
	b := make([]byte, 64)
	rand.Read(b)
	return b
}
