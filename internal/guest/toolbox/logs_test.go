package toolbox_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/toolbox/process"
)

// follow reads server-sent events until stop wants no more; it returns the text
// of the log events, the kinds of the others, and the last cursor.
func (b *box) follow(id skerry.ProcessID, cursor string, stop func(text string) bool) (text, events, last string) {
	b.Helper()
	req, _ := http.NewRequestWithContext(b.Context(), "GET", b.url+"/processes/"+string(id)+"/logs?follow=true", nil)
	req.Header.Set("Last-Event-ID", cursor)
	resp, err := b.client.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	kind := ""
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			last = rest
		}
		if rest, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			kind = rest
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if kind != "log" {
			events += kind + " "
			continue
		}
		var frame skerry.LogFrame
		if err := json.Unmarshal([]byte(data), &frame); err != nil {
			b.Fatal(err)
		}
		if text += frame.Data; stop(text) {
			return text, events, last
		}
	}
	return text, events, last
}

// Following, broken off and resumed, has no gap and no repetition.
func TestFollowResumes(t *testing.T) {
	b := newBox(t, nil)
	p := b.start(sh(`for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.05; done`))
	never := func(string) bool { return false }
	first, _, cursor := b.follow(p.ID, "start", func(text string) bool { return strings.Contains(text, "3") })
	second, events, _ := b.follow(p.ID, cursor, never)
	if first+second != "1\n2\n3\n4\n5\n6\n7\n8\n" || events != "state state eof " {
		t.Errorf("%q, then %q and %q", first, second, events)
	}
	if again, _, _ := b.follow(p.ID, "start", never); again != first+second {
		t.Errorf("replayed %q", again)
	}
	b.wantError(400, skerry.ToolboxInvalidCursor, "GET", "/processes/"+string(p.ID)+"/logs?cursor=c999", nil)
	b.wantError(400, skerry.ToolboxInvalidCursor, "GET", "/processes/"+string(p.ID)+"/logs?cursor=x", nil)
	b.wantError(400, skerry.ToolboxInvalidQuery, "GET", "/processes/"+string(p.ID)+"/logs?limit=0", nil)
}

// What is kept is bounded; an old cursor says so.
func TestLogRetention(t *testing.T) {
	b := newBox(t, nil)
	p := b.start(sh(`head -c 6000000 /dev/zero | tr '\0' A; echo END`))
	b.wait(p.ID)
	info := call[skerry.Process](b, 200, "GET", "/processes/"+string(p.ID), nil)
	if !info.TruncatedHead {
		t.Error("the head is not truncated")
	}
	out := b.allLogs(p.ID, "start")["stdout"]
	if n := len(out); n < 1<<20 || n > 2<<20 || !strings.HasSuffix(out, "AEND\n") {
		t.Errorf("%d bytes are kept", n)
	}
	b.wantError(409, skerry.ToolboxCursorExpired, "GET", "/processes/"+string(p.ID)+"/logs?cursor=c0", nil)
	b.wantError(409, skerry.ToolboxCursorExpired, "GET", "/processes/"+string(p.ID)+"/logs?follow=true&cursor=c0", nil)

	// All together are bounded too: the oldest ended ones lose their output.
	for range 10 {
		b.wait(b.start(sh(`head -c 2000000 /dev/zero`)).ID)
	}
	if page := call[skerry.LogPage](b, 200, "GET", "/processes/"+string(p.ID)+"/logs", nil); len(page.Frames) > 0 || !page.TruncatedHead {
		t.Errorf("%d frames of the oldest are kept", len(page.Frames))
	}
	req := sh("echo x")
	req.KeepLogs = process.KeepNone
	p = b.start(req)
	b.wait(p.ID)
	if text := b.logText(p.ID); text != "" {
		t.Errorf("keepLogs none kept %q", text)
	}
}

// Ended processes are kept, but not for ever.
func TestEndedProcessesAreBounded(t *testing.T) {
	b := newBox(t, nil)
	for range 270 {
		b.start(skerry.ProcessRequest{Argv: []string{"no-such-program"}})
	}
	if n := len(call[[]skerry.Process](b, 200, "GET", "/processes", nil)); n != 256 {
		t.Errorf("%d are kept", n)
	}
	env := map[string]string{}
	for i := range 9 {
		env[fmt.Sprintf("V%d", i)] = strings.Repeat("x", 100_000)
	}
	for range 10 {
		b.start(skerry.ProcessRequest{Argv: []string{"no-such-program"}, Env: env})
	}
	if n := len(call[[]skerry.Process](b, 200, "GET", "/processes", nil)); n > 5 {
		t.Errorf("%d big ones are kept", n)
	}
}
