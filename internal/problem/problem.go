// Package problem is how errors travel over HTTP: problem details (RFC 9457)
// with the stable code of a skerry.Error. Servers write them, clients read them
// back; both use the one table of this package.
package problem

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"skerry.dev/skerry"
)

// ContentType is the media type of a problem (RFC 9457, section 6.1).
const ContentType = "application/problem+json"

// maxBody bounds a problem that a client reads.
const maxBody = 64 << 10

// Problem is the body of every response with an error.
type Problem struct {
	Type      string      `json:"type" doc:"urn:skerry:error: and the code."`
	Title     string      `json:"title" doc:"What the code means."`
	Status    int         `json:"status" doc:"The HTTP status."`
	Detail    string      `json:"detail" doc:"What is wrong with this request."`
	Instance  string      `json:"instance,omitempty" doc:"urn:skerry:request: and the request id."`
	Code      skerry.Code `json:"code" doc:"Stable, machine-readable kind of error."`
	RequestID string      `json:"request_id,omitempty" doc:"Also in the header X-Request-Id and in the server's log."`
	Errors    []Violation `json:"errors,omitempty" doc:"The rules that the request breaks."`
}

// Violation is one broken rule of a request.
type Violation struct {
	Field   string `json:"field" doc:"As spelled in the request, nested ones with dots: resources.memory."`
	Rule    string `json:"rule" doc:"The rule, for example max, pattern, unknown_field."`
	Bound   string `json:"bound,omitempty" doc:"The rule's bound, for example 32 GiB."`
	Message string `json:"message"`
}

// New describes err. The text of an error that is not a *skerry.Error stays on
// the server: the problem then only carries the request id to find it by.
func New(err error, requestID string) *Problem {
	var e *skerry.Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, context.DeadlineExceeded):
		e = skerry.Errorf(skerry.CodeTimeout, "the request took too long")
	case errors.Is(err, context.Canceled):
		e = skerry.Errorf(skerry.CodeUnavailable, "the request was cancelled")
	default:
		e = skerry.Errorf(skerry.CodeInternal, "internal error; the server's log has it under this request id")
	}
	p := &Problem{
		Type:   "urn:skerry:error:" + string(e.Code),
		Title:  Title(e.Code),
		Status: Status(e.Code),
		Detail: e.Message,
		Code:   e.Code,
	}
	if e.Field != "" {
		p.Errors = []Violation{{Field: e.Field, Rule: e.Rule, Bound: e.Bound, Message: e.Message}}
	}
	return p.withRequest(requestID)
}

// Invalid describes a request that breaks several rules at once.
func Invalid(violations []Violation, requestID string) *Problem {
	messages := make([]string, 0, len(violations))
	for _, v := range violations {
		messages = append(messages, v.Message)
	}
	p := &Problem{
		Type:   "urn:skerry:error:" + string(skerry.CodeInvalid),
		Title:  Title(skerry.CodeInvalid),
		Status: Status(skerry.CodeInvalid),
		Detail: strings.Join(messages, "; "),
		Code:   skerry.CodeInvalid,
		Errors: violations,
	}
	return p.withRequest(requestID)
}

func (p *Problem) withRequest(id string) *Problem {
	if id != "" {
		p.RequestID, p.Instance = id, "urn:skerry:request:"+id
	}
	return p
}

// Error returns the detail.
func (p *Problem) Error() string { return p.Detail }

// GetStatus returns the HTTP status; together with ContentType it lets huma
// send a Problem as it is.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType returns the media type of problems, whatever was negotiated.
func (p *Problem) ContentType(string) string { return ContentType }

// Write sends err as a problem and returns the status it sent.
func Write(w http.ResponseWriter, r *http.Request, err error) int {
	return New(err, RequestID(r.Context())).WriteTo(w)
}

// WriteTo sends the problem and returns its status. Nothing may have been sent
// before.
func (p *Problem) WriteTo(w http.ResponseWriter) int {
	h := w.Header()
	h.Del("Content-Length")
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store")
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="skerry"`)
	}
	w.WriteHeader(p.Status)
	// A client that is gone cannot be told anything.
	_ = json.NewEncoder(w).Encode(p)
	return p.Status
}

// Read turns a response with an error status into the problem it carries, or
// one made of the status when something else than Skerry answered. It reads the
// body, bounded, and leaves closing it to the caller.
func Read(resp *http.Response) *Problem {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	p := &Problem{}
	if err != nil || json.Unmarshal(body, p) != nil || p.Code == "" {
		p = &Problem{Code: CodeOf(resp.StatusCode), Detail: "the server answered " + resp.Status}
	}
	p.Status = resp.StatusCode
	if p.RequestID == "" {
		p.RequestID = resp.Header.Get("X-Request-Id")
	}
	return p
}

// Err is the error that the problem was made of.
func (p *Problem) Err() *skerry.Error {
	e := &skerry.Error{Code: p.Code, Message: p.Detail}
	if len(p.Errors) > 0 {
		e.Field, e.Rule, e.Bound = p.Errors[0].Field, p.Errors[0].Rule, p.Errors[0].Bound
	}
	return e
}

type requestIDKey struct{}

// WithRequestID returns a context that carries the id of a request.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID returns the id of the request that ctx belongs to, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}
