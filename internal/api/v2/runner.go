package v2

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"skerry.dev/skerry"
)

type runnerList struct {
	Items []skerry.Runner `json:"items"`
}

type version struct {
	Version string `json:"version"`
	Region  string `json:"region"`
	API     string `json:"api" doc:"Always v2."`
}

func (s *server) registerRunners() {
	register(s, huma.Operation{
		OperationID: "list-runners", Method: http.MethodGet, Path: "/v2/runners", Tags: []string{"Server"},
		Summary: "List the hosts and what they can do",
	}, func(ctx context.Context, _ *struct{}) (*struct{ Body runnerList }, error) {
		runners, err := s.Control.Runners(ctx)
		if err != nil {
			return nil, err
		}
		return &struct{ Body runnerList }{runnerList{Items: append([]skerry.Runner{}, runners...)}}, nil
	})
	register(s, huma.Operation{
		OperationID: "get-version", Method: http.MethodGet, Path: "/v2/version", Tags: []string{"Server"},
		Summary: "Get the server's version",
	}, func(context.Context, *struct{}) (*struct{ Body version }, error) {
		return &struct{ Body version }{version{Version: s.Version, Region: s.Region, API: "v2"}}, nil
	})
}
