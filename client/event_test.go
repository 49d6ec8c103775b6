package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	"skerry.dev/skerry"
)

// eventServer answers each connection with the next script and records what it
// was asked for.
type eventServer struct {
	mu      sync.Mutex
	scripts []string
	asked   []string
}

func (s *eventServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.URL.RawQuery)
	if len(s.scripts) == 0 {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"code":"unauthorized","detail":"the API key is not valid"}`)
		return
	}
	script := s.scripts[0]
	s.scripts = s.scripts[1:]
	if script == "stopping" {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"code":"unavailable","detail":"the server is stopping"}`)
		return
	}
	fmt.Fprint(w, script)
}

func sent(ids ...int) string {
	text := ""
	for _, id := range ids {
		text += fmt.Sprintf("id: %d\nevent: sandbox.status\ndata: {\"id\":%d}\n\n", id, id)
	}
	return text
}

func TestEventsReconnect(t *testing.T) {
	s := &eventServer{scripts: []string{
		"id: 4\n\n", // ends before any event
		sent(5, 6) + ": nothing new\n\n" + "id: 7\ndat", // cut within a message
		"stopping",
		"id: 6\n\n" + sent(7) + "data: {\"id\":8,\ndata: \"status\":\"running\"}\nid: 8\n\n",
	}}
	c := newClient(t, s.serve)
	var ids []int64
	var last error
	for e, err := range c.Events(t.Context(), skerry.EventFilter{After: FromNow, ObjectID: "sbx_x"}) {
		if err != nil {
			last = err
			break
		}
		ids = append(ids, e.ID)
	}
	if want := []int64{5, 6, 7, 8}; !slices.Equal(ids, want) || skerry.CodeOf(last) != skerry.CodeUnauthorized {
		t.Errorf("got %v and %v, want %v and unauthorized", ids, last, want)
	}
	want := []string{"object_id=sbx_x", "after=4&object_id=sbx_x", "after=6&object_id=sbx_x", "after=6&object_id=sbx_x", "after=8&object_id=sbx_x"}
	if !slices.Equal(s.asked, want) {
		t.Errorf("asked %q, want %q", s.asked, want)
	}
}

func TestEventsEnd(t *testing.T) {
	c := newClient(t, (&eventServer{scripts: []string{sent(1, 2, 3)}}).serve)
	n := 0
	for _, err := range c.Events(t.Context(), skerry.EventFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n == 2 {
			break
		}
	}
	if n != 2 {
		t.Errorf("%d events, want 2", n)
	}

	refused, err := New(Config{URL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]struct {
		client *Client
		want   func(error) bool
	}{
		"no server": {refused, func(err error) bool { return skerry.CodeOf(err) == skerry.CodeUnavailable }},
		"not an event": {newClient(t, (&eventServer{scripts: []string{"data: nonsense\n\n"}}).serve),
			func(err error) bool { var m *malformedStream; return errors.As(err, &m) }},
		"not an id": {newClient(t, (&eventServer{scripts: []string{"id: x\n\n"}}).serve),
			func(err error) bool { var m *malformedStream; return errors.As(err, &m) }},
	} {
		for _, err := range end.client.Events(t.Context(), skerry.EventFilter{}) {
			if !end.want(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	hanging := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		cancel()
		<-r.Context().Done()
	})
	for _, err := range hanging.Events(ctx, skerry.EventFilter{}) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	}
}

func FuzzEventStream(f *testing.F) {
	f.Add([]byte(sent(1, 2)))
	f.Add([]byte("id: 4\n\n: comment\n\ndata\ndata:\n\nid:x\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		var m eventMessage
		position := int64(-1)
		for len(stream) > 0 {
			n := slices.Index(stream, '\n')
			if n < 0 {
				break
			}
			if line := stream[:n]; n > 0 {
				m.line(line)
			} else if _, ok, err := m.end(&position); ok && err != nil {
				t.Errorf("an event and an error: %v", err)
			}
			stream = stream[n+1:]
		}
	})
}
