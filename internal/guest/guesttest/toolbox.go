package guesttest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guestapi"
)

// Call makes a request to the toolbox; in and out may be nil.
func (vm *VM) Call(method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(vm.t.Context(), method, "http://guest"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	client := vm.HTTPClient(guestapi.StreamToolbox)
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode >= 300:
		return fmt.Errorf("%s %s: status %d: %s", method, path, resp.StatusCode, text)
	case out == nil:
		return nil
	}
	return json.Unmarshal(text, out)
}

// MustCall is Call of what must work.
func (vm *VM) MustCall(method, path string, in, out any) {
	vm.t.Helper()
	if err := vm.Call(method, path, in, out); err != nil {
		vm.t.Fatalf("%v\nconsole:\n%s", err, vm.Console())
	}
}

// StartProcess starts /prog with args in the background.
func (vm *VM) StartProcess(args ...string) skerry.ProcessID {
	vm.t.Helper()
	var p skerry.Process
	vm.MustCall("POST", "/processes", skerry.ProcessRequest{Argv: append([]string{"/prog"}, args...)}, &p)
	return p.ID
}

// Process returns what the toolbox says of a process.
func (vm *VM) Process(id skerry.ProcessID) skerry.Process {
	vm.t.Helper()
	var p skerry.Process
	vm.MustCall("GET", "/processes/"+string(id), nil, &p)
	return p
}

// Wait waits for the end of a process.
func (vm *VM) Wait(id skerry.ProcessID) skerry.ProcessResult {
	vm.t.Helper()
	var r skerry.ProcessResult
	vm.MustCall("GET", "/processes/"+string(id)+"/wait?timeoutMs=120000", nil, &r)
	return r
}

// Log returns the output of a process that is kept, up to now.
func (vm *VM) Log(id skerry.ProcessID) string {
	vm.t.Helper()
	var text strings.Builder
	for cursor := "start"; ; {
		var page skerry.LogPage
		vm.MustCall("GET", "/processes/"+string(id)+"/logs?encoding=base64&limit=1000&cursor="+cursor, nil, &page)
		for _, frame := range page.Frames {
			data, err := base64.StdEncoding.DecodeString(frame.Data)
			if err != nil {
				vm.t.Fatal(err)
			}
			text.Write(data)
		}
		if len(page.Frames) == 0 {
			return text.String()
		}
		cursor = page.NextCursor
	}
}

// Stats returns the agent's counters.
func (vm *VM) Stats() guestapi.Stats {
	vm.t.Helper()
	var s guestapi.Stats
	if err := vm.Control(vm.t.Context(), guestapi.PathStats, nil, &s); err != nil {
		vm.t.Fatal(err)
	}
	return s
}
