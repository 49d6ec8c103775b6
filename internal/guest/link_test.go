package guest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/guesttest"
	"skerry.dev/skerry/internal/guestapi"
)

// running is a run whose client is in the middle of reading its output.
type running struct {
	id   skerry.ProcessID
	body io.ReadCloser
}

// startRun starts /prog with args by POST /processes/run and reads up to the
// first output.
func startRun(t *testing.T, vm *guesttest.VM, ctx context.Context, args ...string) running {
	t.Helper()
	text, err := json.Marshal(skerry.RunRequest{ProcessRequest: skerry.ProcessRequest{Argv: append([]string{"/prog"}, args...)}})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, "POST", "http://guest/processes/run", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := vm.HTTPClient(guestapi.StreamToolbox).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	run := running{body: resp.Body}
	for run.id == "" {
		channel, payload, _, err := skerry.ReadRunFrame(resp.Body, nil)
		if err != nil {
			t.Fatal(err)
		}
		var e skerry.RunEvent
		if channel == skerry.RunEvents && json.Unmarshal(payload, &e) == nil {
			run.id = e.Process.ID
		}
	}
	if _, _, _, err := skerry.ReadRunFrame(resp.Body, nil); err != nil {
		t.Fatal(err)
	}
	return run
}

// numbers is what /prog count prints.
func numbers(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// testLinkLoss drops the link in the middle of output and input: processes go on,
// nothing of their output is missing, and nothing is left behind.
func testLinkLoss(t *testing.T, vm *guesttest.VM) {
	const lines = 40_000
	want := numbers(lines)
	agent := func(path string) string {
		client := vm.HTTPClient(guestapi.StreamToolbox)
		defer client.CloseIdleConnections()
		resp, err := client.Get("http://guest" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	use := func() (goroutines, files int) {
		if _, err := fmt.Sscanf(agent("/goroutines"), "goroutine profile: total %d", &goroutines); err != nil {
			t.Fatal(err)
		}
		return goroutines, strings.Count(vm.Output("ls", "/proc/1/fd"), "\n")
	}
	round := func(i int) {
		file := fmt.Sprintf("/tmp/go-%d", i)
		detached := vm.StartProcess("count", fmt.Sprint(lines), file)
		listener := vm.StartProcess("listen", "127.0.0.1:90")
		eventually(t, "listener", func() (string, bool) {
			conn, err := vm.DialGuest(t.Context(), "tcp", "127.0.0.1:90")
			if err != nil {
				return err.Error(), false
			}
			_, err = io.WriteString(conn, "x") // the link's end closes it
			return fmt.Sprint(err), err == nil
		})
		run := startRun(t, vm, t.Context(), "count", fmt.Sprint(lines), file)
		go func() {
			// Its client gets no answer.
			_ = vm.Call("POST", "/process/execute", skerry.ExecuteRequest{Argv: []string{"/prog", "swallow", file}, Stdin: want}, nil)
		}()
		eventually(t, "all to run", func() (string, bool) {
			n := vm.Stats().Processes
			return fmt.Sprint(n), n == 4
		})
		vm.Close()
		vm.Dial(t.Context())
		run.body.Close()
		for _, id := range []skerry.ProcessID{detached, run.id} {
			if p := vm.Process(id); p.State != "running" {
				t.Fatalf("after the loss of the link: %+v", p)
			}
		}
		vm.Output("write", file, "")
		for _, id := range []skerry.ProcessID{detached, run.id} {
			if r := vm.Wait(id); r.ExitCode == nil || *r.ExitCode != 0 {
				t.Errorf("round %d: %+v", i, r)
			}
			if got := vm.Log(id); got != want {
				t.Fatalf("round %d: log of %d bytes, want %d", i, len(got), len(want))
			}
		}
		vm.Wait(listener)
		var all []skerry.Process
		vm.MustCall("GET", "/processes", nil, &all)
		swallow := all[len(all)-1]
		vm.Wait(swallow.ID)
		if got := vm.Log(swallow.ID); swallow.Argv[1] != "swallow" || got != fmt.Sprintln(len(want)) {
			t.Errorf("round %d: %v had an input of %q bytes, want %d", i, swallow.Argv, got, len(want))
		}
		for _, p := range all {
			_ = vm.Call("DELETE", "/processes/"+string(p.ID), nil, nil)
		}
	}
	round(0)
	goroutines, files := use()
	for i := range 20 {
		round(i + 1)
	}
	eventually(t, "what served lost links to end", func() (string, bool) {
		g, f := use()
		done := g <= goroutines && f <= files
		text := fmt.Sprintf("%d goroutines, %d files; before %d, %d", g, f, goroutines, files)
		if !done {
			text += "\n" + agent("/goroutines")
		}
		return text, done
	})

	// One client's leaving is still the end of its process.
	ctx, leave := context.WithCancel(t.Context())
	run := startRun(t, vm, ctx, "count", "1000", "/tmp/never")
	leave()
	run.body.Close()
	if r := vm.Wait(run.id); r.Signal != "TERM" && r.Signal != "SIGTERM" {
		t.Errorf("run without its client: %+v", r)
	}
}
