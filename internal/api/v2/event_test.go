package v2_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skerry.dev/skerry"
)

func event(id int64, object string) skerry.Event {
	return skerry.Event{ID: id, Type: skerry.EventSandboxStatus, ObjectID: object, Status: "running", Object: json.RawMessage(`{"id":"` + object + `"}`)}
}

// stream opens an event stream of a real server, whose messages come one by one.
func stream(t *testing.T, h http.Handler, query, lastEventID string) (next func() string, end func()) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", srv.URL+"/v2/events"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if lastEventID != "" {
		req.Header.Set("Last-Event-ID", lastEventID)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || got != "text/event-stream" {
		t.Fatalf("status %d, content type %q", resp.StatusCode, got)
	}
	r := bufio.NewReader(resp.Body)
	return func() string {
		t.Helper()
		var message strings.Builder
		for {
			line, err := r.ReadString('\n')
			if err == io.EOF {
				return "EOF"
			}
			if err != nil {
				t.Fatal(err)
			}
			if line == "\n" {
				return strings.TrimSuffix(message.String(), "\n")
			}
			message.WriteString(line)
		}
	}, cancel
}

func message(e skerry.Event) string {
	data, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf("id: %d\nevent: %s\ndata: %s", e.ID, e.Type, data)
}

func TestEventsStartNowAndAreResumed(t *testing.T) {
	c := &control{events: []skerry.Event{event(3, "sbx_a"), event(4, "sbx_b")}, changed: make(chan struct{})}
	h := newHandler(t, c)
	next, end := stream(t, h, "", "")
	if got := next(); got != "id: 4" {
		t.Fatalf("start = %q", got)
	}
	c.change(func() { c.events = append(c.events, event(7, "sbx_a")) })
	if got := next(); got != message(event(7, "sbx_a")) {
		t.Errorf("got %q", got)
	}
	end()
	// What happens while nobody listens is not lost.
	c.change(func() { c.events = append(c.events, event(8, "sbx_b"), event(9, "sbx_a")) })
	for _, how := range []struct{ query, header string }{{"", "7"}, {"?after=7", ""}, {"?after=3", "7"}} {
		next, end := stream(t, h, how.query, how.header)
		for _, want := range []string{"id: 7", message(event(8, "sbx_b")), message(event(9, "sbx_a"))} {
			if got := next(); got != want {
				t.Errorf("%+v: got %q, want %q", how, got, want)
			}
		}
		end()
	}
	next, end = stream(t, h, "?after=0&object_id=sbx_a", "")
	for _, want := range []string{"id: 0", message(event(3, "sbx_a")), message(event(7, "sbx_a")), message(event(9, "sbx_a"))} {
		if got := next(); got != want {
			t.Errorf("of one object: got %q, want %q", got, want)
		}
	}
	end()
}

func TestEventsOfManyPages(t *testing.T) {
	c := &control{}
	for id := range int64(250) {
		c.events = append(c.events, event(id+1, "sbx_a"))
	}
	next, _ := stream(t, newHandler(t, c), "?after=0", "")
	next()
	for _, e := range c.events {
		if got := next(); got != message(e) {
			t.Fatalf("got %q, want event %d", got, e.ID)
		}
	}
}

func TestEventStreamEndsWithTheServer(t *testing.T) {
	c := &control{changed: make(chan struct{})}
	next, _ := stream(t, newHandler(t, c), "", "")
	if got := next(); got != "id: 0" {
		t.Fatalf("start = %q", got)
	}
	c.change(func() { c.stopping = true })
	if got := next(); got != "EOF" {
		t.Errorf("got %q, want the end", got)
	}
}

func TestEventStreamHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := httptest.NewRequest("GET", "http://localhost/v2/events", nil).WithContext(ctx)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		done := make(chan struct{})
		h := newHandler(t, &control{})
		go func() { defer close(done); h.ServeHTTP(w, r) }()
		time.Sleep(46 * time.Second)
		cancel()
		<-done
		if n := strings.Count(w.Body.String(), "\n: "); n != 3 {
			t.Errorf("%d comments in 46 s: %q", n, w.Body)
		}
	})
}

// stuck is the connection of a reader that takes nothing: a write ends at its
// deadline.
type stuck struct {
	http.ResponseWriter
	deadline time.Time
	writes   int
}

func (w *stuck) SetWriteDeadline(at time.Time) error { w.deadline = at; return nil }

func (w *stuck) Write([]byte) (int, error) {
	w.writes++
	time.Sleep(time.Until(w.deadline))
	return 0, os.ErrDeadlineExceeded
}

func TestEventStreamOfASlowReaderIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := httptest.NewRequest("GET", "http://localhost/v2/events?after=0", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		start, w := time.Now(), &stuck{ResponseWriter: httptest.NewRecorder()}
		newHandler(t, &control{events: []skerry.Event{event(1, "sbx_a")}}).ServeHTTP(w, r)
		if after := time.Since(start); after != 30*time.Second || w.writes != 1 {
			t.Errorf("cut after %s and %d writes, want 30 s and the first", after, w.writes)
		}
	})
}

func TestEventList(t *testing.T) {
	c := &control{events: []skerry.Event{event(3, "sbx_a"), event(4, "sbx_b"), event(5, "sbx_a")}}
	h := newHandler(t, c)
	list := func(query string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "http://localhost/v2/events"+query, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Accept", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for query, want := range map[string]string{
		"": "[3 4 5]", "?after=3": "[4 5]", "?after=0&limit=2": "[3 4]", "?object_id=sbx_a": "[3 5]", "?after=5": "[]",
	} {
		w := list(query)
		ids := []int64{}
		for _, e := range decode[struct{ Items []skerry.Event }](t, w).Items {
			ids = append(ids, e.ID)
		}
		if got := fmt.Sprint(ids); got != want || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%q: %s of %s, want %s", query, got, w.Header().Get("Content-Type"), want)
		}
	}
	if w := list("?after=5"); strings.TrimSpace(w.Body.String()) != `{"items":[]}` {
		t.Errorf("empty list = %s", w.Body)
	}
	for query, rule := range map[string]string{
		"?after=-2": "after min", "?after=x": "after type", "?limit=0": "limit min", "?limit=1001": "limit max", "?from=1": "from unknown_field",
	} {
		field, rule, _ := strings.Cut(rule, " ")
		wantProblem(t, list(query), skerry.CodeInvalid, field, rule)
	}
	r := httptest.NewRequest("GET", "http://localhost/v2/events", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Last-Event-ID", "x")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	wantProblem(t, w, skerry.CodeInvalid, "Last-Event-ID", "type")
	c.err = skerry.Errorf(skerry.CodeUnavailable, "the server is stopping")
	wantProblem(t, list(""), skerry.CodeUnavailable, "", "")
	wantProblem(t, do(t, h, "GET", "/v2/events", ""), skerry.CodeUnavailable, "", "")
}
