package problem

import (
	"net/http"

	"skerry.dev/skerry"
)

// table maps each code to its one HTTP status and back. Clients branch on the
// code; the status is for what lies between (proxies, retries, browsers).
var table = []struct {
	code   skerry.Code
	status int
	title  string
}{
	{skerry.CodeInvalid, http.StatusBadRequest, "The request breaks a rule"},
	{skerry.CodeUnsupported, http.StatusUnprocessableEntity, "This server cannot do that"},
	{skerry.CodeUnauthorized, http.StatusUnauthorized, "No valid API key"},
	{skerry.CodeForbidden, http.StatusForbidden, "The API key does not permit that"},
	{skerry.CodeNotFound, http.StatusNotFound, "No such object"},
	{skerry.CodeConflict, http.StatusConflict, "It clashes with the present state"},
	{skerry.CodeGone, http.StatusGone, "The object is deleted"},
	{skerry.CodeTooLarge, http.StatusRequestEntityTooLarge, "The body is too large"},
	{skerry.CodeExhausted, http.StatusInsufficientStorage, "No capacity, disk or quota left"},
	{skerry.CodeUnavailable, http.StatusServiceUnavailable, "Try again"},
	{skerry.CodeTimeout, http.StatusGatewayTimeout, "A deadline passed"},
	{skerry.CodeInternal, http.StatusInternalServerError, "A fault of the server"},
}

// Status returns the HTTP status of a code; 500 for one it does not know.
func Status(code skerry.Code) int {
	for _, row := range table {
		if row.code == code {
			return row.status
		}
	}
	return http.StatusInternalServerError
}

// Title says what a code means.
func Title(code skerry.Code) string {
	for _, row := range table {
		if row.code == code {
			return row.title
		}
	}
	return http.StatusText(http.StatusInternalServerError)
}

// CodeOf returns the code of an HTTP status. Statuses that the table does not
// have come from something in between, so 4xx counts as invalid and 5xx as
// unavailable.
func CodeOf(status int) skerry.Code {
	for _, row := range table {
		if row.status == status {
			return row.code
		}
	}
	switch {
	case status == http.StatusRequestTimeout:
		return skerry.CodeTimeout
	case status >= 400 && status < 500:
		return skerry.CodeInvalid
	}
	return skerry.CodeUnavailable
}

// Codes lists all codes, in the order of the table.
func Codes() []skerry.Code {
	codes := make([]skerry.Code, 0, len(table))
	for _, row := range table {
		codes = append(codes, row.code)
	}
	return codes
}
