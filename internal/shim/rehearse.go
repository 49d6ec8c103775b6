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

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
)

// rehearsals is how often the command is run: the second time goes the ways
// that the first one has laid.
const rehearsals = 2

// rehearse takes an anonymous machine through an activation and a command that
// do not count, so that the real ones find everything in place (see package
// control of the guest), and brings the agent to rest again.
func rehearse(ctx context.Context, link *guestapi.Link, memMiB int64) error {
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
		if err := rehearseCommand(ctx, client, out.Argv); err != nil {
			return fmt.Errorf("rehearse command %q: %w", out.Argv, err)
		}
	}
	client.CloseIdleConnections()
	if err := link.Control(ctx, guestapi.PathQuiesce, nil, nil); err != nil {
		return fmt.Errorf("quiesce: %w", err)
	}
	return nil
}

func rehearseCommand(ctx context.Context, client *http.Client, argv []string) error {
	body, err := json.Marshal(skerry.RunRequest{ProcessRequest: skerry.ProcessRequest{Argv: argv}})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guest/processes/run", bytes.NewReader(body))
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
