package problem_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/problem"
)

// TestRoundTrip sends every code and reads it back.
func TestRoundTrip(t *testing.T) {
	statuses := map[int]bool{}
	for _, code := range problem.Codes() {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "/", nil)
		r = r.WithContext(problem.WithRequestID(r.Context(), "req_1"))
		sent := &skerry.Error{Code: code, Message: "text", Field: "a.b", Rule: "max", Bound: "7"}
		status := problem.Write(w, r, sent)
		if statuses[status] || problem.CodeOf(status) != code {
			t.Errorf("%s: status %d is not its own", code, status)
		}
		statuses[status] = true
		got := problem.Read(w.Result())
		if *got.Err() != *sent || got.RequestID != "req_1" {
			t.Errorf("%s: read %+v", code, got)
		}
	}
	if len(statuses) != 12 {
		t.Errorf("%d codes, want all 12", len(statuses))
	}
}

func TestReadForeignAnswers(t *testing.T) {
	for status, want := range map[int]skerry.Code{408: skerry.CodeTimeout, 418: skerry.CodeInvalid, 429: skerry.CodeInvalid, 502: skerry.CodeUnavailable, 599: skerry.CodeUnavailable} {
		for _, body := range []string{"", "<html>", `{"code":""}`, `[]`, strings.Repeat("x", 1<<20)} {
			resp := &http.Response{StatusCode: status, Status: "status", Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
			if p := problem.Read(resp); p.Code != want || p.Detail == "" || p.Status != status {
				t.Errorf("%d %.20q: %+v", status, body, p)
			}
		}
	}
}

func TestInternalTextStaysHere(t *testing.T) {
	if p := problem.New(errors.New("secret"), "req_1"); p.Code != skerry.CodeInternal || strings.Contains(p.Detail, "secret") || p.Status != 500 {
		t.Errorf("got %+v", p)
	}
}
