package v2

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"skerry.dev/skerry"
)

type snapshotOutput struct{ Body skerry.Snapshot }

type snapshotList struct {
	Items []skerry.Snapshot `json:"items"`
}

type snapshotBody struct {
	Name string `json:"name" doc:"1 to 128 letters, digits, '.', '_' and '-', not starting with '.' or a reserved prefix (sbx_, vol_, fn_, img_, snap_, snap-, build-, refs, by-digest, prj-, glb-). Unique among images and snapshots."`
}

func (s *server) registerSnapshots() {
	tags := []string{"Snapshots"}
	register(s, huma.Operation{
		OperationID: "create-snapshot", Method: http.MethodPost, Path: "/v2/sandboxes/{id}/snapshots", Tags: tags,
		Summary: "Capture memory and disk of a running sandbox", Description: "The sandbox runs on. Answers at once; wait for ready. 409 if the name is in use.",
		DefaultStatus: http.StatusAccepted,
	}, s.createSnapshot)
	register(s, huma.Operation{
		OperationID: "list-snapshots", Method: http.MethodGet, Path: "/v2/snapshots", Tags: tags, Summary: "List snapshots",
	}, s.listSnapshots)
	register(s, huma.Operation{
		OperationID: "get-snapshot", Method: http.MethodGet, Path: "/v2/snapshots/{id}", Tags: tags,
		Summary: "Get a snapshot, or wait until it is ready",
	}, s.getSnapshot)
	register(s, huma.Operation{
		OperationID: "delete-snapshot", Method: http.MethodDelete, Path: "/v2/snapshots/{id}", Tags: tags,
		Summary: "Delete a snapshot", Description: "Sandboxes restored from it stay.", DefaultStatus: http.StatusNoContent,
	}, s.deleteSnapshot)
	register(s, huma.Operation{
		OperationID: "restore-snapshot", Method: http.MethodPost, Path: "/v2/snapshots/{id}/restore", Tags: tags,
		Summary: "Restore a sandbox from a snapshot",
		Description: "The new sandbox resumes the captured processes with the CPU, memory and disk of the source, as often as wanted. " +
			"Answers 201 when it has begun and 200 when the idempotency key already had a sandbox; wait for it to run.",
		DefaultStatus: http.StatusCreated,
		Responses:     map[string]*huma.Response{"200": s.jsonResponse("The sandbox that the idempotency key already had", skerry.Sandbox{})},
	}, s.restoreSnapshot)
}

func (s *server) createSnapshot(ctx context.Context, in *optional[snapshotBody]) (*snapshotOutput, error) {
	name := in.body().Name
	if err := skerry.ValidateSnapshotName(name); err != nil {
		return nil, err
	}
	return snapshotResult(s.Control.CreateSnapshot(ctx, in.ID, name))
}

func (s *server) listSnapshots(ctx context.Context, _ *struct{}) (*struct{ Body snapshotList }, error) {
	snapshots, err := s.Control.ListSnapshots(ctx)
	if err != nil {
		return nil, err
	}
	return &struct{ Body snapshotList }{snapshotList{Items: append([]skerry.Snapshot{}, snapshots...)}}, nil
}

func (s *server) getSnapshot(ctx context.Context, in *readyInput) (*snapshotOutput, error) {
	if in.Wait == "" {
		return snapshotResult(s.Control.Snapshot(ctx, in.ID))
	}
	return snapshotResult(s.Control.WaitSnapshot(ctx, in.ID, hold(in.TimeoutSeconds)))
}

func (s *server) deleteSnapshot(ctx context.Context, in *idInput) (*struct{}, error) {
	return nil, s.Control.DeleteSnapshot(ctx, in.ID)
}

func (s *server) restoreSnapshot(ctx context.Context, in *optional[skerry.RestoreRequest]) (*createOutput, error) {
	req, err := in.body().Resolve()
	if err != nil {
		return nil, err
	}
	sb, created, err := s.Control.RestoreSnapshot(ctx, in.ID, req)
	if err != nil {
		return nil, err
	}
	return createResult(sb, created), nil
}

func snapshotResult(snap skerry.Snapshot, err error) (*snapshotOutput, error) {
	if err != nil {
		return nil, err
	}
	return &snapshotOutput{snap}, nil
}
