// Package v2 is Skerry's own REST dialect: snake_case JSON, unknown fields
// refused, errors as problem details, an OpenAPI 3.1 document generated from
// the Go types. It only translates; the rules are in package skerry and the
// work is behind Control.
package v2

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/api"
	"skerry.dev/skerry/internal/problem"
)

// Control is the control plane as the API needs it. Its errors are
// *skerry.Error where the caller shall see them; sandboxes, images and
// snapshots are found by id or name.
type Control interface {
	// CreateSandbox records a sandbox; false tells that the idempotency key
	// already had one, which is returned.
	CreateSandbox(ctx context.Context, req skerry.SandboxRequest) (sb skerry.Sandbox, created bool, err error)
	Sandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error)
	ListSandboxes(ctx context.Context, filter skerry.SandboxFilter) (skerry.SandboxPage, error)
	// WaitSandbox returns the sandbox once it has one of the statuses, can no
	// longer reach any, or the time is over; the last is not an error.
	WaitSandbox(ctx context.Context, idOrName string, until []skerry.Status, timeout time.Duration) (skerry.Sandbox, error)
	// DeleteSandbox starts the teardown; deleting again changes nothing.
	DeleteSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error)

	// The operations below start something and return the object as it then
	// is; CodeConflict says why one is refused now.

	StopSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error)
	StartSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error)
	PauseSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error)
	ResumeSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error)
	ReclaimSandbox(ctx context.Context, idOrName string) (skerry.Sandbox, error)
	ForkSandbox(ctx context.Context, idOrName string, req skerry.ForkRequest) ([]skerry.Sandbox, error)
	TouchSandbox(ctx context.Context, idOrName string) (skerry.Lifecycle, error)
	UpdateLifecycle(ctx context.Context, idOrName string, req skerry.PolicyRequest) (skerry.Lifecycle, error)

	CreateSnapshot(ctx context.Context, idOrName, name string) (skerry.Snapshot, error)
	Snapshot(ctx context.Context, idOrName string) (skerry.Snapshot, error)
	ListSnapshots(ctx context.Context) ([]skerry.Snapshot, error)
	// WaitSnapshot is WaitSandbox for snapshots: it ends at ready and failed.
	WaitSnapshot(ctx context.Context, idOrName string, timeout time.Duration) (skerry.Snapshot, error)
	DeleteSnapshot(ctx context.Context, idOrName string) error
	// RestoreSnapshot is CreateSandbox with memory and disk of a snapshot.
	RestoreSnapshot(ctx context.Context, idOrName string, req skerry.RestoreRequest) (sb skerry.Sandbox, created bool, err error)

	// Events returns the events that the filter selects, oldest first.
	Events(ctx context.Context, filter skerry.EventFilter) ([]skerry.Event, error)
	// WaitEvents is Events, but waits for the first one; none when the time
	// is over, CodeUnavailable when the server stops.
	WaitEvents(ctx context.Context, filter skerry.EventFilter, timeout time.Duration) ([]skerry.Event, error)
	// LastEventID is that of the newest event, 0 while there is none.
	LastEventID(ctx context.Context) (int64, error)

	CaptureImage(ctx context.Context, idOrName string, req skerry.CaptureRequest) (skerry.Image, error)
	PushImage(ctx context.Context, idOrName string, req skerry.PushRequest) (skerry.Image, error)
	PullImage(ctx context.Context, req skerry.PullRequest) (skerry.Image, error)
	// ImportImage takes over the file at req.Path when it returns no error.
	ImportImage(ctx context.Context, req skerry.ImportRequest) (skerry.Image, error)
	BuildDefaultImage(ctx context.Context) (skerry.Image, error)
	Image(ctx context.Context, idOrName string) (skerry.Image, error)
	ListImages(ctx context.Context) ([]skerry.Image, error)
	// WaitImage is WaitSandbox for images: it ends at ready and failed.
	WaitImage(ctx context.Context, idOrName string, timeout time.Duration) (skerry.Image, error)
	DeleteImage(ctx context.Context, idOrName string) error

	Runners(ctx context.Context) ([]skerry.Runner, error)
}

// Config is what New needs.
type Config struct {
	Control Control
	Logger  *slog.Logger
	Version string // of this build
	Region  string // the region this server calls its own
	// Policy is what a create without timeouts gets, and their maximum.
	Policy skerry.PolicyDefaults
	// Console opens the console log of a sandbox, or fails with
	// CodeNotFound while there is none. Nil means that there are no logs.
	Console func(ctx context.Context, id skerry.SandboxID) (io.ReadCloser, error)
	// SpoolDir receives uploads of images until they are registered.
	SpoolDir string
	// MaxImportBytes bounds an upload; 0 is DefaultMaxImportBytes.
	MaxImportBytes int64
}

const (
	// DefaultMaxImportBytes bounds the upload of an image archive.
	DefaultMaxImportBytes = 64 << 30

	// maxBodyBytes bounds JSON bodies: the environment may have 1 MiB and
	// JSON may need six bytes for one (\u0001).
	maxBodyBytes = 8 << 20
	// bodyReadTimeout bounds how long a JSON body may take to arrive. It
	// must stay above skerry.MaxServerWait: net/http cancels a request whose
	// read deadline passes while its handler runs.
	bodyReadTimeout = 30 * time.Second
)

type server struct {
	Config
	huma huma.API
}

// New returns the handler of everything below /v2/. Authentication is done in
// front of it.
func New(c Config) http.Handler {
	if c.MaxImportBytes == 0 {
		c.MaxImportBytes = DefaultMaxImportBytes
	}
	mux := http.NewServeMux()
	s := &server{Config: c, huma: humago.New(mux, openAPIConfig(c.Version))}
	s.huma.UseMiddleware(statusMiddleware)
	s.registerSandboxes()
	s.registerOperations()
	s.registerLifecycle()
	s.registerSnapshots()
	s.registerEvents()
	s.registerImages()
	s.registerRunners()
	finishOpenAPI(s.huma.OpenAPI())
	document, err := json.Marshal(s.huma.OpenAPI())
	if err != nil {
		panic(err) // the types are compiled in
	}
	mux.HandleFunc("GET /v2/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/openapi+json")
		w.Write(document)
	})
	return api.Mux{ServeMux: mux}
}

// register adds an operation and translates its errors.
func register[I, O any](s *server, op huma.Operation, handler func(context.Context, *I) (*O, error)) {
	op.MaxBodyBytes = maxBodyBytes
	op.BodyReadTimeout = bodyReadTimeout
	op.RejectUnknownQueryParameters = true
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	op.Responses["default"] = problemResponse(s.huma.OpenAPI().Components.Schemas)
	huma.Register(s.huma, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := handler(ctx, in)
		if err == nil {
			return out, nil
		}
		p := problem.New(err, problem.RequestID(ctx))
		if p.Code == skerry.CodeInternal {
			s.Logger.ErrorContext(ctx, "request failed", "request_id", p.RequestID, "op", op.OperationID, "err", err)
		}
		return nil, p
	})
}

// optional is the input of an operation on one object whose body may be left
// out, which is like an empty one.
type optional[T any] struct {
	ID   string `path:"id" maxLength:"255" doc:"Id or name."`
	Body *T
}

func (in *optional[T]) body() (body T) {
	if in.Body != nil {
		body = *in.Body
	}
	return body
}
