package v2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"skerry.dev/skerry"
)

type sandboxOutput struct{ Body skerry.Sandbox }

type createOutput struct {
	Status int
	Body   skerry.Sandbox
}

type idInput struct {
	ID string `path:"id" maxLength:"255" doc:"Id or name."`
}

type listInput struct {
	Label          []string `query:"label,explode" doc:"key=value; repeated, all must match."`
	Status         []string `query:"status" doc:"Statuses, comma separated: running,failed."`
	State          []string `query:"state" doc:"Coarse states, comma separated: started,error."`
	IncludeDeleted bool     `query:"include_deleted" doc:"Deleted sandboxes stay listed for a while."`
	Cursor         string   `query:"cursor" maxLength:"512" doc:"next_cursor of the page before."`
	Limit          int      `query:"limit" minimum:"1" maximum:"1000" doc:"Default 100."`
}

type waitInput struct {
	ID             string   `path:"id" maxLength:"255" doc:"Id or name."`
	Wait           []string `query:"wait" doc:"Statuses or coarse states to wait for, comma separated: running, or starting,started. The answer comes when one of them is reached; when the sandbox is deleting, deleted, failed or lost (a wait for deleted goes on while it is deleting); when none of them can be reached any more; or when the time is over. Look at status to tell."`
	TimeoutSeconds float64  `query:"timeout_seconds" minimum:"0" default:"3" doc:"How long to hold the request; more than 3 counts as 3."`
}

func (s *server) registerSandboxes() {
	register(s, huma.Operation{
		OperationID: "create-sandbox", Method: http.MethodPost, Path: "/v2/sandboxes", Tags: []string{"Sandboxes"},
		Summary:     "Create a sandbox",
		Description: "Answers 201 for a new sandbox and 200 when the idempotency key already had one. A sandbox that does not start in time or fails is no error: look at status.",
		// huma documents the default status by itself.
		DefaultStatus: http.StatusCreated,
		Responses:     map[string]*huma.Response{"200": s.jsonResponse("The sandbox that the idempotency key already had", skerry.Sandbox{})},
	}, s.createSandbox)
	register(s, huma.Operation{
		OperationID: "list-sandboxes", Method: http.MethodGet, Path: "/v2/sandboxes", Tags: []string{"Sandboxes"},
		Summary: "List sandboxes, newest first",
	}, s.listSandboxes)
	register(s, huma.Operation{
		OperationID: "get-sandbox", Method: http.MethodGet, Path: "/v2/sandboxes/{id}", Tags: []string{"Sandboxes"},
		Summary: "Get a sandbox, or wait for its status",
		Description: "A client that waits asks again until one of the statuses is reached. It gives up, as with SandboxTerminalStateError in the client libraries, " +
			"at deleting, deleted, failed and lost unless it waits for these, and, as with RequestTimeoutError, when its own time is over.",
	}, s.getSandbox)
	register(s, huma.Operation{
		OperationID: "delete-sandbox", Method: http.MethodDelete, Path: "/v2/sandboxes/{id}", Tags: []string{"Sandboxes"},
		Summary:       "Delete a sandbox",
		Description:   "Works in any state and answers when the teardown has started; wait for deleted to see it finished.",
		DefaultStatus: http.StatusAccepted,
	}, s.deleteSandbox)
	register(s, huma.Operation{
		OperationID: "get-sandbox-console", Method: http.MethodGet, Path: "/v2/sandboxes/{id}/console", Tags: []string{"Sandboxes"},
		Summary:   "Get the console log of a sandbox",
		Responses: map[string]*huma.Response{"200": {Description: "What the kernel wrote", Content: map[string]*huma.MediaType{"text/plain": {Schema: &huma.Schema{Type: "string"}}}}},
	}, s.console)
}

func (s *server) createSandbox(ctx context.Context, in *struct{ Body createBody }) (*createOutput, error) {
	req, wait, err := s.resolveCreate(ctx, &in.Body)
	if err != nil {
		return nil, err
	}
	sb, created, err := s.Control.CreateSandbox(ctx, req)
	if err != nil {
		return nil, err
	}
	if wait > 0 {
		// The sandbox exists now, so a wait that fails must not hide it.
		until := []skerry.Status{skerry.StatusRunning}
		if waited, err := s.Control.WaitSandbox(ctx, string(sb.ID), until, wait); err == nil {
			sb = waited
		} else {
			s.Logger.WarnContext(ctx, "wait after create failed", "sandbox_id", string(sb.ID), "err", err)
		}
	}
	return createResult(sb, created), nil
}

