package v2

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"skerry.dev/skerry"
)

type lifecycleOutput struct{ Body skerry.Lifecycle }

func (s *server) registerLifecycle() {
	tags := []string{"Sandboxes"}
	register(s, huma.Operation{
		OperationID: "get-lifecycle", Method: http.MethodGet, Path: "/v2/sandboxes/{id}/lifecycle", Tags: tags,
		Summary: "Get the timeouts of a sandbox",
	}, s.getLifecycle)
	register(s, huma.Operation{
		OperationID: "update-lifecycle", Method: http.MethodPatch, Path: "/v2/sandboxes/{id}/lifecycle", Tags: tags,
		Summary:     "Change the timeouts of a sandbox",
		Description: "Omitted fields keep their values. A timeout counts from now. It does not count as activity.",
	}, s.updateLifecycle)
	register(s, huma.Operation{
		OperationID: "touch-sandbox", Method: http.MethodPost, Path: "/v2/sandboxes/{id}/touch", Tags: tags,
		Summary:       "Reset the idle timer of a sandbox",
		Description:   "Counts as activity, in any state but deleting and deleted, whether or not there is an idle timeout. The timeout goes on.",
		DefaultStatus: http.StatusOK,
	}, s.touchSandbox)
}

func (s *server) getLifecycle(ctx context.Context, in *idInput) (*lifecycleOutput, error) {
	sb, err := s.Control.Sandbox(ctx, in.ID)
	return lifecycleResult(sb.Lifecycle, err)
}

func (s *server) updateLifecycle(ctx context.Context, in *optional[skerry.PolicyRequest]) (*lifecycleOutput, error) {
	return lifecycleResult(s.Control.UpdateLifecycle(ctx, in.ID, in.body()))
}

func (s *server) touchSandbox(ctx context.Context, in *optional[struct{}]) (*lifecycleOutput, error) {
	return lifecycleResult(s.Control.TouchSandbox(ctx, in.ID))
}

// lifecycleResult names fields as they are spelled here, where the policy is the
// whole body and not one field of it.
func lifecycleResult(l skerry.Lifecycle, err error) (*lifecycleOutput, error) {
	if err == nil {
		return &lifecycleOutput{l}, nil
	}
	var e *skerry.Error
	if !errors.As(err, &e) {
		return nil, err
	}
	const prefix = "lifecycle_policy."
	spelled := *e
	spelled.Field = strings.TrimPrefix(e.Field, prefix)
	spelled.Message = strings.TrimPrefix(e.Message, prefix)
	return nil, &spelled
}
