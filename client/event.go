package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"skerry.dev/skerry"
)

// FromNow is the EventFilter.After of a reader that wants what comes only.
const FromNow = -1

const (
	// maxStreamLine bounds a line of an event stream: an event holds a whole
	// sandbox, whose environment can be 1 MiB and six times that in JSON.
	maxStreamLine = 16 << 20
	// silence is how long a stream may bring nothing: the server has a
	// comment in it every 15 s.
	silence = 45 * time.Second
	// maxReconnectDelay is how long to wait before a further try at most.
	maxReconnectDelay = 5 * time.Second
)

// ListEvents returns events that the server has kept, oldest first.
func (c *Client) ListEvents(ctx context.Context, filter skerry.EventFilter) ([]skerry.Event, error) {
	query := eventQuery(filter)
	if filter.Limit > 0 {
		query.Set("limit", strconv.Itoa(filter.Limit))
	}
	header := http.Header{"Accept": {"application/json"}}
	resp, err := retry(ctx, true, func() (*http.Response, error) {
		return c.doWith(ctx, header, http.MethodGet, "/v2/events", query, nil)
	})
	if err != nil {
		return nil, err
	}
	defer drain(resp)
	var list struct {
		Items []skerry.Event `json:"items"`
	}
	return list.Items, decode(resp, &list)
}

// Events yields events as they happen, each once: those after filter.After, or
// with FromNow those from now on. When the connection ends, it goes on after the
// last event with a new one, for as long as it takes. It ends with an error of
// the first connection, one that the server answers, like CodeUnauthorized, or
// that of ctx. filter.Limit is not used.
func (c *Client) Events(ctx context.Context, filter skerry.EventFilter) iter.Seq2[skerry.Event, error] {
	return func(yield func(skerry.Event, error) bool) {
		f := follower{client: c, filter: filter}
		delay := firstDelay
		for {
			before := f.filter.After
			more, err := f.follow(ctx, func(e skerry.Event) bool { return yield(e, nil) })
			if !more {
				return
			}
			if ctx.Err() != nil {
				err = ctx.Err()
			} else if f.connected && !final(err) {
				if f.filter.After != before {
					delay = firstDelay
				}
				err = sleep(ctx, delay+rand.N(delay))
				delay = min(2*delay, maxReconnectDelay)
			}
			if err != nil {
				yield(skerry.Event{}, err)
				return
			}
		}
	}
}

// final reports whether a further connection would bring the same error.
func final(err error) bool {
	var answered *Error
	var malformed *malformedStream
	return errors.As(err, &answered) && skerry.CodeOf(err) != skerry.CodeUnavailable || errors.As(err, &malformed)
}

// malformedStream is a stream that makes no sense.
type malformedStream struct{ err error }

func (e *malformedStream) Error() string { return "decode events: " + e.err.Error() }
func (e *malformedStream) Unwrap() error { return e.err }

// follower reads event streams one after the other.
type follower struct {
	client    *Client
	filter    skerry.EventFilter // After moves along
	connected bool               // was so at least once
}

// follow reads one connection's stream until it breaks; false tells that take
// wants no more.
func (f *follower) follow(ctx context.Context, take func(skerry.Event) bool) (more bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(silence, cancel) // a dead connection says nothing, not even that
	defer silent.Stop()
	resp, err := f.client.doWith(ctx, http.Header{"Accept": {"text/event-stream"}}, http.MethodGet, "/v2/events", eventQuery(f.filter), nil)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	f.connected = true
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxStreamLine)
	var message eventMessage
	for lines.Scan() {
		silent.Reset(silence)
		if len(lines.Bytes()) > 0 {
			message.line(lines.Bytes())
			continue
		}
		event, ok, err := message.end(&f.filter.After)
		if err != nil {
			return true, &malformedStream{err}
		}
		if ok && !take(event) {
			return false, nil
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return true, &malformedStream{lines.Err()}
	}
	return true, lines.Err()
}

// eventMessage is a message of an event stream under way (WHATWG HTML, section
// 9.2.6). Its type is also in the data.
type eventMessage struct {
	id   string
	data []byte
}

func (m *eventMessage) line(line []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "id":
		m.id = string(value)
	case "data":
		if m.data != nil {
			m.data = append(m.data, '\n')
		}
		m.data = append(m.data, value...)
	}
}

// end returns the event, if there is one, and moves the position to its id; a
// message without data only does that.
func (m *eventMessage) end(position *int64) (event skerry.Event, ok bool, err error) {
	done := *m
	*m = eventMessage{}
	if done.data != nil {
		if err := json.Unmarshal(done.data, &event); err != nil {
			return event, false, err
		}
	}
	if done.id != "" {
		id, err := strconv.ParseInt(done.id, 10, 64)
		if err != nil {
			return event, false, fmt.Errorf("id: %w", err)
		}
		*position = id
	}
	return event, done.data != nil, nil
}

func eventQuery(filter skerry.EventFilter) url.Values {
	query := url.Values{}
	if filter.After >= 0 {
		query.Set("after", strconv.FormatInt(filter.After, 10))
	}
	if filter.ObjectID != "" {
		query.Set("object_id", filter.ObjectID)
	}
	return query
}
