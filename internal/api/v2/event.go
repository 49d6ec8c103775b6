package v2

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"skerry.dev/skerry"
)

const (
	// heartbeatInterval is how often a stream without events says that it
	// still is there.
	heartbeatInterval = 15 * time.Second
	// eventWriteTimeout is how long a reader may take nothing; it can resume.
	eventWriteTimeout = 30 * time.Second

	eventStream = "text/event-stream"
)

// fromNow stands for the position behind the newest event.
const fromNow = -1

type eventsInput struct {
	LastEventID int64  `header:"Last-Event-ID" minimum:"-1" default:"-1" doc:"Resume after this event; goes before the parameter after."`
	After       int64  `query:"after" minimum:"-1" default:"-1" doc:"Only events with a larger id: resume after this one. -1, the default, has a stream start now and a list with the oldest event that is kept."`
	ObjectID    string `query:"object_id" maxLength:"64" doc:"Only events of the sandbox, image or snapshot with this id."`
	Limit       int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Of a list: how many events at most."`
	Accept      string `header:"Accept" doc:"application/json for a list, else a stream."`
}

// filter selects what is asked for; its After may be fromNow.
func (in *eventsInput) filter() skerry.EventFilter {
	after := in.After
	if in.LastEventID != fromNow {
		after = in.LastEventID
	}
	return skerry.EventFilter{After: after, ObjectID: in.ObjectID, Limit: cmp.Or(in.Limit, skerry.DefaultPageSize)}
}

type eventList struct {
	Items []skerry.Event `json:"items"`
}

func (s *server) registerEvents() {
	list := s.jsonResponse("", eventList{}).Content["application/json"]
	register(s, huma.Operation{
		OperationID: "list-events", Method: http.MethodGet, Path: "/v2/events", Tags: []string{"Events"},
		Summary: "Follow or list what changes",
		Description: "A stream of server-sent events (text/event-stream): id is that of the event, event its type, data the event as JSON. " +
			"The first message has an id only: where the stream starts. A comment comes every 15 seconds without events. " +
			"A client whose connection ends, also because it reads too slowly or the server stops, goes on with Last-Event-ID and misses nothing. " +
			"With Accept: application/json it is a list of the events that are kept, oldest first.",
		Responses: map[string]*huma.Response{"200": {Description: "Events", Content: map[string]*huma.MediaType{
			eventStream: {Schema: &huma.Schema{Type: "string"}}, "application/json": list,
		}}},
	}, s.events)
}

func (s *server) events(ctx context.Context, in *eventsInput) (*huma.StreamResponse, error) {
	filter := in.filter()
	if strings.Contains(in.Accept, "application/json") && !strings.Contains(in.Accept, eventStream) {
		return s.listEvents(ctx, filter)
	}
	if filter.After == fromNow {
		last, err := s.Control.LastEventID(ctx)
		if err != nil {
			return nil, err
		}
		filter.After = last
	}
	filter.Limit = skerry.DefaultPageSize
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		_, w := humago.Unwrap(hctx)
		hctx.SetHeader("Content-Type", eventStream)
		hctx.SetHeader("Cache-Control", "no-store")
		hctx.SetStatus(http.StatusOK)
		if err := s.streamEvents(ctx, &eventWriter{w: w, control: http.NewResponseController(w)}, filter); err != nil {
			s.Logger.DebugContext(ctx, "event stream ended", "err", err)
		}
	}}, nil
}

func (s *server) listEvents(ctx context.Context, filter skerry.EventFilter) (*huma.StreamResponse, error) {
	filter.After = max(0, filter.After)
	events, err := s.Control.Events(ctx, filter)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		hctx.SetHeader("Content-Type", "application/json")
		hctx.SetStatus(http.StatusOK)
		// A client that is gone cannot be told anything.
		_ = json.NewEncoder(hctx.BodyWriter()).Encode(eventList{Items: append([]skerry.Event{}, events...)})
	}}, nil
}

// streamEvents writes events until the client or the server ends, which is no
// error. It holds one page of events at a time, so a slow reader costs no more
// than a quick one.
func (s *server) streamEvents(ctx context.Context, w *eventWriter, filter skerry.EventFilter) error {
	// An id alone makes no event, but the place to resume from.
	if err := w.write(fmt.Sprintf("id: %d\n\n", filter.After)); err != nil {
		return err
	}
	for {
		events, err := s.Control.WaitEvents(ctx, filter, heartbeatInterval)
		switch {
		case ctx.Err() != nil || skerry.CodeOf(err) == skerry.CodeUnavailable:
			return nil
		case err != nil:
			return err
		case len(events) == 0:
			err = w.write(": nothing new\n\n")
		default:
			err = w.events(events)
			filter.After = events[len(events)-1].ID
		}
		if err != nil {
			return err
		}
	}
}

// eventWriter writes an event stream (WHATWG HTML, section 9.2).
type eventWriter struct {
	w       io.Writer
	control *http.ResponseController
}

// events writes a page of events.
func (w *eventWriter) events(events []skerry.Event) error {
	var text strings.Builder
	for _, e := range events {
		data, err := json.Marshal(e) // has no line breaks
		if err != nil {
			return fmt.Errorf("encode event %d: %w", e.ID, err)
		}
		fmt.Fprintf(&text, "id: %d\nevent: %s\ndata: %s\n\n", e.ID, e.Type, data)
	}
	return w.write(text.String())
}

// write sends text to a reader that takes it in time.
func (w *eventWriter) write(text string) error {
	err := w.control.SetWriteDeadline(time.Now().Add(eventWriteTimeout))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := io.WriteString(w.w, text); err != nil {
		return err
	}
	return w.control.Flush()
}
