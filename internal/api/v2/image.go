package v2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"skerry.dev/skerry"
)

type imageOutput struct{ Body skerry.Image }

type imageList struct {
	Items []skerry.Image `json:"items"`
}

// readyInput asks for an image or a snapshot.
type readyInput struct {
	ID             string  `path:"id" maxLength:"255" doc:"Id or name."`
	Wait           string  `query:"wait" enum:"ready" doc:"The answer comes when it is ready or failed, or when the time is over: look at status."`
	TimeoutSeconds float64 `query:"timeout_seconds" minimum:"0" default:"3" doc:"How long to hold the request; more than 3 counts as 3."`
}

type importInput struct {
	Name    string `query:"name" required:"true" doc:"Name to register the image under."`
	Kind    string `query:"kind" enum:"oci-layout,docker-save" doc:"A tar of an OCI image layout, or what docker save writes. Default: told by its content."`
	Tag     string `query:"tag" maxLength:"255" doc:"Which image, when the archive holds several."`
	Default bool   `query:"default" doc:"Make it the image of creates that name none."`
	Warm    bool   `query:"warm" doc:"Boot it once before it is ready, so that the first create need not."`
	body    io.Reader
}

// Resolve takes the body as a stream; huma would hold it in memory.
func (in *importInput) Resolve(ctx huma.Context) []error {
	in.body = ctx.BodyReader()
	return nil
}

var _ huma.Resolver = (*importInput)(nil)

func (s *server) registerImages() {
	tags := []string{"Images"}
	register(s, huma.Operation{
		OperationID: "pull-image", Method: http.MethodPost, Path: "/v2/images/pull", Tags: tags,
		Summary: "Pull an image from a registry", Description: "Answers at once; wait for ready. A create never pulls.",
		DefaultStatus: http.StatusAccepted,
	}, s.pullImage)
	register(s, huma.Operation{
		OperationID: "import-image", Method: http.MethodPost, Path: "/v2/images/import", Tags: tags,
		Summary: "Import an image from an archive", Description: "The body is the archive. Answers once it is there; wait for ready.",
		DefaultStatus: http.StatusAccepted,
		RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			"application/octet-stream": {Schema: &huma.Schema{Type: "string", Format: "binary"}}}},
	}, s.importImage)
	register(s, huma.Operation{
		OperationID: "build-default-image", Method: http.MethodPost, Path: "/v2/images/default", Tags: tags,
		Summary: "Build the default image from Debian packages", DefaultStatus: http.StatusAccepted,
	}, s.buildDefaultImage)
	register(s, huma.Operation{
		OperationID: "list-images", Method: http.MethodGet, Path: "/v2/images", Tags: tags, Summary: "List images",
	}, s.listImages)
	register(s, huma.Operation{
		OperationID: "get-image", Method: http.MethodGet, Path: "/v2/images/{id}", Tags: tags,
		Summary: "Get an image, or wait until it is ready", Description: "A name with slashes is written with %2F.",
	}, s.getImage)
	register(s, huma.Operation{
		OperationID: "push-image", Method: http.MethodPost, Path: "/v2/images/{id}/push", Tags: tags,
		Summary: "Push an image to a registry", Description: "Answers at once; push tells how far it is.",
		DefaultStatus: http.StatusAccepted,
	}, s.pushImage)
	register(s, huma.Operation{
		OperationID: "capture-image", Method: http.MethodPost, Path: "/v2/sandboxes/{id}/capture", Tags: tags,
		Summary: "Capture the file system of a sandbox as an image", Description: "The sandbox runs on. Answers at once; wait for ready.",
		DefaultStatus: http.StatusAccepted,
	}, s.captureImage)
	register(s, huma.Operation{
		OperationID: "delete-image", Method: http.MethodDelete, Path: "/v2/images/{id}", Tags: tags,
		Summary: "Delete an image", DefaultStatus: http.StatusNoContent,
	}, s.deleteImage)
}

func (s *server) pullImage(ctx context.Context, in *struct{ Body skerry.PullRequest }) (*imageOutput, error) {
	if err := validateReference(in.Body.Reference); err != nil {
		return nil, err
	}
	if in.Body.Name != "" {
		if err := skerry.ValidateImageName("name", in.Body.Name); err != nil {
			return nil, err
		}
	}
	return imageResult(s.Control.PullImage(ctx, in.Body))
}