// createResult tells a new sandbox from one that was there.
func createResult(sb skerry.Sandbox, created bool) *createOutput {
	if created {
		return &createOutput{Status: http.StatusCreated, Body: sb}
	}
	return &createOutput{Status: http.StatusOK, Body: sb}
}

func (s *server) listSandboxes(ctx context.Context, in *listInput) (*struct{ Body skerry.SandboxPage }, error) {
	filter := skerry.SandboxFilter{Cursor: in.Cursor, Limit: in.Limit, Deleted: in.IncludeDeleted}
	for _, pair := range in.Label {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, skerry.Invalid("label", "pattern", "key=value", "%q is not key=value", pair)
		}
		if filter.Labels == nil {
			filter.Labels = map[string]string{}
		}
		if other, twice := filter.Labels[key]; twice && other != value {
			return nil, skerry.Invalid("label", "unique", "one value for each key", "%q is given twice with different values", key)
		}
		filter.Labels[key] = value
	}
	for _, name := range in.Status {
		if !skerry.Status(name).Valid() {
			return nil, skerry.Invalid("status", "one_of", joinNames(skerry.Statuses()), "%q is not a status", name)
		}
		filter.Statuses = append(filter.Statuses, skerry.Status(name))
	}
	for _, name := range in.State {
		if !slices.Contains(states(), skerry.State(name)) {
			return nil, skerry.Invalid("state", "one_of", joinNames(states()), "%q is not a state", name)
		}
		filter.Statuses = append(filter.Statuses, skerry.StatusesNamed(name)...)
	}
	page, err := s.Control.ListSandboxes(ctx, filter)
	if err != nil {
		return nil, err
	}
	if page.Items == nil {
		page.Items = []skerry.Sandbox{}
	}
	return &struct{ Body skerry.SandboxPage }{page}, nil
}

func (s *server) getSandbox(ctx context.Context, in *waitInput) (*sandboxOutput, error) {
	var until []skerry.Status
	for _, name := range in.Wait {
		statuses := skerry.StatusesNamed(name)
		if statuses == nil {
			return nil, skerry.Invalid("wait", "one_of", waitNames(), "%q is not a status or state", name)
		}
		until = append(until, statuses...)
	}
	var sb skerry.Sandbox
	var err error
	if len(until) == 0 {
		sb, err = s.Control.Sandbox(ctx, in.ID)
	} else {
		sb, err = s.Control.WaitSandbox(ctx, in.ID, skerry.WaitEnds(until...), hold(in.TimeoutSeconds))
	}
	if err != nil {
		return nil, err
	}
	return &sandboxOutput{sb}, nil
}

func (s *server) deleteSandbox(ctx context.Context, in *idInput) (*sandboxOutput, error) {
	sb, err := s.Control.DeleteSandbox(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &sandboxOutput{sb}, nil
}

func (s *server) console(ctx context.Context, in *idInput) (*huma.StreamResponse, error) {
	sb, err := s.Control.Sandbox(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if s.Console == nil {
		return nil, skerry.Errorf(skerry.CodeNotFound, "sandbox %s has no console log", sb.ID)
	}
	log, err := s.Console(ctx, sb.ID)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		defer log.Close()
		hctx.SetHeader("Content-Type", "text/plain; charset=utf-8")
		hctx.SetStatus(http.StatusOK)
		if _, err := io.Copy(hctx.BodyWriter(), log); err != nil && !errors.Is(err, context.Canceled) {
			// Too late for a status: break the connection, so that a part
			// never looks like the whole.
			panic(http.ErrAbortHandler)
		}
	}}, nil
}

// hold is how long the server holds a request that waits.
func hold(seconds float64) time.Duration {
	return time.Duration(min(seconds, skerry.MaxServerWait.Seconds()) * float64(time.Second))
}

// waitNames are the statuses, and the states with other names.
func waitNames() string {
	names := joinNames(skerry.Statuses())
	for _, st := range states() {
		if !skerry.Status(st).Valid() {
			names += ", " + string(st)
		}
	}
	return names
}

func joinNames[T ~string](names []T) string {
	parts := make([]string, 0, len(names))
	for _, n := range names {
		parts = append(parts, string(n))
	}
	return strings.Join(parts, ", ")
}
