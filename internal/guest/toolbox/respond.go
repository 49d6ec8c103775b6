package toolbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"skerry.dev/skerry"
	"skerry.dev/skerry/internal/guest/toolbox/account"
	"skerry.dev/skerry/internal/guest/toolbox/file"
)

// Bounds of request bodies that are read into memory, in bytes. Uploads and raw
// standard input are streams and have none.
const (
	maxBody      = 4 << 20
	maxInputBody = 16 << 20 // with standard input inside
)

// errAborted says that an answer has begun and cannot be completed: the
// connection is cut, so that nobody takes the part for the whole.
var errAborted = errors.New("answer cannot be completed")

func toolboxError(status int, code, format string, args ...any) *skerry.ToolboxError {
	return &skerry.ToolboxError{StatusCode: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

func unavailable() *skerry.ToolboxError {
	return toolboxError(http.StatusServiceUnavailable, skerry.ToolboxNotActive, "the sandbox is not up, or is going down")
}

func noRoute(r *http.Request) *skerry.ToolboxError {
	return toolboxError(http.StatusNotFound, skerry.ToolboxNoRoute, "no such operation: %s %.256q", r.Method, r.URL.Path)
}

func badQuery(format string, args ...any) *skerry.ToolboxError {
	return toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidQuery, format, args...)
}

// fail ends the journey of an operation's error.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errAborted) {
		s.config.Logger.Warn("answer was cut off", "method", r.Method, "path", r.URL.Path, "err", err)
		panic(http.ErrAbortHandler)
	}
	answer := asToolboxError(err)
	if answer.StatusCode >= http.StatusInternalServerError {
		s.config.Logger.Warn("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
	}
	writeError(w, r, answer)
}

func writeError(w http.ResponseWriter, r *http.Request, e *skerry.ToolboxError) {
	body := *e
	body.Path, body.Method, body.Timestamp, body.Source = r.URL.Path, r.Method, time.Now().UTC(), skerry.ToolboxErrorSource
	_ = writeJSON(w, body.StatusCode, &body) // the client has gone; nobody else to tell
}

// writeJSON writes an answer. Its errors are the client's going away.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return fmt.Errorf("%w: %w", errAborted, err)
	}
	return nil
}

// readJSON reads a body of at most limit bytes that holds one JSON value with
// known fields only.
func readJSON(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	return decodeJSON(http.MaxBytesReader(w, r.Body, limit), v)
}

func decodeJSON(r io.Reader, v any) error {
	decoder := json.NewDecoder(r)
	decoder.DisallowUnknownFields()
	err := decoder.Decode(v)
	if err == nil {
		if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("data follows the JSON value")
		}
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return toolboxError(http.StatusRequestEntityTooLarge, skerry.ToolboxTooLarge, "body is larger than %d bytes", tooLarge.Limit)
	}
	if err != nil {
		return toolboxError(http.StatusBadRequest, skerry.ToolboxInvalidBody, "request body: %v", err)
	}
	return nil
}

// queryInt reads an optional whole number from low to high.
func queryInt(r *http.Request, name string, unset, low, high int) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return unset, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return 0, badQuery("%s %.32q: is no whole number from %d to %d", name, text, low, high)
	}
	return n, nil
}

// queryBool reads an optional true or false.
func queryBool(r *http.Request, name string) (bool, error) {
	switch text := r.URL.Query().Get(name); text {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, badQuery("%s %.32q: is neither true nor false", name, text)
	}
}

// errorClass maps causes to answers; the first that matches counts.
var errorClasses = []struct {
	causes []error
	status int
	code   string
}{
	{[]error{file.ErrArchive}, 400, skerry.ToolboxInvalidArchive},
	{[]error{fs.ErrNotExist}, 404, skerry.ToolboxFileNotFound},
	{[]error{syscall.ENOTEMPTY, fs.ErrExist}, 409, skerry.ToolboxFileExists},
	{[]error{fs.ErrPermission, syscall.EROFS}, 403, skerry.ToolboxAccessDenied},
	{[]error{syscall.ENOSPC, syscall.EDQUOT}, 507, skerry.ToolboxNoSpace},
	{[]error{syscall.EFBIG, file.ErrTooMany}, 413, skerry.ToolboxTooLarge},
	{[]error{file.ErrPath, file.ErrNotRegular, account.ErrUnknown, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP,
		syscall.ENAMETOOLONG, syscall.EXDEV, syscall.EINVAL, syscall.EBUSY}, 400, skerry.ToolboxInvalidPath},
	{[]error{io.ErrUnexpectedEOF}, 400, skerry.ToolboxInvalidBody},
}

func asToolboxError(err error) *skerry.ToolboxError {
	if e, ok := errors.AsType[*skerry.ToolboxError](err); ok {
		return e
	}
	for _, class := range errorClasses {
		for _, cause := range class.causes {
			if errors.Is(err, cause) {
				return toolboxError(class.status, class.code, "%v", err)
			}
		}
	}
	return toolboxError(http.StatusInternalServerError, skerry.ToolboxInternal, "%v", err)
}

// encodeError writes an error as part of an answer.
func encodeError(w io.Writer, r *http.Request, e *skerry.ToolboxError) error {
	body := *e
	body.Path, body.Method, body.Timestamp, body.Source = r.URL.Path, r.Method, time.Now().UTC(), skerry.ToolboxErrorSource
	return json.NewEncoder(w).Encode(&body)
}