func (s *server) pushImage(ctx context.Context, in *optional[skerry.PushRequest]) (*imageOutput, error) {
	req := in.body()
	if err := validateReference(req.Reference); err != nil {
		return nil, err
	}
	return imageResult(s.Control.PushImage(ctx, in.ID, req))
}

// validateReference bounds a reference; whether it makes sense, its parser says.
func validateReference(ref string) error {
	if ref == "" || len(ref) > 512 {
		return skerry.Invalid("reference", "length", "1 to 512 characters", "must be 1 to 512 characters, is %d", len(ref))
	}
	return nil
}

func (s *server) captureImage(ctx context.Context, in *optional[skerry.CaptureRequest]) (*imageOutput, error) {
	req, err := in.body().Resolve()
	if err != nil {
		return nil, err
	}
	return imageResult(s.Control.CaptureImage(ctx, in.ID, req))
}

func (s *server) importImage(ctx context.Context, in *importInput) (*imageOutput, error) {
	if err := skerry.ValidateImageName("name", in.Name); err != nil {
		return nil, err
	}
	path, err := s.spool(in.body)
	if err != nil {
		return nil, err
	}
	img, err := s.Control.ImportImage(ctx, skerry.ImportRequest{Path: path, Kind: in.Kind, Name: in.Name, Tag: in.Tag, Default: in.Default, Warm: in.Warm})
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return imageResult(img, nil)
}

// spool writes an upload to a file of its own and returns its path. A body that
// ends early or is too large leaves nothing behind.
func (s *server) spool(body io.Reader) (path string, err error) {
	f, err := os.CreateTemp(s.SpoolDir, "import-*.tar")
	if err != nil {
		return "", spoolError(err)
	}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = spoolError(closeErr)
		}
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	n, err := io.Copy(f, io.LimitReader(body, s.MaxImportBytes+1))
	switch {
	case err != nil:
		return "", spoolError(err)
	case n > s.MaxImportBytes:
		return "", skerry.Errorf(skerry.CodeTooLarge, "the archive is larger than %d bytes", s.MaxImportBytes)
	case n == 0:
		return "", skerry.Invalid("body", "required", "", "the archive is empty")
	}
	return f.Name(), nil
}

// spoolError tells a full disk and a client that went away from our faults.
func spoolError(err error) error {
	var pathErr *os.PathError
	switch {
	case err == nil:
		return nil
	case skerry.DiskFull(err):
		return skerry.Errorf(skerry.CodeExhausted, "no disk space left for the upload")
	case errors.As(err, &pathErr):
		return err
	}
	return skerry.Errorf(skerry.CodeInvalid, "the upload ended early: %w", err)
}

func (s *server) buildDefaultImage(ctx context.Context, _ *struct{}) (*imageOutput, error) {
	return imageResult(s.Control.BuildDefaultImage(ctx))
}

func (s *server) listImages(ctx context.Context, _ *struct{}) (*struct{ Body imageList }, error) {
	images, err := s.Control.ListImages(ctx)
	if err != nil {
		return nil, err
	}
	return &struct{ Body imageList }{imageList{Items: append([]skerry.Image{}, images...)}}, nil
}

func (s *server) getImage(ctx context.Context, in *readyInput) (*imageOutput, error) {
	if in.Wait == "" {
		return imageResult(s.Control.Image(ctx, in.ID))
	}
	return imageResult(s.Control.WaitImage(ctx, in.ID, hold(in.TimeoutSeconds)))
}

func (s *server) deleteImage(ctx context.Context, in *idInput) (*struct{}, error) {
	return nil, s.Control.DeleteImage(ctx, in.ID)
}

func imageResult(img skerry.Image, err error) (*imageOutput, error) {
	if err != nil {
		return nil, err
	}
	return &imageOutput{img}, nil
}

// jsonResponse documents a further response of an operation.
func (s *server) jsonResponse(text string, body any) *huma.Response {
	return &huma.Response{Description: text, Content: map[string]*huma.MediaType{
		"application/json": {Schema: s.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(body), true, "")},
	}}
}
