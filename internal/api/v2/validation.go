package v2

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/problem"
)

// statusContext sends huma's 422 for requests that break the schema as 400, as
// for every other broken rule.
type statusContext struct{ humaContext }

type humaContext huma.Context

// Unwrap returns the context of the adapter.
func (c statusContext) Unwrap() huma.Context { return c.humaContext }

// SetStatus sends the status that problemTransformer chose, if it did: a 422 of
// ours (code unsupported) must stay one.
func (c statusContext) SetStatus(status int) {
	if s, ok := c.Context().Value(schemaErrorKey{}).(*schemaError); ok && s.status != 0 {
		status = s.status
	}
	c.humaContext.SetStatus(status)
}

type (
	schemaErrorKey struct{}
	schemaError    struct{ status int }
)

func statusMiddleware(ctx huma.Context, next func(huma.Context)) {
	next(statusContext{huma.WithValue(ctx, schemaErrorKey{}, &schemaError{})})
}

// problemTransformer turns huma's own errors, which are about the form of the
// request, into problems.
func problemTransformer(ctx huma.Context, _ string, v any) (any, error) {
	model, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	p := fromHuma(model, problem.RequestID(ctx.Context()))
	if s, ok := ctx.Context().Value(schemaErrorKey{}).(*schemaError); ok {
		s.status = p.Status
	}
	return p, nil
}

func fromHuma(model *huma.ErrorModel, requestID string) *problem.Problem {
	switch model.Status {
	case http.StatusRequestEntityTooLarge:
		return problem.New(skerry.Errorf(skerry.CodeTooLarge, "the body is larger than %d bytes", maxBodyBytes), requestID)
	case http.StatusRequestTimeout:
		return problem.New(skerry.Errorf(skerry.CodeTimeout, "the body did not arrive in time"), requestID)
	}
	if len(model.Errors) == 0 {
		return problem.New(&skerry.Error{Code: problem.CodeOf(model.Status), Message: model.Detail}, requestID)
	}
	violations := make([]problem.Violation, 0, len(model.Errors))
	for _, detail := range model.Errors {
		violations = append(violations, violation(detail))
	}
	return problem.Invalid(violations, requestID)
}

// violation restates one finding of huma's validator, which has only texts, as
// field, rule and bound.
func violation(d *huma.ErrorDetail) problem.Violation {
	field := d.Location
	for _, prefix := range []string{"body.", "query.", "path.", "header."} {
		field = strings.TrimPrefix(field, prefix)
	}
	rule, bound := "type", strings.TrimPrefix(d.Message, "expected ")
	for _, known := range messageRules {
		if rest, ok := strings.CutPrefix(d.Message, known.prefix); ok {
			rule, bound = known.rule, strings.TrimSuffix(rest, known.suffix)
			break
		}
	}
	switch rule {
	case "required":
		if bound != "" {
			field = strings.TrimPrefix(field+"."+bound, "body.")
		}
		return problem.Violation{Field: field, Rule: rule, Message: field + ": is required"}
	case "unknown_field":
		return problem.Violation{Field: field, Rule: rule, Message: fmt.Sprintf("%s: there is no such field", field)}
	}
	return problem.Violation{Field: field, Rule: rule, Bound: bound, Message: field + ": " + d.Message}
}

// messageRules are the beginnings of the messages of huma's package validation.
var messageRules = []struct{ prefix, suffix, rule string }{
	{"unexpected property", "", "unknown_field"},
	{"unknown query parameter", "", "unknown_field"},
	{"expected required property ", " to be present", "required"},
	{"required query parameter is missing", "", "required"},
	{"expected value to be one of ", "", "one_of"},
	{"expected number >= ", "", "min"},
	{"expected number <= ", "", "max"},
	{"expected length >= ", "", "min_length"},
	{"expected length <= ", "", "max_length"},
	{"expected array length <= ", "", "max_items"},
	{"expected string to match pattern ", "", "pattern"},
}
