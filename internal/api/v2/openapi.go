package v2

import (
	"reflect"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/problem"
)

const description = "Small Linux machines of their own for programs: created in well under a second, thrown away or kept. " +
	"Send the API key as a bearer token. Unknown fields and query parameters are refused. " +
	"Waits are held for at most 3 seconds: ask again until the answer is the one you wait for. " +
	"Programs and files inside a sandbox are reached below /toolbox/{sandbox_id}/."

func openAPIConfig(version string) huma.Config {
	if version == "" {
		version = "devel"
	}
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Skerry API", Version: version, Description: description,
				License: &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"},
			},
			Components: &huma.Components{
				Schemas:         huma.NewMapRegistry("#/components/schemas/", schemaName),
				SecuritySchemes: map[string]*huma.SecurityScheme{"api_key": {Type: "http", Scheme: "bearer"}},
			},
			Security: []map[string][]string{{"api_key": {}}},
			Tags: []*huma.Tag{
				{Name: "Sandboxes", Description: "Isolated Linux machines."},
				{Name: "Snapshots", Description: "Saved memory and disk of sandboxes, from which new ones resume."},
				{Name: "Events", Description: "What changes, as it changes."},
				{Name: "Images", Description: "File systems that sandboxes start with."},
				{Name: "Server", Description: "The hosts and this server."},
			},
		},
		Formats:       map[string]huma.Format{"application/json": huma.DefaultJSONFormat, "json": huma.DefaultJSONFormat}, // "json" is for +json
		DefaultFormat: "application/json",
		Transformers:  []huma.Transformer{problemTransformer},
	}
}

// schemaName makes names of unexported body types presentable.
func schemaName(t reflect.Type, hint string) string {
	if t == reflect.TypeFor[createBody]() {
		return "CreateSandbox"
	}
	return huma.DefaultSchemaNamer(t, hint)
}

// problemResponse is the response of every operation that fails.
func problemResponse(registry huma.Registry) *huma.Response {
	return &huma.Response{
		Description: "Error",
		Content: map[string]*huma.MediaType{
			problem.ContentType: {Schema: registry.Schema(reflect.TypeFor[problem.Problem](), true, "Problem")},
		},
	}
}

// finishOpenAPI writes the closed sets of values into the document, which the
// Go types cannot say, and drops huma's own error types, which are never sent.
func finishOpenAPI(doc *huma.OpenAPI) {
	schemas := doc.Components.Schemas.Map()
	delete(schemas, "ErrorModel")
	delete(schemas, "ErrorDetail")
	setEnum(schemas["Problem"], "code", problem.Codes())
	setEnum(schemas["Sandbox"], "status", skerry.Statuses())
	setEnum(schemas["Sandbox"], "state", states())
	setEnum(schemas["Sandbox"], "operation", skerry.Actions())
	setEnum(schemas["Image"], "status", []skerry.ImageStatus{skerry.ImagePending, skerry.ImageBuilding, skerry.ImageReady, skerry.ImageFailed})
	setEnum(schemas["Event"], "type", []skerry.EventType{skerry.EventSandboxStatus, skerry.EventSandboxLifecycle, skerry.EventImageStatus, skerry.EventSnapshotStatus})
}

func setEnum[T ~string](schema *huma.Schema, property string, values []T) {
	list := make([]any, 0, len(values))
	for _, v := range values {
		list = append(list, string(v))
	}
	schema.Properties[property].Enum = list
}

// states lists the coarse states once each.
func states() []skerry.State {
	var list []skerry.State
	for _, status := range skerry.Statuses() {
		if st := status.State(); !slices.Contains(list, st) {
			list = append(list, st)
		}
	}
	return list
}
