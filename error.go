package skerry

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Code is a stable, machine-readable kind of error. Codes cross every wire
// (guest, runner, control plane, client) unchanged; values are never reused.
type Code string

// The codes. Package internal/problem maps each to an HTTP status.
const (
	CodeInvalid      Code = "invalid"      // the request breaks a rule; Field, Rule and Bound say which
	CodeUnsupported  Code = "unsupported"  // known, but this server cannot do it
	CodeUnauthorized Code = "unauthorized" // no or wrong credentials
	CodeForbidden    Code = "forbidden"    // credentials without the permission
	CodeNotFound     Code = "not_found"    // no such object
	CodeConflict     Code = "conflict"     // clashes with the object's state or another object
	CodeGone         Code = "gone"         // was there, is deleted
	CodeTooLarge     Code = "too_large"    // the body is over its limit
	CodeExhausted    Code = "exhausted"    // no capacity, disk or quota left
	CodeUnavailable  Code = "unavailable"  // try again: a part that is needed is not there now
	CodeTimeout      Code = "timeout"      // a deadline passed
	CodeInternal     Code = "internal"     // a fault of ours; details are in the log only
)

// Error is an error of this project. Message is for people and says what is
// wrong; Field, Rule and Bound are set for CodeInvalid and CodeUnsupported.
type Error struct {
	Code    Code
	Message string
	Field   string // request field in wire spelling, "resources.memory"
	Rule    string // the rule that was broken, "max", "pattern", "required"
	Bound   string // the rule's bound, "32 GiB"
	Err     error  // cause, or nil; its text already stands in Message
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an error with a code; a %w verb sets the cause for errors.Is
// and errors.As.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Err: errors.Unwrap(err)}
}

// Invalid returns a CodeInvalid error that names the field, the rule and the
// rule's bound.
func Invalid(field, rule, bound, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Field: field, Rule: rule, Bound: bound,
		Message: field + ": " + fmt.Sprintf(format, args...)}
}

// inField says that an error about a value concerns a field that holds such
// values.
func inField(field string, err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	return Invalid(field, e.Rule, e.Bound, "%s", strings.TrimPrefix(e.Message, e.Field+": "))
}

// Unsupported returns a CodeUnsupported error for a request field.
func Unsupported(field, format string, args ...any) *Error {
	return &Error{Code: CodeUnsupported, Field: field, Rule: "unsupported",
		Message: field + ": " + fmt.Sprintf(format, args...)}
}

// DiskFull reports whether err tells that the disk, or a quota on it, has no
// room left.
func DiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// CodeOf returns the code of err: the one it carries, CodeExhausted for a full
// disk, or else CodeInternal. It returns "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	if DiskFull(err) {
		return CodeExhausted
	}
	return CodeInternal
}
