package v2

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"skerry.dev/skerry"
)

type sandboxList struct {
	Items []skerry.Sandbox `json:"items"`
}

// registerOperations registers what persistent sandboxes can do besides.
func (s *server) registerOperations() {
	for _, op := range []struct {
		name, summary, description string
		start                      func(Control, context.Context, string) (skerry.Sandbox, error)
	}{
		{"stop", "Stop a sandbox", "A warm stop: the machine ends, its disk is kept. For running persistent sandboxes.", Control.StopSandbox},
		{"start", "Start a sandbox", "A stopped sandbox boots from its disk, a paused one resumes. For persistent sandboxes.", Control.StartSandbox},
		{"pause", "Pause a sandbox", "Memory and processes are kept along with the disk. For running persistent sandboxes.", Control.PauseSandbox},
		{"resume", "Resume a sandbox", "A paused sandbox goes on where it was.", Control.ResumeSandbox},
		{"reclaim", "Reclaim the capacity of a spot sandbox", "For the operator: at once, a persistent sandbox is paused, another deleted; spot_evicted_at tells when.", Control.ReclaimSandbox},
	} {
		register(s, huma.Operation{
			OperationID: op.name + "-sandbox", Method: http.MethodPost, Path: "/v2/sandboxes/{id}/" + op.name, Tags: []string{"Sandboxes"},
			Summary: op.summary, Description: op.description + " Answers when it has begun, 409 if it cannot be done now.",
			DefaultStatus: http.StatusAccepted,
		}, func(ctx context.Context, in *optional[struct{}]) (*sandboxOutput, error) {
			sb, err := op.start(s.Control, ctx, in.ID)
			if err != nil {
				return nil, err
			}
			return &sandboxOutput{sb}, nil
		})
	}
	register(s, huma.Operation{
		OperationID: "fork-sandbox", Method: http.MethodPost, Path: "/v2/sandboxes/{id}/fork", Tags: []string{"Sandboxes"},
		Summary:       "Fork a sandbox",
		Description:   "Duplicates a persistent sandbox, memory and disk, into new ones that run; the source runs on. Answers when it has begun; wait for each copy to run.",
		DefaultStatus: http.StatusAccepted,
	}, s.forkSandbox)
}

func (s *server) forkSandbox(ctx context.Context, in *optional[skerry.ForkRequest]) (*struct{ Body sandboxList }, error) {
	req, err := in.body().Resolve()
	if err != nil {
		return nil, err
	}
	copies, err := s.Control.ForkSandbox(ctx, in.ID, req)
	if err != nil {
		return nil, err
	}
	return &struct{ Body sandboxList }{sandboxList{Items: append([]skerry.Sandbox{}, copies...)}}, nil
}
